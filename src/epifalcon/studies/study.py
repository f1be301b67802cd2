"""A study: which methods under which settings, and what is shown of their figures.

A study is data. Its cells name a preset, what is changed in it and the methods
that run there; how cells are run, kept and tabled is the same for all studies.
Free of torch.
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
"""What is measured on a finished run: every attack of the privacy card, attacks on
claimed places alone, or how large hypergraph and contact graph are."""
KIND: Final = "study"
"""What the manifest of a finished one says it holds."""
TABLE: Final = "table"
"""Of the files that hold the result: ``table.json`` and others."""
ACCURACY: Final = ("dep", "auc", "f1", "accuracy", "bep")
"""The paper's metrics, in its order."""


@dataclass(frozen=True)
class Against:
    """What a row's figures are held against, on the same seeds."""

    name: str
    """As tables call it."""
    cell: str | None = None
    """None: the row's own."""
    method: str | None = None
    """None: the row's own."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Methods under one set of settings: one line of a table for each."""

    label: str
    """Of its own in the study."""
    preset: str
    methods: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    group: str = ""
    """Cells of one group stand in one table. Rows held against a reference of one
    group share Holm's adjustment."""
    facts: Plain = field(default_factory=dict)
    """What sets the cell apart, by name: a figure's axis, a column of the CSV."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """What a method is called here, where its usual name does not do."""
    against: tuple[Against, ...] = ()
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's figures, by method and metric."""
    then: FollowUp | None = None
    most_seeds: int | None = None
    """The first so many seeds alone; None for all. Each row tells its seeds."""


@dataclass(frozen=True)
class Column:
    """A figure that a table shows beside the metrics."""

    key: str
    title: str
    digits: int = 3
    on_screen: bool = True
    """Whether a terminal shows it too, which has room for few."""


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


def _nothing_more(_ran: Any, _rows: Sequence[Plain]) -> dict[str, Any]:  # noqa: ANN401
    return {}


def _nothing_told(_result: Plain) -> Sequence[str]:
    return ()


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
    """Pictures of the result, by name."""
    metrics: tuple[str, ...] = ACCURACY
    """Shown and held against others, in this order."""
    columns: tuple[Column, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """What words mean that only this study's tables have."""
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"hamlet": 2, "full": 5})
    """How many, unless told."""
    cpu_hours: Mapping[Scale, float] = field(default_factory=dict)
    """Approximate cost with that many seeds."""
    first_seed: int = 0
    recalibration: bool = False
    """Whether there is a table of risks recalibrated on masked people."""
    ranked: bool = False
    """Whether rows stand by AUC, and not as the cells do."""
    notes: tuple[str, ...] = ()
    """What a reader of the tables must know."""
    scale_notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same, for one scale alone."""
    read: Callable[[Plain], Sequence[str]] = _nothing_told
    """What the result says that only this study can: sentences. With none it is told
    which method of each group ranks best."""
    more: Callable[[Any, Sequence[Plain]], dict[str, Any]] = _nothing_more
    """What else the result holds, for the pictures, from ``scheduler.StudyRun`` and
    the rows."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a study is wanted."""

    scale: Scale = "full"
    seeds: int | None = None
    """None for as many as the study usually has."""
    methods: tuple[str, ...] = ()
    """These alone; none for all."""
    cells: tuple[str, ...] = ()
    """Labels of these alone; none for all."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SettingsError(unknown_name("scale", str(self.scale), SCALES))
        if self.seeds is not None:
            whole(1, seeds=self.seeds)


def keyed(rows: Sequence[Plain]) -> dict[str, Plain]:
    """Rows of one group by method; by cell too where a method comes again."""
    keyed: dict[str, Plain] = {}
    for row in rows:
        method = row["method"]
        keyed[method if method not in keyed else f"{method}: {row['cell']}"] = row
    return keyed
