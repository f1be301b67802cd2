"""The plan of a private run: which channels, which noise, which receipts.

All that leaves devices is here: how many people were where (once), how many were
tested and positive (once), and in each exchange how much more infectious than
everybody people expect to have been. Transmission by region would need sums of its
own; a private run takes the pathogen's.

Every vector is scaled so that the unit of the promise moves it by at most 1, its
``reach``:

- a person's whole vector is scaled down to ``bound`` where it is longer;
- a day or a visit moves a first message by its own part alone, because that message
  follows from a person's tests and not from its traces: each slot is cut off at
  ``cap``, and scaling down the whole brings no two vectors further apart;
- later messages follow from all that a person heard at its places, so any visit may
  change all of them: they are scaled down as a person's, and count as replaced.
"""

import math
from dataclasses import dataclass

from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.accounting import mu_for
from epifalcon.privacy.events import (
    ONE_VECTOR,
    UNITS,
    Adversary,
    GaussianRelease,
    Release,
    Releases,
    Terms,
    UnprotectedRelease,
)
from epifalcon.privacy.ledger import Budget

PRESENCE, TESTS, INFECTIOUS = "presence", "tests", "infectious"
_CLIP_OF_TESTS = math.sqrt(2)
"""A person's vector of (tested, positive)."""


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """Noise and receipts of every channel; decided once."""

    settings: FieldPrivacySettings
    clock: Clock

    @classmethod
    def of(cls, settings: FieldPrivacySettings, clock: Clock) -> "FieldPlan":
        """The plan that keeps the promise of ``settings`` exactly."""
        return cls(settings=settings, clock=clock)

    @property
    def length(self) -> int:
        """Slots of a cell."""
        lengths = {"slot": 1, "day": self.clock.slots_per_day}
        return lengths.get(self.settings.cells, self.clock.slots)

    @property
    def budget(self) -> Budget:
        """The promise as the ledger keeps it."""
        wish = self.settings
        limit = {unit: wish.epsilon if unit == wish.unit else None for unit in UNITS}
        return Budget(
            visit=limit["visit"],
            day=limit["day"],
            person=limit["person"],
            delta=wish.delta,
        )

    @property
    def presence_reach(self) -> float:
        """How far the unit moves what is told of presence: shares of the window."""
        slots = {"visit": 1, "day": self.clock.slots_per_day}.get(self.settings.unit)
        return self.settings.bound if slots is None else slots / self.clock.slots

    def cap(self, most: float) -> float:
        """The most that one slot may bring in the first exchange.

        ``most`` is what it brings of one known to be positive. For a person more is
        let through, as far as one day stays within the bound of all.
        """
        if self.settings.unit == "person":
            return self.settings.bound / self._slots_of_a_day
        return most

    def reach(self, number: int, most: float) -> float:
        """How far the unit moves the message of an exchange."""
        if number > 1 or self.settings.unit == "person":
            return self.settings.bound
        slots = 1.0 if self.settings.unit == "visit" else self._slots_of_a_day
        return slots * self.cap(most)

    def sigma(self, channel: str, number: int = 0) -> float:
        """Noise on what the adversary sees, where the unit's reach is 1."""
        wish = self.settings
        alone = self._receipt(channel, number, 1.0).squared_mu(wish.unit)
        left = self._share(channel) * mu_for(wish.epsilon, wish.delta) ** 2
        return math.sqrt(alone / left)

    def opening(self) -> tuple[Release, ...]:
        """Receipts of what leaves once, before the first exchange."""
        if self.settings.mode == "sums":
            return self.receipt(PRESENCE, 0), self.receipt(TESTS, 0)
        whole = Releases(visit=1, day=1, person=1)
        places = UnprotectedRelease(
            terms=Terms(channel="places", releases=whole),
            what="the places a person sends for",
        )
        return self.receipt(TESTS, 0), places

    def exchange(self, number: int) -> tuple[GaussianRelease, ...]:
        """Receipts of one exchange."""
        return (self.receipt(INFECTIOUS, number),)

    def receipt(self, channel: str, number: int) -> GaussianRelease:
        """The receipt of one channel in one exchange."""
        return self._receipt(channel, number, self.sigma(channel, number))

    def _share(self, channel: str) -> float:
        """Part of mu^2 for one release of the channel."""
        wish = self.settings
        presence = wish.presence_share if wish.mode == "sums" else 0.0
        known = {PRESENCE: presence, TESTS: wish.tests_share}
        return known.get(channel, (1 - sum(known.values())) / wish.sweeps)

    @property
    def _slots_of_a_day(self) -> float:
        """What a day's slots bring together, in L2, where each one brings 1."""
        slots = self.clock.slots_per_day
        return math.sqrt(slots) if self.length == 1 else float(slots)

    def _receipt(self, channel: str, number: int, sigma: float) -> GaussianRelease:
        adversary: Adversary = (
            "each-upload" if self.settings.mode == "local" else "sums"
        )
        later = channel == INFECTIOUS and number > 1
        terms = Terms(
            channel=channel,
            releases=ONE_VECTOR if later else self._releases(channel),
            round=number,
            relation="replace" if later else "zero-out",
            adversary=adversary,
        )
        clip = _CLIP_OF_TESTS if channel == TESTS else 1.0
        return GaussianRelease(terms=terms, clip=clip, sigma=sigma)

    def _releases(self, channel: str) -> Releases:
        """What a larger unit moves at most, as so many vectors of the promised one.

        Parts that meet in one cell add up, and others as the sides of a rectangle.
        """
        if channel == TESTS or self.settings.unit == "person":
            return ONE_VECTOR
        clock, length = self.clock, self.length
        if channel == PRESENCE:
            length = clock.slots
        of_a_day = clock.slots_per_day ** (1 if length == 1 else 2)
        of_days = clock.days ** (2 if length > clock.slots_per_day else 1)
        day = of_a_day if self.settings.unit == "visit" else 1
        return Releases(visit=1, day=day, person=day * of_days)
