"""Settings of Falcon Field's inference."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.errors import SettingsError

Law = Literal["one", "scaled", "daily", "mild", "apart", "near", "flows", "dcrnn"]
"""What is estimated of transmission, in order of richness: nothing; one rate; one
rate each day; one for each region, little apart; the same, far apart; the same,
regions near each other alike; the same, regions alike between which people go; the
same from a network of regions and days."""
LAWS: tuple[Law, ...] = get_args(Law)
ALIKE: frozenset[Law] = frozenset({"mild", "apart"})
"""These differ in the weight of a prior: neither is the richer one."""
LEAST_FOLDS = 3
"""With fewer, a run without a fold and the next one would know no test at all."""
LAYERS = 3
"""Of the learned correction's network."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The region model of the law ``dcrnn``."""

    width: int = 8
    """Of a region's row."""
    diffusion_steps: int = 1
    steps: int = 24
    """Steps of training each time."""
    learning_rate: float = 0.02
    weight_decay: float = 0.01
    every: int = 6
    """Trained anew after so many sweeps."""
    masks: int = 4
    """Regions are told from the others' tallies: one part of so many in turn."""

    def __post_init__(self) -> None:
        whole(1, width=self.width, diffusion_steps=self.diffusion_steps)
        whole(1, steps=self.steps, every=self.every)
        whole(2, masks=self.masks)
        positive(learning_rate=self.learning_rate)
        non_negative(weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class TransmissionSettings:
    """What is estimated of transmission, and how cautiously."""

    law: Literal["auto"] | Law = "auto"
    """``auto`` takes the one of ``among`` that tells held-out tested people best."""
    among: tuple[Law, ...] = ("scaled", "mild", "apart")
    weight: float = 0.5
    """What is expected of a region counts like so many infections there."""
    mild_weight: float = 1.0
    """The same under ``mild``."""
    common_doubt: float = 1.0
    """By so many standard errors infections must differ from what the pathogen's rate
    lets expect before another rate common to all regions is believed."""
    common_weight: float = 20.0
    """That a day has the common rate counts like so many infections, and that regions
    have the pathogen's in the mean like so many regions."""
    from_sweep: int = 3
    """Estimated after this sweep and each later one."""
    reach_km: float = 2.0
    """How far apart regions are still a little alike under ``near``."""
    choosing_sweeps: int = 6
    """Sweeps of the runs that choose the law under ``auto``."""
    network: NetworkSettings = field(default_factory=NetworkSettings)

    def __post_init__(self) -> None:
        one_of(("auto", *LAWS), law=self.law)
        for law in self.among:
            one_of(LAWS, among=law)
        if not self.among:
            raise SettingsError("among=() must name a law")
        positive(weight=self.weight, reach_km=self.reach_km)
        positive(mild_weight=self.mild_weight, common_weight=self.common_weight)
        non_negative(common_doubt=self.common_doubt)
        whole(2, from_sweep=self.from_sweep)
        whole(1, choosing_sweeps=self.choosing_sweeps)

    @property
    def laws(self) -> tuple[Law, ...]:
        """Those that can come to be used, from simple to rich."""
        wished = self.among if self.law == "auto" else (self.law,)
        return tuple(law for law in LAWS if law in wished)


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """How a field goes on from day to day."""

    days: int = 14
    """Days that can still be thought of anew; of earlier ones each person keeps the
    chance of each state."""
    sweeps: int = 8
    """Exchanges after each new day."""

    def __post_init__(self) -> None:
        whole(1, days=self.days, sweeps=self.sweeps)


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
    rates: Literal["given", "chosen"] = "given"
    """``chosen`` also tries latent and infectious times of half and twice the
    pathogen's, and takes the ones that tell held-out tested people best."""
    kept: bool = True
    """Whether a run keeps what places told and people sent at last, for newcomers,
    explanations and the next days: some 8 bytes for each person and slot."""

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
        one_of(("given", "chosen"), rates=self.rates)
        whole(1, sweeps=self.sweeps)
        positive(evidence_bound=self.evidence_bound, renewed=self.renewed)
        positive(slower=self.slower)
        unit_interval(renewed=self.renewed, slower=self.slower)
        non_negative(caution=self.caution)
        whole(0, folds=self.folds, ensemble=self.ensemble)
        if self.ensemble == 1:
            raise SettingsError("ensemble=1 shows no spread: take 0, or 2 and more")
