"""The settings of both models, apart from the code that needs torch.

Settings are read by commands that only list or check them, and torch alone
takes seconds to load.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from epifalcon.checks import one_of, positive, unit_interval, whole
from epifalcon.epidemic.cases import CaseSettings
from epifalcon.errors import DataError, SettingsError

if TYPE_CHECKING:
    import torch

InputKind = Literal["embedding", "status"]
GradientPath = Literal["auto", "local", "exchanged"]
MacroCases = Literal["auto", "reported", "all", "none"]
Head = Literal["linear", "lstm"]
RegionKind = Literal["dcrnn", "gru"]
PAPER_RATE: Final = 0.001
TRIED_RATES: Final = (0.01, 0.003)


@dataclass(frozen=True, kw_only=True)
class FalconSettings:
    """The person model and its training; the paper's values by default."""

    width: int = 32
    layers: int = 2
    dropout: float = 0.2
    """Share of each layer's outputs left out in training."""
    input_dropout: float = 0.0
    """The same for the input rows."""
    learning_rate: float | None = None
    """None: without privacy 0.01 and 0.003 are both tried, and validation people
    choose by log loss, as for every network; with privacy, where each training is a
    release, and over sites the paper's 0.001."""
    learning_rate_milestones: tuple[int, ...] = ()
    """Rounds at which the learning rate is multiplied by ``learning_rate_gamma``."""
    learning_rate_gamma: float = 0.7
    weight_decay: float = 0.0005
    rounds: int = 500
    window_slots: int = 1
    """Slots joined into one edge of the hypergraph."""
    input: InputKind = "embedding"
    """``embedding``: a free row for each person, kept at home. ``status``: an
    embedding of the known status that all share, so new people can be scored."""
    embedding_scale: float = 0.1
    """Standard deviation of the first embeddings: with 1 they have hardly moved
    after 500 small steps."""
    mask_share: float = 0.5
    """Share of the tested people whose status a round hides and asks for
    (``status`` only)."""
    gradient_path: GradientPath = "auto"
    """``local``: others' rows are constants, as in algorithm 2. ``exchanged``:
    gradient rows travel like rows, which gives the exact gradient. ``auto``:
    exchanged without privacy, where it costs nothing, otherwise local."""
    head: Head = "linear"
    """``lstm``: an LSTM cell of width 16, applied once, before the linear head, as in
    the authors' program."""
    class_weights: tuple[float, float] | None = None
    """Weight of a negative and of a positive person in the loss."""
    precision: Literal["single", "double"] = "single"

    def __post_init__(self) -> None:
        whole(1, width=self.width, layers=self.layers, rounds=self.rounds)
        whole(1, window_slots=self.window_slots)
        positive(mask_share=self.mask_share)
        if self.learning_rate is not None:
            positive(learning_rate=self.learning_rate)
        positive(embedding_scale=self.embedding_scale)
        unit_interval(mask_share=self.mask_share, weight_decay=self.weight_decay)
        for name in ("dropout", "input_dropout"):
            unit_interval(**{name: getattr(self, name)})
            if getattr(self, name) == 1:
                raise SettingsError(f"{name}=1 would leave nothing: choose less")
        one_of(get_args(InputKind), input=self.input)
        one_of(get_args(GradientPath), gradient_path=self.gradient_path)
        one_of(get_args(Head), head=self.head)
        for milestone in self.learning_rate_milestones:
            whole(1, learning_rate_milestones=milestone)
        positive(learning_rate_gamma=self.learning_rate_gamma)
        one_of(("single", "double"), precision=self.precision)
        if self.class_weights is not None:
            negative, infected = self.class_weights
            positive(class_weight_0=negative, class_weight_1=infected)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 1."""
        rate = PAPER_RATE if self.learning_rate is None else self.learning_rate
        passed = sum(step > milestone for milestone in self.learning_rate_milestones)
        return rate * self.learning_rate_gamma**passed

    @property
    def dtype(self) -> "torch.dtype":
        """Of every row and parameter."""
        import torch

        return torch.float64 if self.precision == "double" else torch.float32


@dataclass(frozen=True, kw_only=True)
class DcrnnSettings:
    """Kind and size of the region network."""

    kind: RegionKind = "dcrnn"
    """``dcrnn``: the paper's network on each day's flows. ``gru``: that of the
    authors' program, which has no graph (see ``models.region_gru``); it reads
    ``hidden_width``, ``training.steps`` and ``training.learning_rate`` alone."""
    hidden_width: int = 32
    """Numbers kept for each region and day: the width of E_m."""
    diffusion_steps: int = 2
    """How many steps of each random walk a convolution sees (K)."""

    def __post_init__(self) -> None:
        one_of(get_args(RegionKind), kind=self.kind)
        whole(1, hidden_width=self.hidden_width)
        whole(0, diffusion_steps=self.diffusion_steps)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a region model is fitted."""

    steps: int = 100
    """Steps of Adam at most, each over all regions and training days."""
    origins_per_step: int = 4
    """How many training days, drawn anew each step, are forecast from in it."""
    learning_rate: float = 0.01
    gradient_clip: float = 5.0
    """Bound of the gradient's L2 norm over all parameters."""
    horizon: int = 3
    """How many days ahead are foretold and trained."""
    validation_share: float = 0.2
    """Share of the days, the last ones, that choose the step to stop at."""
    patience: int = 15
    """Steps without a better validation error after which training ends."""
    visitors: bool = False
    """Whether the network also sees how many people were in a region that day."""

    def __post_init__(self) -> None:
        whole(1, steps=self.steps, horizon=self.horizon, patience=self.patience)
        whole(1, origins_per_step=self.origins_per_step)
        positive(learning_rate=self.learning_rate, gradient_clip=self.gradient_clip)
        unit_interval(validation_share=self.validation_share)
        positive(validation_share=self.validation_share)

    def first_validation_day(self, days: int) -> int:
        """The day at which validation begins; raises where too few days are left."""
        first = days - max(1, round(days * self.validation_share))
        if first <= self.horizon:
            raise DataError(
                f"{days} days leave {first} for training, but horizon={self.horizon} "
                f"needs {self.horizon + 1}: give more days or a smaller horizon"
            )
        return first


@dataclass(frozen=True, kw_only=True)
class RegionSettings:
    """The region model: what it sees, its network and its training."""

    macro_cases: MacroCases = "auto"
    """``reported``: cases of tested people. ``all``: of everybody, hidden people
    included, as in the authors' program: a leak, and marked wherever it is told.
    ``none``: no region model. ``auto``: reported, but none in mode ``local``,
    since cases by region and day would leave without protection."""
    cases: CaseSettings = field(default_factory=CaseSettings)
    """How cases become numbers of regions and days. Of everybody's cases only
    ``measure`` is used."""
    folds: int = 4
    """Parts of the tested people for cross-fitting the states."""
    network: DcrnnSettings = field(default_factory=DcrnnSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    scale_states: bool = True
    """Centre and scale people's mean region states before the person model reads
    them. The authors' program uses them as they are."""

    def __post_init__(self) -> None:
        one_of(get_args(MacroCases), macro_cases=self.macro_cases)
        whole(2, folds=self.folds)

    @property
    def is_published(self) -> bool:
        """Whether network and coupling are the paper's, not those of its program."""
        return self.network.kind == "dcrnn" and self.scale_states
