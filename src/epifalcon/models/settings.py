"""The settings of both models, apart from the code that needs torch."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from epifalcon.checks import (
    Checked,
    Count,
    CountOrZero,
    Positive,
    Share,
    positive,
    whole,
)
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


def _less_than_one(**values: float) -> None:
    for name, value in values.items():
        if value == 1:
            raise SettingsError(f"{name}=1 would leave nothing: choose less")


Dropout = Annotated[Share, _less_than_one]


@dataclass(frozen=True, kw_only=True)
class FalconSettings(Checked):
    """The person model and its training; the paper's values by default."""

    width: Count = 32
    layers: Count = 2
    dropout: Dropout = 0.2
    """Share of each layer's outputs left out in training."""
    input_dropout: Dropout = 0.0
    """The same for the input rows."""
    learning_rate: Positive | None = None
    """None: without privacy 0.01 and 0.003 are both tried, and validation people
    choose by log loss, as for every network; with privacy, where each training is a
    release, and over sites the paper's 0.001."""
    learning_rate_milestones: tuple[Count, ...] = ()
    """Rounds at which the learning rate is multiplied by ``learning_rate_gamma``."""
    learning_rate_gamma: Positive = 0.7
    weight_decay: Share = 0.0005
    rounds: Count = 500
    window_slots: Count = 1
    """Slots joined into one edge of the hypergraph."""
    input: InputKind = "embedding"
    """``embedding``: a free row for each person, kept at home. ``status``: an
    embedding of the known status that all share, so new people can be scored."""
    embedding_scale: Positive = 0.1
    """Standard deviation of the first embeddings: with 1 they have hardly moved
    after 500 small steps."""
    mask_share: Annotated[Share, positive] = 0.5
    """Share of the tested people whose status a round hides and asks for
    (``status`` only)."""
    gradient_path: GradientPath = "auto"
    """``local``: others' rows are constants, as in algorithm 2. ``exchanged``:
    gradient rows travel like rows, which gives the exact gradient. ``auto``:
    exchanged without privacy, where it costs nothing, otherwise local."""
    head: Head = "linear"
    """``lstm``: an LSTM cell of width 16, applied once, before the linear head, as in
    the authors' program."""
    class_weights: tuple[Positive, Positive] | None = None
    """Weight of a negative and of a positive person in the loss."""
    precision: Literal["single", "double"] = "single"

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
class DcrnnSettings(Checked):
    """Kind and size of the region network."""

    kind: RegionKind = "dcrnn"
    """``dcrnn``: the paper's network on each day's flows. ``gru``: that of the
    authors' program, which has no graph (see ``GruRegionModel``); it reads
    ``hidden_width``, ``training.steps`` and ``training.learning_rate`` alone."""
    hidden_width: Count = 32
    """Numbers kept for each region and day: the width of E_m."""
    diffusion_steps: CountOrZero = 2
    """How many steps of each random walk a convolution sees (K)."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Checked):
    """How a region model is fitted."""

    steps: Count = 100
    """Steps of Adam at most, each over all regions and training days."""
    origins_per_step: Count = 4
    """Number of training days, drawn for each step, from which forecasts start."""
    learning_rate: Positive = 0.01
    gradient_clip: Positive = 5.0
    """Bound of the gradient's L2 norm over all parameters."""
    horizon: Count = 3
    """Number of days ahead that are forecast and trained."""
    validation_share: Annotated[Share, positive] = 0.2
    """Share of the days, the last ones, that choose the step to stop at."""
    patience: Count = 15
    """Steps without a better validation error after which training ends."""
    visitors: bool = False
    """Whether the network also sees how many people were in a region that day."""

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
class RegionSettings(Checked):
    """The region model: what it sees, its network and its training."""

    macro_cases: MacroCases = "auto"
    """``reported``: cases of tested people. ``all``: of everybody, hidden people
    included, as in the authors' program: a leak, and marked wherever it is told.
    ``none``: no region model. ``auto``: reported, but none in mode ``local``,
    since cases by region and day would leave without protection."""
    cases: CaseSettings = field(default_factory=CaseSettings)
    """How cases become numbers of regions and days. Of everybody's cases only
    ``measure`` is used."""
    folds: Annotated[int, partial(whole, 2)] = 4
    """Parts of the tested people for cross-fitting the states."""
    network: DcrnnSettings = field(default_factory=DcrnnSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    scale_states: bool = True
    """Centre and scale people's mean region states before the person model reads
    them. The authors' program uses them as they are."""

    @property
    def is_published(self) -> bool:
        """Whether network and coupling are the paper's, not those of its program."""
        return self.network.kind == "dcrnn" and self.scale_states
