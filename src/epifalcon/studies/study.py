"""A study: which methods under which settings, and the comparisons that run them.

A study is data: cells name a preset, overrides and methods. Runs are stored under a
hash of their settings, so that cells of equal settings share them, in one study or in
several. ``epifalcon compare`` is a study of one cell in a folder of the user's choice.
Free of torch.
"""

import hashlib
import importlib.metadata
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

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

Scale = Literal["hamlet", "full"]
"""A town of 2,000 people, or the paper's sizes."""
SCALES: Final[tuple[Scale, ...]] = get_args(Scale)
FollowUp = Literal["audit", "places", "sizes"]
"""Analysis of a finished run: every attack of the privacy card, attacks on claimed
places alone, or sizes of hypergraph and contact graph."""
ALL = "all"
_HASH = 12


@dataclass(frozen=True)
class Against:
    """The reference of a row's differences, on the same seeds."""

    name: str
    """Shown in tables."""
    cell: str | None = None
    """None: the row's own."""
    method: str | None = None
    """None: the row's own."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Methods under one set of settings: one line of a table for each."""

    label: str = ""
    """Unique in the study."""
    preset: str
    methods: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    group: str = ""
    """Cells of one group share a table. Rows compared with a reference of one group
    share Holm's adjustment."""
    facts: Plain = field(default_factory=dict)
    """What distinguishes the cell, by name: a plot's axis, a column of the CSV."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles of methods that differ from their usual ones."""
    against: tuple[Against, ...] = ()
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's figures, by method and metric."""
    then: FollowUp | None = None
    most_seeds: int | None = None
    """Only the first so many seeds; None for all."""

    def also(self, overrides: Sequence[str]) -> "Cell":
        """Return the cell with further overrides."""
        return replace(self, overrides=(*self.overrides, *overrides))


@dataclass(frozen=True)
class Column:
    """A figure that a table shows beside the metrics."""

    key: str
    title: str
    digits: int = 3
    on_screen: bool = True
    """Whether a terminal, which has room for few, shows it too."""


@dataclass(frozen=True)
class Drawn:
    """A plot and its caption, which is also its alternative text."""

    figure: "Figure"
    caption: str


def drawn(name: str, figure: "Figure | None", caption: str) -> dict[str, Drawn]:
    """Return the plot by its name; nothing if there is no figure."""
    return {} if figure is None else {name: Drawn(figure, caption)}


@dataclass(frozen=True, kw_only=True)
class Study:
    """One table or figure of the paper, or one of our own."""

    name: str
    title: str
    what: str
    """In one line."""
    shows: str
    """The paper's table or figure."""
    cells: Callable[[Scale], Sequence[Cell]]
    draw: Callable[[Plain], Mapping[str, Drawn]]
    """Return plots of the result, by name."""
    metrics: tuple[str, ...] = ("dep", "auc", "f1", "accuracy", "bep")
    """Shown and compared, in this order; by default the paper's."""
    columns: tuple[Column, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """Meaning of words that only this study's tables have."""
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"hamlet": 2, "full": 5})
    """Default number of seeds."""
    cpu_hours: Mapping[Scale, float] = field(default_factory=dict)
    """Approximate cost with that many seeds."""
    first_seed: int = 0
    recalibration: bool = False
    """Whether there is a table of risks recalibrated on masked people."""
    ranked: bool = False
    """Whether rows are ordered by AUC, and not by cell."""
    notes: tuple[str, ...] = ()
    """What a reader of the tables must know."""
    scale_notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same, for one scale alone."""
    more: Callable[[Any, Sequence[Plain]], dict[str, Any]] | None = None
    """Further parts of the result, for plots, from ``scheduler.StudyRun`` and rows."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The part of a study that is requested."""

    scale: Scale = "full"
    seeds: int | None = None
    """None for the study's default."""
    methods: tuple[str, ...] = ()
    """Only these; none for all."""
    cells: tuple[str, ...] = ()
    """Only the cells with these labels; none for all."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SettingsError(unknown_name("scale", str(self.scale), SCALES))
        if self.seeds is not None:
            whole(1, seeds=self.seeds)


@dataclass(frozen=True)
class Plan:
    """Which methods on which seeds, in which folder."""

    folder: Path
    name: str
    """Of the preset."""
    experiment: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    sources: tuple[Path, ...] = ()
    """The user's files that have registered methods."""
    overrides: tuple[str, ...] = ()
    label: str = ""
    """Shown with progress, where a study has several cells."""

    def run_folder(self, seed: int) -> Path:
        """Return the folder of the run of ``seed``."""
        return self.folder / f"seed-{seed}"

    def place(self, seed: int, method: str) -> Path:
        """Return the folder of ``method`` in the run of ``seed``."""
        return self.run_folder(seed) / METHODS / method


