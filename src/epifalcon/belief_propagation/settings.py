"""Settings of belief propagation for Falcon Field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

from epifalcon.checks import (
    Checked,
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Share,
    positive,
    some,
    whole,
)
from epifalcon.errors import SettingsError
from epifalcon.settings import Alias

TransmissionModel = Literal["fixed", "global", "regional-strong", "regional"]
"""Transmission model, from simple to complex: the rate of the pathogen; one global
factor; one factor per region with a strong prior; the same with a weak prior."""
TRANSMISSION_MODELS: tuple[TransmissionModel, ...] = get_args(TransmissionModel)
EQUALLY_RICH: frozenset[TransmissionModel] = frozenset({"regional-strong", "regional"})
"""Models of equal complexity, which differ only in the weight of the prior."""
LEAST_FOLDS = 3
"""Minimum number of folds: with two, a run that excludes a pair would have no tests."""
_OLD_NAMES = ("one", "scaled", "mild", "apart")
_OLD_MODELS = dict(zip(_OLD_NAMES, TRANSMISSION_MODELS, strict=True))


def current_model(name: Any) -> Any:  # noqa: ANN401
    """Return the current name of a transmission model from its current or old name."""
    return _OLD_MODELS.get(name, name) if isinstance(name, str) else name


def _current_models(names: Any) -> Any:  # noqa: ANN401
    if isinstance(names, list | tuple):
        return [current_model(name) for name in names]
    return names


def _damping_of_step(step: Any) -> Any:  # noqa: ANN401
    is_number = isinstance(step, int | float) and not isinstance(step, bool)
    # Rounded, so that the old default 0.7 becomes the new default 0.3 exactly.
    return round(1 - step, 12) if is_number else step


@dataclass(frozen=True, kw_only=True)
class TransmissionSettings(Checked):
    """Settings of the transmission model and its estimation."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "law": Alias("transmission", current_model),
        "among": Alias("among", _current_models),
        "mild_weight": Alias("strong_weight"),
    }

    transmission: Literal["auto"] | TransmissionModel = "auto"
    """Transmission model; ``auto`` selects the one in ``among`` with the lowest log
    loss on held-out tested people."""
    among: Annotated[tuple[TransmissionModel, ...], some] = TRANSMISSION_MODELS[1:]
    weight: Positive = 0.5
    """Prior weight of a region's factor under ``regional``, in expected infections."""
    strong_weight: Positive = 1.0
    """Prior weight of a region's factor under ``regional-strong``."""
    common_doubt: NonNegative = 1.0
    """Number of standard errors by which infections must differ from the expectation
    before the global factor differs from 1."""
    common_weight: Positive = 20.0
    """Prior weight of a mean regional factor of 1, as a number of regions."""
    from_sweep: Annotated[int, partial(whole, 2)] = 3
    """First sweep after which factors are estimated."""
    choosing_sweeps: Count = 10
    """Sweeps of the initial run from which candidate models and folds start. With 6 the
    regional models are far from convergence; 12 leave too few for later."""

    @property
    def candidates(self) -> tuple[TransmissionModel, ...]:
        """Candidate models, from simple to complex."""
        given = self.among if self.transmission == "auto" else (self.transmission,)
        return tuple(model for model in TRANSMISSION_MODELS if model in given)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(Checked):
    """Settings of daily updates of a run."""

    days: Count = 14
    """Number of recent days to infer again; earlier days are summarised by each
    person's state probabilities."""
    sweeps: Count = 8
    """Number of sweeps after each new day."""


@dataclass(frozen=True, kw_only=True)
class FieldSettings(Checked):
    """Settings of Falcon Field: sweeps, damping, transmission, folds, calibration."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "renewed": Alias("damping", _damping_of_step),
        "caution": Alias("damping_decay"),
        "slower": Alias("damping_backoff"),
        "kept": Alias("save_messages"),
    }

    sweeps: Count = 15
    """Number of sweeps; in each, everybody uploads messages once and receives sums."""
    evidence_bound: Positive = 16.0
    """Upper bound of evidence messages, which are clipped to [-1, evidence_bound]."""
    damping: Share = 0.3
    """Weight of the old evidence message in the last slot; the step size is 1 -
    damping. With 1, evidence is ignored, which is the mean-field approximation."""
    damping_decay: NonNegative = 0.7
    """Exponent of the time-dependent damping: the step size in slot t is multiplied by
    growth(t to the end)^-damping_decay, because early evidence is amplified by every
    later infection."""
    damping_backoff: Annotated[Share, positive] = 0.7
    """Factor on the step size, applied whenever the evidence changes direction."""
    region: TransmissionSettings = field(default_factory=TransmissionSettings)
    rates: Literal["auto", "published"] = "auto"
    """``auto`` estimates R0 and the share of people infected at the start from held-out
    people, unless all tests are random and say whether a person was ever infected."""
    folds: CountOrZero = 4
    """Number of folds of the tested people, for their out-of-fold risks, the selection
    of the transmission model, and calibration."""
    save_messages: bool = True
    """Store the final messages in the run folder, for new people, explanations and
    daily updates. They take about 8 bytes per person and slot."""
    ensemble: CountOrZero = 0
    """Number of runs for an interval around each risk; 0 for no intervals. Each run
    uses half of the tests and ``region.choosing_sweeps`` sweeps."""
    calibration: Literal["auto", "none"] = "auto"
    """Recalibration of risks; ``auto`` applies Platt scaling if that lowers the log
    loss of held-out tested people. Needs three folds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble == 1:
            raise SettingsError("ensemble=1 shows no spread: take 0, or 2 and more")
