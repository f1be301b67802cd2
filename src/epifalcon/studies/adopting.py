"""Take over what kept results have measured, instead of running it again.

A run is adopted where all settings that its method can see are equal, the seed and
the version of epifalcon too, and the people that this version makes are those of the
kept figures. Adopted figures stand in the work folder as if measured there, with a word
of where they are from; all that reads them goes on as ever.
"""

import contextlib
import importlib.metadata
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from epifalcon import store
from epifalcon.epidemic.hidden import Hidden
from epifalcon.errors import DataError
from epifalcon.settings import as_plain, fingerprint, first_difference
from epifalcon.studies.beginning import is_begun
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.follow_ups import Followed
from epifalcon.studies.kept_runs import KeptFolder, KeptRow, read_kept
from epifalcon.studies.measurements import FAILED, MEASURED, Measured
from epifalcon.studies.study import FollowUp
from epifalcon.studies.study_plan import Planned

Wanted = Mapping[tuple[Path, str], frozenset[FollowUp]]
"""What is to follow, by a comparison's folder and method."""


@dataclass(frozen=True)
class Offer:
    """A kept row whose settings are those of a comparison."""

    folder: Path
    """The kept results."""
    row: KeptRow


@dataclass(frozen=True)
class Adoption:
    """What kept results have for a study."""

    wanted: Wanted
    offers: Mapping[Path, Sequence[Offer]] = field(default_factory=dict)
    """By a comparison's folder."""
    told: tuple[str, ...] = ()
    """What is not adopted, and why."""

    def needs_runs(self, plan: Plan) -> bool:
        """Whether figures are offered, whose people are to be compared."""
        return plan.folder in self.offers

    def settle(self, plan: Plan) -> None:
        """Put offered figures where ``plan`` has none; its cities stand there already.

        Adopted figures without what is to follow them are taken away, since nothing
        can follow a run that is not there. The caller holds the plan's folder.
        ``DataError`` where the kept figures are of other people than the city's.
        """
        for offer in self.offers.get(plan.folder, ()):
            wanted = self.wanted.get((plan.folder, offer.row.method), frozenset())
            taken = _Taker(plan, offer, wanted)
            for seed in plan.seeds:
                taken.take(seed)
        for method in plan.methods:
            for seed in plan.seeds:
                self._release(plan, seed, method)

    def _release(self, plan: Plan, seed: int, method: str) -> None:
        place = plan.place(seed, method)
        kinds = self.wanted.get((plan.folder, method), frozenset())
        if all(Followed.load(place / kind) is not None for kind in kinds):
            return
        there = Measured.sound(place)
        if there is not None and there.adopted is not None:
            with store.writing(place):
                shutil.rmtree(place / MEASURED)


def plan_adoption(planned: Planned, folders: Sequence[Path]) -> Adoption:
    """What ``folders`` have for the study; nothing is written yet.

    A folder that has nothing for it, is of another version or cannot be read is
    refused by its name.
    """
    wanted = _wanted(planned)
    offers: dict[Path, list[Offer]] = {}
    told: list[str] = []
    for folder in folders:
        kept = read_kept(folder)
        found, why = _matched(planned, kept, wanted)
        if not found:
            reasons = "; ".join(why) or "no setting, method and seed of it is asked for"
            raise DataError(
                f"{folder}: has nothing for study {planned.study.name}: {reasons}"
            )
        told += [f"{folder}: not adopted: {one}" for one in why]
        for plan, row in found:
            offers.setdefault(plan.folder, []).append(Offer(folder, row))
    return Adoption(wanted, offers, tuple(told))


def _wanted(planned: Planned) -> Wanted:
    found: dict[tuple[Path, str], frozenset[FollowUp]] = {}
    for cell in planned.cells:
        if cell.then is None:
            continue
        for method in cell.methods:
            key = planned.plans[cell.label].folder, method
            found[key] = found.get(key, frozenset()) | {cell.then}
    return found


def _matched(
    planned: Planned, kept: KeptFolder, wanted: Wanted
) -> tuple[list[tuple[Plan, KeptRow]], list[str]]:
    """Rows whose settings are a comparison's, and why others are not adopted."""
    version = importlib.metadata.version("epifalcon")
    if kept.version != version:
        return [], [f"made by epifalcon {kept.version}, this is {version}"]
    plans = {
        _key(plan.experiment, method): plan
        for plan in planned.comparisons
        for method in plan.methods
    }
    found: list[tuple[Plan, KeptRow]] = []
    why: list[str] = []
    for row in kept.rows:
        plan = plans.get(_key(kept.experiments[row.cell], row.method))
        if plan is None:
            told = _difference(planned, kept, row)
            why += [told] if told and told not in why else []
            continue
        row = _with_follow_up(planned, row)
        if not set(row.runs) & set(plan.seeds):
            continue
        missing = wanted.get((plan.folder, row.method), frozenset()) - {row.then}
        if missing:
            lacks = ", ".join(sorted(missing))
            why.append(f"{row.method}, {row.cell}: kept without {lacks}")
            continue
        found.append((plan, row))
    return found, why


