"""Definition of a study (methods and settings) and the plan of its comparisons.

A study is data: cells name a preset, overrides and methods. Runs are stored under a
hash of their settings, so that cells with equal settings share runs, also between
studies. ``epifalcon compare`` is a study with one cell in a user-defined folder.
This module does not import torch.
"""

import hashlib
import importlib.metadata
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.experiments.run_folder import (
    COMPARISON,
    METHODS,
    SETTINGS,
    require_settings,
)
from epifalcon.methods.registry import entry, names
from epifalcon.settings import as_plain, fingerprint, unknown_name
from epifalcon.types import Plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from epifalcon.experiments.simulation import CityInputs, Epidemic

Scale = Literal["hamlet", "full"]
"""A town of 2,000 people, or the paper's sizes."""
SCALES: Final[tuple[Scale, ...]] = get_args(Scale)
FollowUp = Literal["audit", "places", "sizes"]
"""Analysis of a finished run: all attacks of the privacy card, only attacks on claimed
places, or sizes of hypergraph and contact graph."""
ALL = "all"
_HASH = 12


class RunSource(Protocol):
    """Source of the runs of a cell, a frozen dataclass; part of the hash of a run."""

    @property
    def kind(self) -> str:
        """Name of the world."""

    def require(self) -> None:
        """Raise ``SettingsError`` if the world cannot be simulated here."""

    def city(self, experiment: Experiment, seed: int) -> "CityInputs":
        """Return the traces of ``seed``."""

    def epidemic(self, experiment: Experiment, seed: int) -> "Epidemic":
        """Return the tests of ``seed``, the held-out truth, and the history."""


