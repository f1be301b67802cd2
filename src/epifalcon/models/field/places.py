"""What the server holds: one row for each place and slot, and nothing of anybody."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.rules import Chance
from epifalcon.mobility.clock import Clock
from epifalcon.models.field.chains import CROWD, EVIDENCE, FORCE, ILLNESS
from epifalcon.models.field.disease import MOST_CHANCE
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.models.field.transmission import Factor
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class Places:
    """Sums in force over everybody, (slots, 1 + regions) each; 0 is "not observed"."""

    crowd: Floats
    """People there, or expected susceptible people under the law ``I/S``."""
    infectious: Floats
    evidence: Floats

    @classmethod
    def empty(cls, crowd: Floats) -> "Places":
        """Before anything was sent."""
        return cls(crowd, np.zeros_like(crowd), np.zeros_like(crowd))


@dataclass(frozen=True, eq=False)
class City:
    """What is the same for everybody and in every sweep."""

    clock: Clock
    force: float
    """kappa beta dt."""
    chance: Chance
    present: Floats
    """(slots, 1 + regions) people there."""
    over_susceptible: bool = False
    """Whether a hazard is shared by the susceptible there, or by all."""
    own_in_sums: bool = True
    """Whether a person finds its own messages in what the places tell."""

    @property
    def day(self) -> NDArray[np.int32]:
        """(slots,) the day of each slot."""
        slots = np.arange(self.clock.slots)
        return (slots // self.clock.slots_per_day).astype(np.int32)

    @property
    def even(self) -> Factor:
        """Every region as the pathogen's rate says."""
        ones = np.ones((self.clock.days, self.present.shape[1]))
        return Factor(ones, ones, ones)


def told_at_first(city: City, hazard: Floats) -> Told:
    """Nothing but one hazard for everybody, ``hazard`` (slots,)."""
    shape = (*city.present.shape, 4)
    return Told(np.zeros(shape), hazard, city.day, 1.0, city.even.typical)


def told_by(city: City, places: Places, factor: Factor) -> Told:
    """What ``places`` tell, with transmission by ``factor``."""
    edges = np.empty((*places.crowd.shape, 4))
    dose = city.force * factor.mean[city.day] / np.maximum(places.crowd, 1)
    chance = dose if city.chance == "linear" else -np.expm1(-dose)
    edges[..., FORCE] = np.minimum(chance, MOST_CHANCE)
    # Nobody meets anybody where nobody was seen.
    edges[:, 0, FORCE] = 0
    edges[..., CROWD] = np.maximum(city.present - 1, 0)
    edges[:, 0, CROWD] = 0
    edges[..., ILLNESS] = places.infectious
    edges[..., EVIDENCE] = places.evidence
    own = float(city.own_in_sums)
    return Told(edges, np.empty(0), city.day, own, factor.typical)


def renewed(places: Places, sums: Sums, manner: Manner) -> Places:
    """The sums in force after a sweep, damped as everybody damps at home."""

    def mix(old: Floats, new: Floats, share: float | Floats) -> Floats:
        return old + share * (new - old)

    after = replace(
        places,
        infectious=mix(places.infectious, sums.infectious, manner.renewed_illness),
        evidence=mix(places.evidence, sums.evidence, manner.renewed_evidence[:, None]),
    )
    if not sums.well.size:
        return after
    return replace(after, crowd=mix(places.crowd, sums.well, manner.renewed_illness))
