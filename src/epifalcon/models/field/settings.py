"""Settings of Falcon Field's inference."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.errors import SettingsError

Law = Literal["one", "scaled", "apart", "near"]
"""One known rate; one that is estimated; one for each region; the same, regions
near each other alike. In order of richness."""
LAWS: tuple[Law, ...] = get_args(Law)


@dataclass(frozen=True, kw_only=True)
class TransmissionSettings:
    """What is estimated of transmission, and how cautiously."""

    law: Literal["auto", "one", "scaled", "apart", "near"] = "auto"
    """``auto`` takes the law that tells held-out tested people best."""
    weight: float = 0.7
    """The prior counts like so many infections in each region."""
    common_weight: float = 20.0
    """That the common rate is the pathogen's counts like so many infections."""
    from_sweep: int = 4
    """Estimated after this sweep and each later one."""
    reach_km: float = 2.0
    """How far apart regions are still a little alike under ``near``."""
    choosing_sweeps: int = 8
    """Sweeps of the runs that choose the law under ``auto``."""

    def __post_init__(self) -> None:
        one_of(("auto", *LAWS), law=self.law)
        positive(weight=self.weight, reach_km=self.reach_km)
        positive(common_weight=self.common_weight)
        whole(1, from_sweep=self.from_sweep, choosing_sweeps=self.choosing_sweeps)


@dataclass(frozen=True, kw_only=True)
class FieldSettings:
    """How often people and places exchange, and how much of the old is kept."""

    sweeps: int = 15
    """Exchanges: each one message of everybody for all its places, and the answer."""
    evidence_bound: float = 16.0
    """Evidence is sent within -1 and this; with 4 as good as nothing is lost."""
    renewed: float = 0.7
    """Share of new evidence in the evidence in force, in the last slot."""
    caution: float = 0.7
    """How much less in earlier slots: the growth of the outbreak from there to the
    end, to the power of minus this. What is thought of those who came first comes
    back from all whom they infected; renewed as fast, it would swing."""
    slower: float = 0.7
    """What ``renewed`` is multiplied with each time the evidence turns back."""
    region: TransmissionSettings = field(default_factory=TransmissionSettings)
    folds: int = 4
    """Parts of the tested people whose results are left out in turn, to tell the
    risks of the tested without them and to choose the law of transmission."""

    ensemble: int = 0
    """Runs from which an interval around each risk is told; 0 tells none. Each knows
    half of the tests, and takes ``region.choosing_sweeps``."""
    calibration: Literal["auto", "none"] = "auto"
    """Whether risks are bent by what held-out tested people show; ``auto`` does so
    where that tells them better. Needs three folds."""
    correction: str = "auto"
    """The learned correction: ``shipped`` or the path of one made by ``epifalcon
    train-correction`` is always used, ``none`` never, ``auto`` takes the shipped one
    where it tells held-out tested people better. Needs three folds."""

    def __post_init__(self) -> None:
        one_of(("auto", "none"), calibration=self.calibration)
        whole(1, sweeps=self.sweeps)
        positive(evidence_bound=self.evidence_bound, renewed=self.renewed)
        positive(slower=self.slower)
        unit_interval(renewed=self.renewed, slower=self.slower)
        non_negative(caution=self.caution)
        whole(0, folds=self.folds, ensemble=self.ensemble)
        if self.ensemble == 1:
            raise SettingsError("ensemble=1 shows no spread: take 0, or 2 and more")
