"""Files of new visits and tests, in the format of the import that a city is from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.epidemic.read_tests import ImportedTests, read_more_tests
from epifalcon.epidemic.test_kinds import EVER, TestKind
from epifalcon.errors import DataError
from epifalcon.experiments.simulation import CITY, find_folder
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io.settings import ImportSettings
from epifalcon.mobility.io.visits import MoreVisits, gap_slots, read_more_visits
from epifalcon.mobility.regions import Regions
from epifalcon.settings import as_plain, convert
from epifalcon.types import Plain

_MOST_NAMED = 3


@dataclass(frozen=True)
class ImportFormat:
    """Settings of an import, with which files of more people or days are read."""

    visits: ImportSettings | None = None
    """None if the city was not imported: days are numbers, regions are named."""
    test_columns: tuple[str, ...] = ()
    test_kind: TestKind | None = None
    """Kind of the tests that a file gives no kind."""

    @classmethod
    def of_city(cls, folder: Path) -> "ImportFormat":
        """Return the format stored with the city of a run or an import."""
        settings = store.read_manifest(find_folder(folder, CITY))["settings"]
        return cls.from_plain(settings)

    @classmethod
    def from_plain(cls, settings: Plain) -> "ImportFormat":
        """Return the format in the settings of a city or a state."""
        if "import" not in settings:
            return cls()
        kind = settings.get("test_kind")
        return cls(
            convert(ImportSettings, settings["import"], "import"),
            convert(tuple[str, ...], settings.get("test_columns", ()), "test_columns"),
            None if kind is None else convert(TestKind, kind, "test_kind"),
        )

    def as_plain(self) -> Plain:
        """Return the settings that ``from_plain`` reads."""
        if self.visits is None:
            return {}
        return {
            "import": as_plain(self.visits),
            "test_columns": list(self.test_columns),
            "test_kind": None if self.test_kind is None else as_plain(self.test_kind),
        }

    @property
    def gap_slots(self) -> int:
        """Length in slots of the longest gap in a trace that is filled."""
        return 0 if self.visits is None else gap_slots(self.visits)

    def read_visits(
        self, path: Path, clock: Clock, regions: Regions, first_day: int = 1
    ) -> MoreVisits:
        """Read visits in the regions of the city; see ``read_more_visits``."""
        settings = self.visits
        for name in ("polygons", "places"):
            listed = getattr(settings, name, None)
            if listed is not None and not Path(listed).exists():
                raise DataError(
                    f"{listed}: no such file; the import took its {name} from it, so "
                    "it is needed to read more visits: put it back"
                )
        return read_more_visits(path, settings, clock, regions, first_day)

    def read_tests(self, path: Path, clock: Clock, kind: TestKind) -> ImportedTests:
        """Read tests of any people, of ``kind`` if no other is known."""
        read = None
        if self.visits is not None:
            read = replace(self.visits.read, columns=self.test_columns)
        return read_more_tests(path, clock, read, self.test_kind or kind)

    def notes_on_tests(self, path: Path, tests: ImportedTests) -> tuple[str, ...]:
        """Return sentences on rows of ``path`` not used, and on tests of no kind."""
        notes = _refused(path, tests.rows.refused)
        if tests.without_kind and self.test_kind == EVER:
            notes.append(
                f"{path}: tests without a kind count as ever, as in the import, so "
                "their results as proof: name the kind in a column kind, or import "
                f"with --test-kind: {tests.without_kind:,}"
            )
        return tuple(notes)


def notes_on_visits(path: Path, visits: MoreVisits) -> tuple[str, ...]:
    """Return sentences on rows and slots of ``path`` that are not used."""
    notes = _refused(path, visits.rows.refused)
    if visits.unknown_places:
        slots = sum(visits.unknown_places.values())
        notes.append(
            f"{path}: places that are not among the regions, because nobody visited "
            f"them before: {_some(visits.unknown_places)}; slots that count as not "
            f"observed: {slots:,}"
        )
    if visits.other_days:
        rows = sum(visits.other_days.values())
        notes.append(
            f"{path}: observations of other days ({_some(visits.other_days)}), which "
            f"are not used: {rows:,}"
        )
    return tuple(notes)


def _refused(path: Path, refused: Mapping[str, int]) -> list[str]:
    return [f"{path}: refused rows: {rows:,} x {why}" for why, rows in refused.items()]


def _some(names: Mapping[str, Any]) -> str:
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return ", ".join(list(names)[:_MOST_NAMED]) + more