@dataclass(frozen=True)
class Reference:
    """Reference that a row is compared with, on the same seeds."""

    name: str
    """Name in tables."""
    cell: str | None = None
    """Label of the reference cell; None for the row's own cell."""
    method: str | None = None
    """None for the row's own method."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Methods under one set of settings; each method is one row of a table."""

    label: str = ""
    """Unique within the study."""
    preset: str
    methods: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    world: RunSource | None = None
    """World of another simulator, instead of the city and outbreak of the settings."""
    group: str = ""
    """Cells of one group share a table. Rows compared with the same reference share one
    Holm adjustment."""
    facts: Plain = field(default_factory=dict)
    """Values that identify the cell, by name; used as plot axes and CSV columns."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles by method, instead of the registered ones."""
    against: tuple[Reference, ...] = ()
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Values printed in the paper, by method and metric."""
    then: FollowUp | None = None
    most_seeds: int | None = None
    """Maximum number of seeds; None for all."""

    def also(self, overrides: Sequence[str]) -> "Cell":
        """Return a copy of the cell with additional overrides."""
        return replace(self, overrides=(*self.overrides, *overrides))


@dataclass(frozen=True)
class Column:
    """An additional table column besides the metrics."""

    key: str
    title: str
    digits: int = 3
    in_terminal: bool = True
    """True if the column is also shown in the terminal."""


@dataclass(frozen=True)
class StudyPlot:
    """A plot and its caption, which is also its alternative text."""

    figure: "Figure | None"
    """None if there is nothing to draw; the plot is then omitted."""
    caption: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """Definition of one table or figure, of the paper or of this package."""

    name: str
    title: str
    what: str
    """Description in one line."""
    shows: str
    """Table or figure of the paper that the study reproduces."""
    cells: Callable[[Scale], Sequence[Cell]]
    draw: Callable[[Plain], Mapping[str, StudyPlot]]
    """Return plots of the result, by name."""
    metrics: tuple[str, ...] = ("dep", "auc", "f1", "accuracy", "bep")
    """Metrics of tables and comparisons, in this order; default: those of the paper."""
    columns: tuple[Column, ...] = ()
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Glossary entries for terms that only this study uses."""
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"hamlet": 2, "full": 5})
    """Default number of seeds."""
    cpu_hours: Mapping[Scale, float] = field(default_factory=dict)
    """Approximate CPU hours with the default number of seeds."""
    first_seed: int = 0
    recalibration: bool = False
    """True to add a table of risks recalibrated on masked people."""
    ranked: bool = False
    """True to sort rows by AUC instead of by cell."""
    notes: tuple[str, ...] = ()
    """Notes for readers of the tables."""
    scale_notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Notes that apply to one scale only."""
    more: Callable[[Any, Sequence[Plain]], dict[str, Any]] | None = None
    """Compute additional result entries from ``scheduler.StudyRun`` and rows."""


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """Scale, seeds, methods and cells of a study to run."""

    scale: Scale = "full"
    seeds: int | None = None
    """None for the study's default."""
    methods: tuple[str, ...] = ()
    """Methods to run; empty for all."""
    cells: tuple[str, ...] = ()
    """Labels of the cells to run; empty for all."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SettingsError(unknown_name("scale", str(self.scale), SCALES))
        if self.seeds is not None:
            whole(1, seeds=self.seeds)


@dataclass(frozen=True)
class Plan:
    """A comparison: settings, methods, seeds and folder."""

    folder: Path
    name: str
    """Name of the preset."""
    experiment: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    sources: tuple[Path, ...] = ()
    """User files that register methods."""
    overrides: tuple[str, ...] = ()
    label: str = ""
    """Label in progress messages if a study has several cells."""
    world: RunSource | None = None
    """As in ``Cell``."""

    def run_folder(self, seed: int) -> Path:
        """Return the folder of the run of ``seed``."""
        return self.folder / f"seed-{seed}"

    def place(self, seed: int, method: str) -> Path:
        """Return the folder of ``method`` in the run of ``seed``."""
        return self.run_folder(seed) / METHODS / method


@dataclass(frozen=True)
class StudyPlan:
    """The cells of a study and the comparisons that contain their runs."""

    study: Study
    scale: str
    """Empty for ``epifalcon compare``, which has no scales."""
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    plans: Mapping[str, Plan]
    """Comparison by cell label; cells with equal settings share one."""
    command: str
    """Command that runs or resumes this study."""
    partial: bool = False
    """True if less than the whole study was requested."""

    @property
    def comparisons(self) -> list[Plan]:
        """All distinct comparisons."""
        return list({plan.folder: plan for plan in self.plans.values()}.values())

    @property
    def runs(self) -> list[tuple[Cell, str, int]]:
        """Every cell, method and seed that is run, ordered by seed."""
        return [
            (cell, method, seed)
            for seed in self.seeds
            for cell in self.cells
            if seed in self.plans[cell.label].seeds
            for method in cell.methods
        ]


def plan_study(study: Study, request: StudyRequest, work: Path) -> StudyPlan:
    """Plan the part of ``study`` requested by ``request``; write nothing."""
    count = study.seeds[request.scale] if request.seeds is None else request.seeds
    seeds = tuple(range(study.first_seed, study.first_seed + count))
    cells = _requested(study, request)
    plans: dict[str, Plan] = {}
    by_folder: dict[Path, Plan] = {}
    for cell in cells:
        plan = _plan(cell, seeds[: cell.most_seeds], work)
        same = by_folder.get(plan.folder)
        if same is not None:
            methods = tuple(dict.fromkeys((*same.methods, *plan.methods)))
            seeds_of_both = max(same.seeds, plan.seeds, key=len)
            plan = replace(same, methods=methods, seeds=seeds_of_both)
        by_folder[plan.folder] = plan
        plans[cell.label] = plan
    plans = {label: by_folder[plan.folder] for label, plan in plans.items()}
    # A cell may have fewer seeds than requested.
    seeds = max((plan.seeds for plan in plans.values()), key=len, default=seeds)
    arguments = ["epifalcon", "study", "run", study.name, "--scale", request.scale]
    arguments += ["--seeds", str(len(seeds))]
    if request.methods:
        arguments += ["--methods", ",".join(request.methods)]
    for label in request.cells:
        arguments += ["--cell", label]
    command, partial = shlex.join(arguments), bool(request.methods or request.cells)
    return StudyPlan(study, request.scale, seeds, tuple(cells), plans, command, partial)


def _requested(study: Study, request: StudyRequest) -> list[Cell]:
    """Return the requested cells with the requested methods, without empty cells."""
    cells = list(study.cells(request.scale))
    labels = [cell.label for cell in cells]
    for label in request.cells:
        if label not in labels:
            raise SettingsError(unknown_name("cell", label, labels))
    cells = [cell for cell in cells if not request.cells or cell.label in request.cells]
    if not request.methods:
        return cells
    requested = {entry(name).name for name in request.methods}
    available = {method for cell in cells for method in cell.methods}
    if missing := sorted(requested - available):
        raise SettingsError(
            f"study {study.name} has no method {', '.join(missing)}, only "
            f"{', '.join(sorted(available))}"
        )
    chosen = [
        replace(cell, methods=tuple(one for one in cell.methods if one in requested))
        for cell in cells
    ]
    return [cell for cell in chosen if cell.methods]


def _plan(cell: Cell, seeds: tuple[int, ...], work: Path) -> Plan:
    experiment = Experiment.load(cell.preset, list(cell.overrides))
    # Another version of the package may give different results.
    version = importlib.metadata.version("epifalcon")
    values = {"settings": as_plain(experiment), "epifalcon": version}
    name = Path(cell.preset).stem.replace("+", "-")
    if cell.world is not None:
        values, name = {**values, "world": as_plain(cell.world)}, cell.world.kind
    key = fingerprint(values)
    return Plan(
        folder=work / f"{name}-{key[:_HASH]}",
        name=cell.preset,
        experiment=experiment,
        methods=cell.methods,
        seeds=seeds,
        overrides=cell.overrides,
        label=cell.label,
        world=cell.world,
    )


def plan_comparison(
    folder: Path,
    *,
    preset: str | None = None,
    overrides: tuple[str, ...] = (),
    methods: str = ALL,
    seeds: int = 5,
    first_seed: int = 0,
    sources: tuple[Path, ...] = (),
) -> Plan:
    """Plan the comparison in ``folder``; write nothing.

    Without a preset, the settings are those of the folder, or ``hamlet`` in a new one.
    Settings that differ from those stored in the folder raise an error.
    """
    whole(1, seeds=seeds)
    whole(0, first_seed=first_seed)
    chosen = method_names(methods)
    manifest = comparison_manifest(folder)
    name = preset or DEFAULT_PRESET
    stored = manifest is not None and preset is None
    experiment = Experiment.load(
        str(folder / SETTINGS) if stored else name, list(overrides)
    )
    if manifest is not None:
        require_settings(folder, manifest["settings"], experiment)
        name, overrides = manifest["meta"]["name"], tuple(manifest["meta"]["overrides"])
    numbers = tuple(range(first_seed, first_seed + seeds))
    return Plan(folder, name, experiment, chosen, numbers, sources, overrides)


def method_names(text: str) -> tuple[str, ...]:
    """Parse comma-separated method names without duplicates; ``all`` means all."""
    methods: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if word:
            methods += names() if word == ALL else [entry(word).name]
    if not methods:
        raise SettingsError(
            "--methods names no method: give all, or names separated by commas"
        )
    return tuple(dict.fromkeys(methods))


def comparison_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the comparison in ``folder``; None if there is none."""
    manifest = store.occupant(folder, COMPARISON)
    return None if manifest is None else store.verify(folder)


def source_sha256(method: str, sources: Sequence[Path]) -> str | None:
    """Return the SHA-256 of the user file that registers ``method``; else None."""
    if method not in names():
        return None
    module = sys.modules.get(entry(method).target.partition(":")[0])
    path = getattr(module, "__file__", None)
    for source in sources:
        if path is not None and source.resolve() == Path(path).resolve():
            return hashlib.sha256(source.read_bytes()).hexdigest()
    return None
