"""Settings of belief propagation as Falcon Field uses it."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
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
class TransmissionSettings:
    """How transmission is modelled and estimated."""

    law: Literal["auto"] | Law = "auto"
    """``auto`` selects the model of ``among`` with the least log loss on held-out
    tested people."""
    among: tuple[Law, ...] = ("scaled", "mild", "apart")
    weight: float = 0.5
    """Prior weight of a region's expected factor under ``apart``, in infections."""
    mild_weight: float = 1.0
    """The same under ``mild``."""
    common_doubt: float = 1.0
    """Standard errors by which infections must differ from the pathogen's rate before
    another global factor is estimated."""
    common_weight: float = 20.0
    """Prior weight of "the mean over regions is the pathogen's rate", in regions."""
    from_sweep: int = 3
    """Estimated after this sweep and each later one."""
    choosing_sweeps: int = 10
    """Sweeps of the common solutions from which candidate models and folds start. With
    6 the regional models were too far from convergence to be selected in one of five
    cities whose regions differ; with 12 too few sweeps are left for the final runs."""

    def __post_init__(self) -> None:
        one_of(("auto", *LAWS), law=self.law)
        for law in self.among:
            one_of(LAWS, among=law)
        if not self.among:
            raise SettingsError("among=() must name a law")
        positive(weight=self.weight, mild_weight=self.mild_weight)
        positive(common_weight=self.common_weight)
        non_negative(common_doubt=self.common_doubt)
        whole(2, from_sweep=self.from_sweep)
        whole(1, choosing_sweeps=self.choosing_sweeps)

    @property
    def laws(self) -> tuple[Law, ...]:
        """The candidate models, from simple to rich."""
        candidates = self.among if self.law == "auto" else (self.law,)
        return tuple(law for law in LAWS if law in candidates)


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """How a run continues from day to day."""

    days: int = 14
    """Days that are inferred again; earlier ones are summarised by each person's
    probability of each state."""
    sweeps: int = 8
    """Sweeps after each new day."""

    def __post_init__(self) -> None:
        whole(1, days=self.days, sweeps=self.sweeps)


@dataclass(frozen=True, kw_only=True)
class FieldSettings:
    """Number of sweeps, damping, transmission, folds and calibration."""

    sweeps: int = 15
    """Sweeps of a run: each is one upload of everybody and the reply."""
    evidence_bound: float = 16.0
    """Evidence messages are clipped to [-1, this]."""
    renewed: float = 0.7
    """Step size of evidence messages in the last slot (1 - damping); 0 ignores
    evidence, which is the mean-field approximation."""
    caution: float = 0.7
    """Exponent of the time-dependent damping: the step in slot t is multiplied by
    growth(t to the end)^-caution, because early evidence is amplified by every later
    infection."""
    slower: float = 0.7
    """Factor on the step size each time the evidence changes direction."""
    region: TransmissionSettings = field(default_factory=TransmissionSettings)
    folds: int = 4
    """Folds of the tested people, for out-of-fold risks of the tested, the choice of
    the transmission model and calibration."""
    kept: bool = True
    """Whether the run folder gets the final messages, for new people, explanations
    and daily updates: about 8 bytes per person and slot."""

    ensemble: int = 0
    """Runs for an interval around each risk; 0 for none. Each run uses half of the
    tests and ``region.choosing_sweeps`` sweeps."""
    calibration: Literal["auto", "none"] = "auto"
    """``auto`` recalibrates risks by Platt scaling if that lowers the log loss of
    held-out tested people. Needs three folds."""

    def __post_init__(self) -> None:
        one_of(("auto", "none"), calibration=self.calibration)
        whole(1, sweeps=self.sweeps)
        positive(evidence_bound=self.evidence_bound, slower=self.slower)
        unit_interval(renewed=self.renewed, slower=self.slower)
        non_negative(caution=self.caution)
        whole(0, folds=self.folds, ensemble=self.ensemble)
        if self.ensemble == 1:
            raise SettingsError("ensemble=1 shows no spread: take 0, or 2 and more")
