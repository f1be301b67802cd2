"""What the compiled loops of ``spread`` read and fill."""

from typing import NamedTuple

import numpy as np

from epifalcon.epidemic.sellke import SlotCounts
from epifalcon.types import UNKNOWN, Floats, PersonIds, RegionIds, Slots

NEVER = np.iinfo(np.int32).max
"""The slot of what has not happened yet, later than any other."""


class Rule(NamedTuple):
    """Numbers and switches of the rule, as the compiled code needs them."""

    force: float
    """kappa beta dt."""
    silent_weight: float
    linear: bool
    over_susceptible: bool
    exposed_seeds: bool
    alike: bool
    """Whether every infectious person counts as one."""


class Lives(NamedTuple):
    """What happened to each person, (people,) each; slots may lie past the end."""

    infection: Slots
    infectious: Slots
    onset: Slots
    recovery: Slots
    source_person: PersonIds
    source_region: RegionIds
    resistance_left: Floats
    """Infinite as soon as the person is infected."""


class Luck(NamedTuple):
    """What chance decides about each person, (people,) each."""

    source_choice: Floats
    latent: Slots
    infectious: Slots
    onset: Slots
    infectiousness: Floats
    """Empty where people are alike."""


class Places(NamedTuple):
    """What is known of each region in this slot; entry 0 is "not observed"."""

    crowd: SlotCounts
    silent: SlotCounts
    ill: SlotCounts
    hazard: Floats
    ill_end: SlotCounts
    """Where in the line of carriers the region's ill end, -1 if not needed."""
    silent_end: SlotCounts
    touched: RegionIds
    factor: Floats
    """On the region's hazard, the same in every slot."""
    weight: Floats
    """Of the region's infectious, left alone where people are alike."""


def untouched(resistance: Floats) -> Lives:
    """Nobody is infected yet."""
    people = len(resistance)
    return Lives(
        infection=np.full(people, NEVER, np.int32),
        infectious=np.full(people, NEVER, np.int32),
        onset=np.full(people, NEVER, np.int32),
        recovery=np.full(people, NEVER, np.int32),
        source_person=np.full(people, -1, np.int32),
        source_region=np.full(people, UNKNOWN, np.int32),
        resistance_left=resistance.copy(),
    )


def empty_places(factors: Floats) -> Places:
    """Nobody is anywhere yet; ``factors`` (regions,) are kept."""
    regions = len(factors)
    return Places(
        crowd=np.zeros(regions + 1, np.int32),
        silent=np.zeros(regions + 1, np.int32),
        ill=np.zeros(regions + 1, np.int32),
        hazard=np.zeros(regions + 1),
        ill_end=np.full(regions + 1, -1, np.int32),
        silent_end=np.full(regions + 1, -1, np.int32),
        touched=np.empty(regions + 1, np.int32),
        factor=np.concatenate([[1.0], factors]),
        weight=np.zeros(regions + 1),
    )
