"""What the server holds: one row for each place and slot, and nothing of anybody."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.rules import Chance
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.mobility.clock import Clock
from epifalcon.models.field.chains import CROWD, EVIDENCE, FORCE, ILLNESS
from epifalcon.models.field.disease import MOST_CHANCE
from epifalcon.models.field.elementary import expm1
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.models.field.transmission import Factor
from epifalcon.types import Floats

ELEMENTARY = "af1a4b713dac2f45b54123622fa348f649cd99ef541ecc63240e1c7ce28de44a"
"""SHA-256 of ``elementary.py`` as this file was last compiled with."""
_PARTS = 8
_STEPS = 2
"""What a number that is told costs, as ``each_part`` counts."""
_MOST_DOSE = 50.0


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
    edges, day = np.empty((*places.crowd.shape, 4)), city.day
    slots, linear = len(edges), city.chance == "linear"

    def work(part: int) -> None:
        own = slice(slots * part // _PARTS, slots * (part + 1) // _PARTS)
        held = (places.crowd, city.present, places.infectious, places.evidence)
        crowd, present, infectious, evidence = (one[own] for one in held)
        rows = Rows(factor.mean, day[own], crowd, present, infectious, evidence)
        _lay_out(rows, city.force, linear, edges[own])

    each_part(work, _PARTS, _STEPS * edges.size)
    return Told(edges, np.empty(0), day, float(city.own_in_sums), factor.typical)


class Rows(NamedTuple):
    """What is told of some slots, before it is laid out place by place."""

    mean: Floats
    """(days, 1 + regions) the factor of transmission."""
    day: NDArray[np.int32]
    """(slots,)"""
    crowd: Floats
    present: Floats
    infectious: Floats
    evidence: Floats


@compiled
def _lay_out(rows: Rows, force: float, linear: bool, edges: Floats) -> None:
    """Write the four numbers of each place side by side: people read them together."""
    for slot in range(len(edges)):
        mean, crowd = rows.mean[rows.day[slot]], rows.crowd[slot]
        here = edges[slot]
        for edge in range(edges.shape[1]):
            dose = force * mean[edge] / max(crowd[edge], 1.0)
            chance = dose if linear else -expm1(-min(dose, _MOST_DOSE))
            here[edge, FORCE] = min(chance, MOST_CHANCE)
            here[edge, CROWD] = max(rows.present[slot, edge] - 1, 0.0)
            here[edge, ILLNESS] = rows.infectious[slot, edge]
            here[edge, EVIDENCE] = rows.evidence[slot, edge]
        # Nobody meets anybody where nobody was seen.
        here[0, FORCE] = 0
        here[0, CROWD] = 0


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
