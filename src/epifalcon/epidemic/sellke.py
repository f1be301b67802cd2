"""Random draws of an outbreak: draws per person, and variation of transmission.

Sellke's construction: each person has a threshold, drawn from Exp(1), and is infected
in the slot in which its accumulated hazard reaches that threshold. This has the same
distribution as an independent infection with probability 1 - exp(-hazard) per person
and slot, and runs with equal draws but other settings can be compared per person.

The simulator multiplies every hazard of region r by a factor f_r and counts an
infectious person i as g_i people. Both are 1 by default; otherwise

    f_r = exp(s z_r - s^2 / 2),   z_r ~ N(0, 1),      s = ``regional_sigma``
    g_i ~ Gamma(shape k, scale 1 / k),                k = ``dispersion``

so that both have mean 1. They are ground truth and not available to methods.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import vectors
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.settings import Chance, OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats

SlotCounts = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class SellkeDraws:
    """Random draws for each person; every array is (people,)."""

    threshold: Floats
    """Accumulated hazard at which the person is infected; greater than 0."""
    seed_order: Floats
    """Random order of people; the first people who qualify become seeds."""
    source_choice: Floats
    """Quantile in [0, 1) that selects the source among infectious people present."""
    latent_slots: SlotCounts
    """Number of slots from infection to being infectious, at least 1."""
    infectious_slots: SlotCounts
    """Number of infectious slots, at least 1."""
    onset_slots: SlotCounts
    """Number of infectious slots before symptoms, at least 1; 0 without symptoms."""

    def __len__(self) -> int:
        return len(self.threshold)

    @classmethod
    def sample(
        cls,
        people: int,
        pathogen: Pathogen,
        settings: OutbreakSettings,
        clock: Clock,
        rng: np.random.Generator,
    ) -> "SellkeDraws":
        """Draw the random numbers of ``people`` people.

        The same generator gives the same underlying numbers for every pathogen
        and setting; only their conversion into slots differs.
        """

        def exponential() -> Floats:
            # 1 - random() lies in (0, 1], so its logarithm is finite.
            return -np.log(1 - rng.random(people))

        def wait(times: Floats, rate: float) -> SlotCounts:
            # All times past the last slot are equivalent; clip to avoid overflow.
            slots = whole_slots(times, rate, settings.chance, clock)
            return np.minimum(slots, clock.slots + 1).astype(np.int32)

        # A threshold of exactly 0 would infect without contact.
        threshold = np.maximum(exponential(), np.finfo(np.float64).tiny)
        seed_order, source_choice = rng.random(people), rng.random(people)
        latent, infectious, onset = exponential(), exponential(), exponential()
        symptomatic = rng.random(people) < settings.symptomatic_share
        latent_slots = wait(latent, pathogen.alpha)
        if settings.model == "sir":
            latent_slots = np.ones(people, np.int32)
        return cls(
            threshold=threshold,
            seed_order=seed_order,
            source_choice=source_choice,
            latent_slots=latent_slots,
            infectious_slots=wait(infectious, pathogen.mu),
            onset_slots=np.where(symptomatic, wait(onset, settings.onset_rate), 0),
        )


def whole_slots(times: Floats, rate: float, chance: Chance, clock: Clock) -> Floats:
    """Convert Exp(1) times to whole slots, which are then geometrically distributed.

    P(more than k slots) = P(time > k q) = (1 - p)^k for q = -log(1 - p).
    """
    step = rate * clock.slot_days
    if chance == "linear":
        step = math.inf if step >= 1 else -math.log1p(-step)
    return np.maximum(np.ceil(times / step), 1)


@dataclass(frozen=True, eq=False)
class Variation:
    """Read-only factors on transmission; None means 1 for all regions or people."""

    regional_factor: Floats | None = None
    """Factor on the hazard of each region, at least 0, (regions,)."""
    infectiousness: Floats | None = None
    """Infectiousness of each person, at least 0, (people,)."""

    def __post_init__(self) -> None:
        for name, array in self.arrays().items():
            vectors({name: np.float64}, **{name: array})
            if not (np.isfinite(array) & (array >= 0)).all():
                raise DataError(f"{name} must be finite and 0 or more everywhere")

    @classmethod
    def sample(
        cls, traces: Traces, settings: OutbreakSettings, streams: Streams
    ) -> "Variation":
        """Sample the factors that the settings require, each from its own stream.

        Equal streams give the same underlying draws for regions and people, whatever
        the other settings are.
        """
        factor = infectiousness = None
        if settings.regional_sigma > 0:
            rng = streams.numpy("regional factors")
            factor = draw_factors(len(traces.regions), settings, rng)
        if settings.dispersion is not None:
            rng = streams.numpy("infectiousness")
            infectiousness = draw_infectiousness(traces.people, settings, rng)
        return cls(factor, infectiousness)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are not None, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def require_fit(
        self, settings: OutbreakSettings, people: int, regions: int | None = None
    ) -> None:
        """Raise ``DataError`` unless the arrays fit the settings and the city."""
        for name, is_required, count in (
            ("regional_factor", settings.regional_sigma > 0, regions),
            ("infectiousness", settings.dispersion is not None, people),
        ):
            array = getattr(self, name)
            if is_required != (array is not None):
                verb = "require" if is_required else "do not allow"
                raise DataError(f"the settings {verb} {name}: see Variation.sample")
            if array is not None and count is not None and len(array) != count:
                raise DataError(f"{name} has {len(array)} entries, expected {count}")

    def factors(self, regions: int) -> Floats:
        """Return transmission factors (regions,); 1 without regional variation."""
        known = self.regional_factor
        return np.ones(regions) if known is None else known


HOMOGENEOUS = Variation()
"""No variation: the factor is 1 for every region and person."""


def draw_factors(
    regions: int, settings: OutbreakSettings, rng: np.random.Generator
) -> Floats:
    """Draw a factor for each region, (regions,): lognormal with mean 1."""
    sigma = settings.regional_sigma
    if sigma == 0:
        return np.ones(regions)
    return np.asarray(np.exp(sigma * rng.standard_normal(regions) - sigma**2 / 2))


def draw_infectiousness(
    people: int, settings: OutbreakSettings, rng: np.random.Generator
) -> Floats:
    """Draw the infectiousness of each person, (people,): gamma with mean 1."""
    if settings.dispersion is None:
        return np.ones(people)
    return rng.gamma(settings.dispersion, size=people) / settings.dispersion
