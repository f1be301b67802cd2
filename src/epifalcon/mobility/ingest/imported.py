"""What an import hands back, and the last steps that all kinds share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest.presence import fill_gaps
from epifalcon.mobility.ingest.rows import RowCount
from epifalcon.mobility.ingest.settings import ImportSettings
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import RegionIds

MAX_CELLS = 2_000_000_000


@dataclass(frozen=True, eq=False)
class Imported:
    """Traces made from a file, and the account of its rows."""

    traces: Traces
    rows: RowCount
    places: RowCount | None = None
    """Rows of the table of places, where there was one."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Which column of the file was taken for which of ours."""
    times_twice: int = 0
    """Kept rows whose wall-clock time occurs twice (clocks put back)."""
    times_never: int = 0
    """Kept rows whose wall-clock time never occurs (clocks put forward)."""

    def as_plain(self) -> dict[str, Any]:
        """The account for JSON: rows, people, regions, slots, share observed."""
        traces = self.traces
        return {
            **self.rows.as_plain(),
            "people": traces.people,
            "regions": len(traces.regions),
            "slots": traces.slots,
            "share_observed": traces.observed_share,
            "start": traces.clock.start,
            "days": traces.clock.days,
            "slot_hours": traces.clock.slot_hours,
            "timezone": traces.clock.timezone,
            "columns": dict(self.columns),
            "times_twice": self.times_twice,
            "times_never": self.times_never,
            "places": self.places.as_plain() if self.places else None,
        }


def require_room(path: Path, people: int, clock: Clock) -> None:
    """Raise ``DataError`` where people x slots would not fit into memory."""
    cells = people * clock.slots
    if cells > MAX_CELLS:
        raise DataError(
            f"{path}: {people:,} people x {clock.slots:,} slots are {cells:,} cells, "
            f"more than {MAX_CELLS:,}: choose fewer days (start, days) or longer slots"
        )


def finished(
    by_slot: RegionIds,
    clock: Clock,
    regions: Regions,
    names: Sequence[str],
    settings: ImportSettings,
) -> Traces:
    """The traces, with short gaps filled if the settings say so."""
    # A hair of slack: 0.3 / 0.1 is a little less than 3.
    longest = int(settings.fill_gap_hours / clock.slot_hours + 1e-9)
    fill_gaps(by_slot, longest)
    return Traces(by_slot, clock, regions, names)
