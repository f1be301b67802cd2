"""Settings of belief propagation as Falcon Field uses it."""

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
    whole,
)
from epifalcon.errors import SettingsError
from epifalcon.settings import Alias

TransmissionModel = Literal["fixed", "global", "regional-strong", "regional"]
"""Model of transmission, from simple to rich: the pathogen's rate; one global factor;
one factor per region with a strong prior; the same with a weak prior."""
TRANSMISSION_MODELS: tuple[TransmissionModel, ...] = get_args(TransmissionModel)
EQUALLY_RICH: frozenset[TransmissionModel] = frozenset({"regional-strong", "regional"})
"""These differ only in the weight of the prior."""
LEAST_FOLDS = 3
"""With fewer folds a run without a pair of folds would have no tests."""
_OLD_MODELS = {
    "one": "fixed",
    "scaled": "global",
    "mild": "regional-strong",
    "apart": "regional",
}


def current_model(name: Any) -> Any:  # noqa: ANN401
    """Return the current name of a transmission model, which may be an older one."""
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
    """How transmission is modelled and estimated."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "law": Alias("transmission", current_model),
        "among": Alias("among", _current_models),
        "mild_weight": Alias("strong_weight"),
    }

    transmission: Literal["auto"] | TransmissionModel = "auto"
    """``auto`` selects the model of ``among`` with the least log loss on held-out
    tested people."""
    among: tuple[TransmissionModel, ...] = ("global", "regional-strong", "regional")
    weight: Positive = 0.5
    """Prior weight of a region's expected factor under ``regional``, in infections."""
    strong_weight: Positive = 1.0
    """The same under ``regional-strong``."""
    common_doubt: NonNegative = 1.0
    """Standard errors by which infections must differ from the pathogen's rate before
    another global factor is estimated."""
    common_weight: Positive = 20.0
    """Prior weight of "the mean over regions is the pathogen's rate", in regions."""
    from_sweep: Annotated[int, partial(whole, 2)] = 3
    """Estimated after this sweep and each later one."""
    choosing_sweeps: Count = 10
    """Sweeps of the common solutions from which candidate models and folds start. With
    6 the regional models are too far from convergence; 12 leave too few later."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.among:
            raise SettingsError("among=() must name at least one model of transmission")

    @property
    def candidates(self) -> tuple[TransmissionModel, ...]:
        """The candidate models, from simple to rich."""
        given = self.among if self.transmission == "auto" else (self.transmission,)
        return tuple(model for model in TRANSMISSION_MODELS if model in given)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(Checked):
    """How a run continues from day to day."""

    days: Count = 14
    """Days that are inferred again; earlier ones are summarised by each person's
    probability of each state."""
    sweeps: Count = 8
    """Sweeps after each new day."""


@dataclass(frozen=True, kw_only=True)
class FieldSettings(Checked):
    """Number of sweeps, damping, transmission, folds and calibration."""

    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "renewed": Alias("damping", _damping_of_step),
        "caution": Alias("damping_decay"),
        "slower": Alias("damping_backoff"),
        "kept": Alias("save_messages"),
    }

    sweeps: Count = 15
    """Sweeps of a run: each is one upload of everybody and the reply."""
    evidence_bound: Positive = 16.0
    """Evidence messages are clipped to [-1, this]."""
    damping: Share = 0.3
    """Weight of the old evidence message in the last slot, so the step size is
    1 - damping; 1 ignores evidence, which is the mean-field approximation."""
    damping_decay: NonNegative = 0.7
    """Exponent of the time-dependent damping: the step size in slot t is multiplied by
    growth(t to the end)^-damping_decay, because early evidence is amplified by every
    later infection."""
    damping_backoff: Annotated[Share, positive] = 0.7
    """Factor on the step size each time the evidence changes direction."""
    region: TransmissionSettings = field(default_factory=TransmissionSettings)
    folds: CountOrZero = 4
    """Folds of the tested people, for out-of-fold risks of the tested, the choice of
    the transmission model and calibration."""
    save_messages: bool = True
    """Whether the run folder gets the final messages, for new people, explanations
    and daily updates: about 8 bytes per person and slot."""
    ensemble: CountOrZero = 0
    """Runs for an interval around each risk; 0 for none. Each run uses half of the
    tests and ``region.choosing_sweeps`` sweeps."""
    calibration: Literal["auto", "none"] = "auto"
    """``auto`` recalibrates risks by Platt scaling if that lowers the log loss of
    held-out tested people. Needs three folds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble == 1:
            raise SettingsError("ensemble=1 shows no spread: take 0, or 2 and more")
