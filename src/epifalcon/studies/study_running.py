"""Run a study: what is not done yet, in processes of its own, then what follows.

Everything is kept under the work folder by a hash of its settings, so a study
that was stopped goes on where it was and a finished one is only read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from epifalcon.progress import Progress
from epifalcon.studies.adopting import Adoption, plan_adoption
from epifalcon.studies.comparing import Crew, Found
from epifalcon.studies.comparing_many import compare_all
from epifalcon.studies.follow_ups import Followed, Wish, follow_up
from epifalcon.studies.measurements import Failed, Measured
from epifalcon.studies.study import Cell
from epifalcon.studies.study_plan import Planned


@dataclass(frozen=True)
class Ran:
    """What a study's runs left, and what failed."""

    planned: Planned
    found: Mapping[str, Found]
    """By a cell's label, then by method and seed."""

    def measured(self, cell: Cell, method: str) -> dict[int, Measured | Failed]:
        """What ``method`` earned in ``cell``, by seed."""
        return dict(self.found[cell.label][method])

    def followed(self, cell: Cell, method: str, seed: int) -> Followed | Failed | None:
        """What followed a run; None where nothing was to follow."""
        wish = wish_of(self.planned, cell, method, seed)
        return None if wish is None else wish.found

    @property
    def cpu_hours(self) -> float:
        """Of all runs and follow-ups together, each counted once."""
        spent: dict[Path, float] = {}
        for cell, method, seed in runs_of(self.planned):
            one = self.found[cell.label][method][seed]
            if isinstance(one, Measured):
                place = self.planned.plans[cell.label].place(seed, method)
                spent[place] = one.cpu_seconds or one.seconds
            wish = wish_of(self.planned, cell, method, seed)
            if wish is not None and isinstance(after := wish.found, Followed):
                spent[wish.place] = after.cpu_seconds
        return sum(spent.values()) / 3600


def run_study(
    planned: Planned,
    crew: Crew,
    progress: Progress,
    adoption: Adoption | None = None,
) -> Ran:
    """Do what is not done yet, and hand back all that the study asks for.

    Runs that ``adoption`` has are not run.
    """
    plans = planned.comparisons
    taken = adoption or plan_adoption(planned, ())
    by_folder = dict(
        zip(
            (plan.folder for plan in plans),
            compare_all(plans, crew, progress, taken),
            strict=True,
        )
    )
    found = {
        cell.label: by_folder[planned.plans[cell.label].folder]
        for cell in planned.cells
    }
    follow_up(_wishes(planned, found), crew, progress)
    return Ran(planned, found)


def runs_of(planned: Planned) -> Iterator[tuple[Cell, str, int]]:
    """Every cell, method and seed, seed by seed."""
    for seed in planned.seeds:
        for cell in planned.cells:
            if seed not in planned.plans[cell.label].seeds:
                continue
            for method in cell.methods:
                yield cell, method, seed


def wish_of(planned: Planned, cell: Cell, method: str, seed: int) -> Wish | None:
    """What is to follow the run of ``method`` in ``cell``."""
    if cell.then is None:
        return None
    run = planned.plans[cell.label].run_folder(seed)
    name = f"{cell.then} of {method}, {cell.label} (seed {seed})"
    return Wish(run, method, cell.then, name)


def _wishes(planned: Planned, found: Mapping[str, Found]) -> list[Wish]:
    """Of runs that have ended well, each once."""
    wishes: dict[Path, Wish] = {}
    for cell, method, seed in runs_of(planned):
        wish = wish_of(planned, cell, method, seed)
        done = isinstance(found[cell.label][method][seed], Measured)
        if wish is not None and done:
            wishes.setdefault(wish.place, wish)
    return list(wishes.values())