@dataclass(frozen=True)
class Planned:
    """A study's cells with the comparison that holds the runs of each."""

    study: Study
    scale: str
    """Empty for a comparison, which has one size only."""
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    plans: Mapping[str, Plan]
    """By a cell's label; the same one for cells with equal settings."""
    command: str
    """The command that makes this study, or resumes it."""
    partial: bool = False
    """True if less than the whole study was requested."""

    @property
    def comparisons(self) -> list[Plan]:
        """Each comparison once."""
        return list({plan.folder: plan for plan in self.plans.values()}.values())

    @property
    def runs(self) -> int:
        """The number of runs of methods."""
        return sum(
            len(self.plans[cell.label].seeds) * len(cell.methods) for cell in self.cells
        )


def plan_study(study: Study, asked: Asked, work: Path) -> Planned:
    """Plan the part of ``study`` that ``asked`` names; nothing is written yet."""
    count = study.seeds[asked.scale] if asked.seeds is None else asked.seeds
    seeds = tuple(range(study.first_seed, study.first_seed + count))
    cells = _requested(study, asked)
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
    # A cell may have fewer seeds than requested.
    seeds = max((plan.seeds for plan in plans.values()), key=len, default=seeds)
    words = ["epifalcon", "study", "run", study.name, "--scale", asked.scale]
    words += ["--seeds", str(len(seeds))]
    if asked.methods:
        words += ["--methods", ",".join(asked.methods)]
    for label in asked.cells:
        words += ["--cell", label]
    command, partial = shlex.join(words), bool(asked.methods or asked.cells)
    return Planned(study, asked.scale, seeds, tuple(cells), plans, command, partial)


def _requested(study: Study, asked: Asked) -> list[Cell]:
    """Return the requested cells with the requested methods; none without methods."""
    cells = list(study.cells(asked.scale))
    labels = [cell.label for cell in cells]
    for label in asked.cells:
        if label not in labels:
            raise SettingsError(unknown_name("cell", label, labels))
    cells = [cell for cell in cells if not asked.cells or cell.label in asked.cells]
    if not asked.methods:
        return cells
    wanted = {entry(one).name for one in asked.methods}
    there = {method for cell in cells for method in cell.methods}
    if missing := sorted(wanted - there):
        raise SettingsError(
            f"study {study.name} has no method {', '.join(missing)}, only "
            f"{', '.join(sorted(there))}"
        )
    chosen = [
        replace(cell, methods=tuple(one for one in cell.methods if one in wanted))
        for cell in cells
    ]
    return [cell for cell in chosen if cell.methods]


def _plan(cell: Cell, seeds: tuple[int, ...], work: Path) -> Plan:
    experiment = Experiment.load(cell.preset, list(cell.overrides))
    # Another version may compute other figures.
    version = importlib.metadata.version("epifalcon")
    key = fingerprint({"settings": as_plain(experiment), "epifalcon": version})
    name = Path(cell.preset).stem.replace("+", "-")
    return Plan(
        folder=work / f"{name}-{key[:_HASH]}",
        name=cell.preset,
        experiment=experiment,
        methods=cell.methods,
        seeds=seeds,
        overrides=cell.overrides,
        label=cell.label,
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
    """Plan the comparison in ``folder``; nothing is written yet.

    Without a preset, the settings are those of the folder, or ``hamlet`` in a new one.
    Other settings than those it was begun with are refused.
    """
    whole(1, seeds=seeds)
    whole(0, first_seed=first_seed)
    chosen = method_names(methods)
    begun = begun_with(folder)
    name = preset or DEFAULT_PRESET
    stored = begun is not None and preset is None
    experiment = Experiment.load(
        str(folder / SETTINGS) if stored else name, list(overrides)
    )
    if begun is not None:
        require_settings(folder, begun["settings"], experiment)
        name, overrides = begun["meta"]["name"], tuple(begun["meta"]["overrides"])
    numbers = tuple(range(first_seed, first_seed + seeds))
    return Plan(folder, name, experiment, chosen, numbers, sources, overrides)


def method_names(text: str) -> tuple[str, ...]:
    """Return the method names between commas, each once; ``all`` means every one."""
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if word:
            found += names() if word == ALL else [entry(word).name]
    if not found:
        raise SettingsError("--methods names no method: all, or names between commas")
    return tuple(dict.fromkeys(found))


def begun_with(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the comparison in ``folder``; None if none was begun."""
    found = store.occupant(folder, COMPARISON)
    return None if found is None else store.verify(folder)


def source_sha256(method: str, sources: Sequence[Path]) -> str | None:
    """Return the hash of the user's file that registered ``method``; None for ours."""
    if method not in names():
        return None
    module = sys.modules.get(entry(method).target.partition(":")[0])
    home = getattr(module, "__file__", None)
    for source in sources:
        if home is not None and source.resolve() == Path(home).resolve():
            return hashlib.sha256(source.read_bytes()).hexdigest()
    return None
