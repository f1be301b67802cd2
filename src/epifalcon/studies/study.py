"""A study: which methods under which settings, and how their results are shown.

A study is data. Its cells name a preset, overrides and the methods that run there;
running, storing and tabulating them is the same for all studies. Free of torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.settings import unknown_name
from epifalcon.types import Plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["hamlet", "full"]
"""A town of 2,000 people, or the paper's sizes."""
SCALES: Final[tuple[Scale, ...]] = get_args(Scale)
FollowUp = Literal["audit", "places", "sizes"]
"""Analysis of a finished run: every attack of the privacy card, attacks on claimed
places alone, or sizes of hypergraph and contact graph."""
KIND: Final = "study"
"""Kind of a finished study in its manifest."""
TABLE: Final = "table"
"""Name of the files with the result: ``table.json`` and others."""


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

    label: str
    """Unique in the study."""
    preset: str
    methods: tuple[str, ...]
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


@dataclass(frozen=True)
class Column:
    """A figure that a table shows beside the metrics."""

    key: str
    title: str
    digits: int = 3
    on_screen: bool = True
    """Whether a terminal, which has room for few, shows it too."""


EPSILON: Final = Column("epsilon_person", "epsilon of a person", on_screen=False)
"""The true epsilon, of methods that noise what leaves a device."""


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
