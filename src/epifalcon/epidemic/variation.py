"""Variation: places and people that pass a disease on otherwise than the mean.

The simulator multiplies every hazard of region r by a factor f_r and counts an
infectious person i as g_i people. Both are 1 in an even world. Elsewhere

    f_r = exp(s z_r - s^2 / 2),   z_r ~ N(0, 1),      s the ``regional_sigma``
    g_i ~ Gamma(shape k, scale 1 / k),                k the ``dispersion``

so that both have the mean 1, whatever s and k, and standard deviations of
sqrt(exp(s^2) - 1) and 1 / sqrt(k). No method is told any of it: it is part of
the truth, and kept with the outbreak.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class Variation:
    """What multiplies transmission; None where it is 1 for all. Read-only arrays."""

    regional_factor: Floats | None = None
    """(regions,), 0 or more."""
    infectiousness: Floats | None = None
    """(people,), 0 or more."""

    def __post_init__(self) -> None:
        for name, array in self.arrays().items():
            if array.ndim != 1 or array.dtype != np.float64:
                raise DataError(
                    f"{name} is {array.dtype} of {array.ndim} axes, "
                    "expected float64 of 1"
                )
            if not (np.isfinite(array) & (array >= 0)).all():
                raise DataError(f"{name} must be finite and 0 or more everywhere")
            array.setflags(write=False)

    @classmethod
    def sample(
        cls, traces: Traces, settings: OutbreakSettings, streams: Streams
    ) -> "Variation":
        """Draw what the settings ask for, each from a stream of its own.

        Equal streams give regions the same z and people the same luck, whatever
        else is asked for; an even world draws nothing.
        """
        factor = infectiousness = None
        if settings.regional_sigma > 0:
            rng = streams.numpy("regional factors")
            factor = draw_factors(len(traces.regions), settings, rng)
        if settings.dispersion is not None:
            rng = streams.numpy("infectiousness")
            infectiousness = draw_infectiousness(traces.people, settings, rng)
        return cls(factor, infectiousness)

    @classmethod
    def after(
        cls, traces: Traces, settings: OutbreakSettings, rng: np.random.Generator
    ) -> "Variation":
        """The same from streams whose seed is the generator's next number.

        An even world takes none, so all that ``rng`` draws stays as it was.
        """
        if settings.even:
            return cls()
        return cls.sample(traces, settings, Streams(int(rng.integers(2**63))))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is not 1 for all, by name."""
        return {name: each for name, each in vars(self).items() if each is not None}

    def require_asked_for(self, settings: OutbreakSettings) -> None:
        """Raise ``DataError`` unless it is there where the settings ask for it."""
        wanted = {
            "regional_factor": settings.regional_sigma > 0,
            "infectiousness": settings.dispersion is not None,
        }
        for name, is_wanted in wanted.items():
            if is_wanted != (getattr(self, name) is not None):
                told = "ask for" if is_wanted else "know no"
                raise DataError(f"the settings {told} {name}: see Variation.sample")

    def require_fit(self, people: int, regions: int) -> None:
        """Raise ``DataError`` unless this can be of so many people and regions."""
        for name, count in (("regional_factor", regions), ("infectiousness", people)):
            array = getattr(self, name)
            if array is not None and len(array) != count:
                raise DataError(f"{name} has {len(array)} entries, expected {count}")

    def factors(self, regions: int) -> Floats:
        """The factor of every region, (regions,)."""
        known = self.regional_factor
        return np.ones(regions) if known is None else known


EVEN = Variation()
"""Every region and every person alike."""


def draw_factors(
    regions: int, settings: OutbreakSettings, rng: np.random.Generator
) -> Floats:
    """A factor for each region, (regions,): lognormal with the mean 1."""
    sigma = settings.regional_sigma
    if sigma == 0:
        return np.ones(regions)
    return np.asarray(np.exp(sigma * rng.standard_normal(regions) - sigma**2 / 2))


def draw_infectiousness(
    people: int, settings: OutbreakSettings, rng: np.random.Generator
) -> Floats:
    """How many people each infectious person counts as, (people,): mean 1."""
    if settings.dispersion is None:
        return np.ones(people)
    return rng.gamma(settings.dispersion, size=people) / settings.dispersion
