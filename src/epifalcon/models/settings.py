"""Settings of the region and person models, importable without torch."""

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
    """Settings of the person model and its training; defaults follow the paper."""

    width: Count = 32
    layers: Count = 2
    dropout: Dropout = 0.2
    """Dropout rate of each layer's outputs in training."""
    input_dropout: Dropout = 0.0
    """Dropout rate of the input rows in training."""
    learning_rate: Positive | None = None
    """Learning rate. None selects 0.01 or 0.003 by the log loss on validation people,
    as for every network, if there is no privacy; with privacy, where each training
    run is a release, and across sites it is the paper's 0.001."""
    learning_rate_milestones: tuple[Count, ...] = ()
    """Rounds at which the learning rate is multiplied by ``learning_rate_gamma``."""
    learning_rate_gamma: Positive = 0.7
    weight_decay: Share = 0.0005
    rounds: Count = 500
    window_slots: Count = 1
    """Number of slots merged into one edge of the hypergraph."""
    input: InputKind = "embedding"
    """Input rows. ``embedding``: a trainable row per person, stored on the device.
    ``status``: a shared embedding of the known status, so that new people can be
    scored."""
    embedding_scale: Positive = 0.1
    """Standard deviation of the initial embeddings. With 1, embeddings hardly change in
    500 small steps."""
    mask_share: Annotated[Share, positive] = 0.5
    """Share of the tested people whose status is masked and predicted in each round
    (``status`` only)."""
    gradient_path: GradientPath = "auto"
    """Path of gradients. ``local``: other people's rows are constants, as in algorithm
    2. ``exchanged``: gradient rows are exchanged like rows, which gives the exact
    gradient. ``auto``: exchanged without privacy, where it costs no budget,
    otherwise local."""
    head: Head = "linear"
    """Output layer. ``lstm`` applies an LSTM cell of width 16 once before the linear
    head, as in the authors' program."""
    class_weights: tuple[Positive, Positive] | None = None
    """Weights of negative and positive people in the loss."""
    precision: Literal["single", "double"] = "single"

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 1."""
        rate = PAPER_RATE if self.learning_rate is None else self.learning_rate
        passed = sum(step > milestone for milestone in self.learning_rate_milestones)
        return rate * self.learning_rate_gamma**passed

    @property
    def dtype(self) -> "torch.dtype":
        """Data type of all rows and parameters."""
        import torch

        return torch.float64 if self.precision == "double" else torch.float32


@dataclass(frozen=True, kw_only=True)
class DcrnnSettings(Checked):
    """Kind and size of the region network."""

    kind: RegionKind = "dcrnn"
    """Kind of network. ``dcrnn``: the paper's network on each day's flows. ``gru``: the
    network of the authors' program, without a graph (see ``GruRegionModel``); it
    ignores ``diffusion_steps`` and most of ``training``."""
    hidden_width: Count = 32
    """Width of the state E_m per region and day."""
    diffusion_steps: CountOrZero = 2
    """Number of steps K of each random walk in a diffusion convolution."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Checked):
    """Training settings of the region model."""

    steps: Count = 100
    """Maximum number of Adam steps, each over all regions and training days."""
    origins_per_step: Count = 4
    """Number of training days drawn in each step as forecast origins."""
    learning_rate: Positive = 0.01
    gradient_clip: Positive = 5.0
    """Maximum L2 norm of the gradient over all parameters."""
    horizon: Count = 3
    """Number of days ahead to forecast, in training and in prediction."""
    validation_share: Annotated[Share, positive] = 0.2
    """Share of the days, taken from the end, used as validation for early stopping."""
    patience: Count = 15
    """Number of steps without a lower validation error before training stops."""
    visitors: bool = False
    """Use the daily number of visitors per region as a network input."""

    def first_validation_day(self, days: int) -> int:
        """Return the first validation day; raise if too few training days remain."""
        first = days - max(1, round(days * self.validation_share))
        if first <= self.horizon:
            raise DataError(
                f"{days} days leave {first} for training, but horizon={self.horizon} "
                f"needs {self.horizon + 1}: give more days or a smaller horizon"
            )
        return first


@dataclass(frozen=True, kw_only=True)
class RegionSettings(Checked):
    """Settings of the region model: inputs, network and training."""

    macro_cases: MacroCases = "auto"
    """Cases used as input. ``reported``: cases among tested people. ``all``: cases
    among all people, including held-out, as in the authors' program: a label leak,
    marked in outputs. ``none``: no region model. ``auto``: reported, but none in
    mode ``local``, where cases per region and day would be uploaded without
    protection."""
    cases: CaseSettings = field(default_factory=CaseSettings)
    """Settings for counting cases per region and day. With ``macro_cases="all"`` only
    ``measure`` is used."""
    folds: Annotated[int, partial(whole, 2)] = 4
    """Number of folds of the tested people for cross-fitting the states."""
    network: DcrnnSettings = field(default_factory=DcrnnSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    scale_states: bool = True
    """Centre and scale people's mean region states before the person model; the
    authors' program does not."""

    @property
    def is_published(self) -> bool:
        """Return True if network and coupling follow the paper's text."""
        return self.network.kind == "dcrnn" and self.scale_states
