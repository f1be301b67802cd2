"""Settings of belief propagation as Falcon Field uses it."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, get_args

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

Law = Literal["one", "scaled", "mild", "apart"]
"""Model of transmission, from simple to rich: the pathogen's rate; one global factor;
one factor per region with a strong prior; the same with a weak prior."""
LAWS: tuple[Law, ...] = get_args(Law)
ALIKE: frozenset[Law] = frozenset({"mild", "apart"})
"""These differ only in the weight of the prior: neither is richer."""
LEAST_FOLDS = 3
"""With fewer folds a run without a pair of folds would know no test at all."""


@dataclass(frozen=True, kw_only=True)
class TransmissionSettings(Checked):
    """How transmission is modelled and estimated."""

    law: Literal["auto"] | Law = "auto"
    """``auto`` selects the model of ``among`` with the least log loss on held-out
    tested people."""
    among: tuple[Law, ...] = ("scaled", "mild", "apart")
    weight: Positive = 0.5
    """Prior weight of a region's expected factor under ``apart``, in infections."""
    mild_weight: Positive = 1.0
    """The same under ``mild``."""
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
            raise SettingsError("among=() must name a law")

    @property
    def laws(self) -> tuple[Law, ...]:
        """The candidate models, from simple to rich."""
        candidates = self.among if self.law == "auto" else (self.law,)
        return tuple(law for law in LAWS if law in candidates)


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

    sweeps: Count = 15
    """Sweeps of a run: each is one upload of everybody and the reply."""
    evidence_bound: Positive = 16.0
    """Evidence messages are clipped to [-1, this]."""
    renewed: Share = 0.7
    """Step size of evidence messages in the last slot (1 - damping); 0 ignores
    evidence, which is the mean-field approximation."""
    caution: NonNegative = 0.7
    """Exponent of the time-dependent damping: the step in slot t is multiplied by
    growth(t to the end)^-caution, because early evidence is amplified by every later
    infection."""
    slower: Annotated[Share, positive] = 0.7
    """Factor on the step size each time the evidence changes direction."""
    region: TransmissionSettings = field(default_factory=TransmissionSettings)
    folds: CountOrZero = 4
    """Folds of the tested people, for out-of-fold risks of the tested, the choice of
    the transmission model and calibration."""
    kept: bool = True
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
