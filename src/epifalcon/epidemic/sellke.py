"""All chance of an outbreak, drawn once per person (Sellke's construction).

A person has a resistance, drawn from Exp(1), and is infected in the slot in
which the hazard it has gathered reaches that resistance. Given the city this
has the same distribution as tossing a coin of chance 1 - exp(-hazard) for each
person in each slot, and it needs a few numbers per person instead of one per
person and slot. Runs with the same draws and different settings can then be
compared person by person, which calibration uses.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import same_length
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import Chance, OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats

SlotCounts = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Draws:
    """What chance decides about each person; every array is (people,)."""

    resistance: Floats
    """Hazard that infects the person; greater than 0."""
    seed_order: Floats
    """Seeds are the qualified people with the smallest values."""
    source_choice: Floats
    """In [0, 1): which of the infectious present was the source."""
    latent_slots: SlotCounts
    """Slots from infection to infectious, 1 or more."""
    infectious_slots: SlotCounts
    """Slots from infectious to recovered, 1 or more."""
    onset_slots: SlotCounts
    """Slots from infectious to symptoms, 1 or more; 0 is never."""

    def __post_init__(self) -> None:
        arrays = vars(self)
        same_length(**arrays)
        lows = {"resistance": 0.0, "latent_slots": 0.0, "infectious_slots": 0.0}
        for name, low in lows.items():
            if not (arrays[name] > low).all():
                raise DataError(f"{name} must be greater than {low:g} for everybody")

    def __len__(self) -> int:
        return len(self.resistance)

    @classmethod
    def sample(
        cls,
        people: int,
        pathogen: Pathogen,
        settings: OutbreakSettings,
        clock: Clock,
        rng: np.random.Generator,
    ) -> "Draws":
        """Draw for ``people`` people.

        The same generator gives the same underlying numbers for every pathogen
        and setting: only their translation into slots differs.
        """
        # 1 - random() lies in (0, 1], so -log of it is finite and never negative;
        # the floor keeps a resistance of exactly 0 from infecting without contact.
        resistance = np.maximum(_exponential(people, rng), np.finfo(np.float64).tiny)
        seed_order, source_choice = rng.random(people), rng.random(people)
        latent, infectious, onset = (_exponential(people, rng) for _ in range(3))
        symptomatic = rng.random(people) < settings.symptomatic_share

        def wait(times: Floats, rate: float) -> SlotCounts:
            # What lies past the last slot is all the same, and must not overflow.
            slots = whole_slots(times, rate, settings.chance, clock)
            return np.minimum(slots, clock.slots + 1).astype(np.int32)

        return cls(
            resistance=resistance,
            seed_order=seed_order,
            source_choice=source_choice,
            latent_slots=(
                np.ones(people, np.int32)
                if settings.model == "sir"
                else wait(latent, pathogen.alpha)
            ),
            infectious_slots=wait(infectious, pathogen.mu),
            onset_slots=np.where(symptomatic, wait(onset, settings.onset_rate), 0),
        )


def _exponential(people: int, rng: np.random.Generator) -> Floats:
    return -np.log(1 - rng.random(people))


def whole_slots(times: Floats, rate: float, chance: Chance, clock: Clock) -> Floats:
    """Exp(1) times as whole slots, 1 or more: geometric with the chance of a slot.

    P(more than k slots) = P(time > k q) = (1 - p)^k for q = -log(1 - p).
    """
    step = rate * clock.slot_days
    if chance == "linear":
        step = math.inf if step >= 1 else -math.log1p(-step)
    return np.maximum(np.ceil(times / step), 1)