def _key(experiment: Experiment | str, method: str) -> str:
    # What this version cannot read is equal to nothing.
    if isinstance(experiment, str):
        return ""
    return fingerprint({"method": method, "settings": experiment.seen_by(method)})


def _with_follow_up(planned: Planned, row: KeptRow) -> KeptRow:
    """The row, told what its further figures are where an older table does not."""
    if row.then is not None or not row.after or row.study != planned.study.name:
        return row
    cells = {cell.label: cell for cell in planned.cells}
    cell = cells.get(row.cell)
    return row if cell is None else replace(row, then=cell.then)


def _difference(planned: Planned, kept: KeptFolder, row: KeptRow) -> str | None:
    """What sets a kept row apart from the one it should be; None for strangers."""
    theirs = kept.experiments[row.cell]
    if isinstance(theirs, str):
        return f"{row.cell}: {theirs}"
    for cell in planned.cells:
        if row.cell in (cell.label, cell.preset) and row.method in cell.methods:
            ours = planned.plans[cell.label].experiment.seen_by(row.method)
            found = first_difference(theirs.seen_by(row.method), ours)
            if found is not None:
                key, then, now = found
                return f"{row.cell}: {key} was {then!r} and is {now!r} here"
    return None


@dataclass(frozen=True)
class _Taker:
    """One kept row on its way into one comparison."""

    plan: Plan
    offer: Offer
    wanted: frozenset[FollowUp]

    def take(self, seed: int) -> None:
        """Put the seed's figures in its place, if it has none or adopted ones."""
        row, place = self.offer.row, self.plan.place(seed, self.offer.row.method)
        after = row.after.get(seed)
        if seed not in row.runs or (self.wanted and after is None):
            return
        if not is_begun(self.plan, seed):
            # The city could not be made, which the seed's rows will tell.
            return
        there = Measured.sound(place)
        if there is not None and there.adopted is None:
            return
        if row.then is not None and after is not None:
            after.save(place / row.then)
        if there is None:
            origin = store.Origin.now(as_plain(self.plan.experiment), seed)
            with store.writing(place):
                place.mkdir(parents=True, exist_ok=True)
                self._checked(seed).save(place, origin)
                with contextlib.suppress(FileNotFoundError):
                    (place / FAILED).unlink()

    def _checked(self, seed: int) -> Measured:
        """The kept run, of the people who stand in the run's folder."""
        run = self.offer.row.runs[seed]
        people, infected = _people(self.plan, seed)
        told = run.metrics["people"], run.metrics["prevalence"]
        share = infected / people
        same = math.isnan(told[1]) or math.isclose(told[1], share, rel_tol=1e-9)
        if told[0] != people or not same or not self._mean_is_kept:
            raise DataError(
                f"{self.offer.folder}: {self.offer.row.method}, {self.offer.row.cell}, "
                f"seed {seed}: its figures are of other people than this version "
                "makes by the same settings; nothing of it can be adopted"
            )
        more = {
            "prevalence": share,
            "infected": infected,
            "extinction_recall": self.plan.experiment.pathogen.extinction_recall,
        }
        return replace(run, metrics={**run.metrics, **more})

    @property
    def _mean_is_kept(self) -> bool:
        """Whether seeds that tell only their mean prevalence have it here too."""
        row = self.offer.row
        here = {seed for seed in self.plan.seeds if is_begun(self.plan, seed)}
        if row.prevalence is None or not set(row.runs) <= here:
            return True
        held = [_people(self.plan, seed) for seed in row.runs]
        mean = sum(infected / people for people, infected in held) / len(held)
        return math.isclose(mean, row.prevalence, rel_tol=1e-9)


def _people(plan: Plan, seed: int) -> tuple[int, int]:
    """How many people are hidden in the run of ``seed``, and infected of them."""
    hidden = Hidden.load(plan.run_folder(seed) / "hidden")
    truth = hidden.open("checking whose figures are adopted")
    return len(truth.person), int(truth.infected.sum())
