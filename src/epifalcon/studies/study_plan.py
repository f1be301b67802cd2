"""What running a study means: its cells, and the comparisons that hold their runs.

Runs are kept under a hash of their settings. Cells of equal settings share their
runs, in one study or in several.
"""

import importlib.metadata
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from epifalcon.baselines.catalogue import entry
from epifalcon.errors import SettingsError
from epifalcon.settings import as_plain, fingerprint, unknown_name
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.study import Asked, Cell, Scale, Study
from epifalcon.studies.study_costs import cpu_seconds

_HASH = 12


@dataclass(frozen=True)
class Planned:
    """A study's cells with the comparison that each one's runs stand in."""

    study: Study
    scale: Scale
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    plans: Mapping[str, Plan]
    """By a cell's label; of cells with equal settings, the same one."""
    asked: Asked = field(default_factory=Asked)

    @property
    def comparisons(self) -> list[Plan]:
        """Each comparison once."""
        return list({plan.folder: plan for plan in self.plans.values()}.values())

    @property
    def command(self) -> str:
        """The words that make this study, or go on with it."""
        words = ["epifalcon", "study", "run", self.study.name, "--scale", self.scale]
        words += ["--seeds", str(len(self.seeds))]
        if self.asked.methods:
            words += ["--methods", ",".join(self.asked.methods)]
        for label in self.asked.cells:
            words += ["--cell", label]
        return shlex.join(words)

    @property
    def partial(self) -> bool:
        """Whether less than the whole study was asked for."""
        return bool(self.asked.methods or self.asked.cells)

    @property
    def runs(self) -> int:
        """Runs of methods, in all."""
        return sum(
            len(self.plans[cell.label].seeds) * len(cell.methods) for cell in self.cells
        )

    @property
    def cpu_hours(self) -> float:
        """About what all runs take, by what methods took before."""
        seconds = sum(
            cpu_seconds(self.plans[cell.label].experiment, method, cell.then)
            * len(self.plans[cell.label].seeds)
            for cell in self.cells
            for method in cell.methods
        )
        return seconds / 3600


def plan_study(study: Study, asked: Asked, work: Path) -> Planned:
    """What ``asked`` means for ``study``; nothing is written yet."""
    count = study.seeds[asked.scale] if asked.seeds is None else asked.seeds
    seeds = tuple(range(study.first_seed, study.first_seed + count))
    cells = _chosen(study, _labelled(study, asked), asked.methods)
    plans: dict[str, Plan] = {}
    by_folder: dict[Path, Plan] = {}
    for cell in cells:
        made = _plan(cell, seeds[: cell.most_seeds], work)
        same = by_folder.get(made.folder)
        if same is not None:
            methods = tuple(dict.fromkeys((*same.methods, *made.methods)))
            seeds_of_both = max(same.seeds, made.seeds, key=len)
            made = replace(same, methods=methods, seeds=seeds_of_both)
        by_folder[made.folder] = made
        plans[cell.label] = made
    plans = {label: by_folder[plan.folder] for label, plan in plans.items()}
    # A setting may take fewer seeds than were asked for.
    seeds = max((plan.seeds for plan in plans.values()), key=len, default=seeds)
    return Planned(study, asked.scale, seeds, tuple(cells), plans, asked)


def _labelled(study: Study, asked: Asked) -> list[Cell]:
    """The cells asked for, in the study's order."""
    cells = list(study.cells(asked.scale))
    labels = [cell.label for cell in cells]
    for wanted in asked.cells:
        if wanted not in labels:
            raise SettingsError(unknown_name("cell", wanted, labels))
    return [cell for cell in cells if not asked.cells or cell.label in asked.cells]


def _chosen(
    study: Study, cells: Sequence[Cell], methods: tuple[str, ...]
) -> list[Cell]:
    """The cells with the methods asked for; those without any are left out."""
    if not methods:
        return list(cells)
    wanted = {entry(one).name for one in methods}
    there = {method for cell in cells for method in cell.methods}
    if missing := sorted(wanted - there):
        raise SettingsError(
            f"study {study.name} has no method {', '.join(missing)}, only "
            f"{', '.join(sorted(there))}"
        )
    kept = [
        replace(cell, methods=tuple(one for one in cell.methods if one in wanted))
        for cell in cells
    ]
    return [cell for cell in kept if cell.methods]


def _plan(cell: Cell, seeds: tuple[int, ...], work: Path) -> Plan:
    experiment = Experiment.load(cell.preset, list(cell.overrides))
    # Another version may come to other figures.
    version = importlib.metadata.version("epifalcon")
    key = fingerprint({"settings": as_plain(experiment), "epifalcon": version})
    name = Path(cell.preset).stem.replace("+", "-")
    folder = work / f"{name}-{key[:_HASH]}"
    return Plan(
        folder,
        cell.preset,
        experiment,
        cell.methods,
        seeds,
        (),
        cell.overrides,
        cell.label,
    )
