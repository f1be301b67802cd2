"""Channels, noise and receipts of everything that leaves a site.

In a private run that is: how many people were where (once), how many were tested and
positive (once), and in each sweep the excess infectiousness. Transmission by region
would need sums of its own; a private run uses the pathogen's rate.

Every vector is scaled so that the protected unit moves it by at most 1, its
``reach``:

- a person's whole vector is scaled down to ``bound`` if it is longer;
- a day or a visit moves a first message by its own part alone, because that message
  follows from a person's tests and not from its trace: each slot is clipped at
  ``cap``, and scaling down the whole brings no two vectors further apart;
- later messages follow from everything that a person received, so any visit may
  change all of them: they are clipped as a person's, and count as replaced.
"""

import math
from dataclasses import dataclass
from typing import Any

from epifalcon.federation.field.settings import FieldPrivacySettings, FieldTask
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.accounting import mu_for
from epifalcon.privacy.events import (
    ONE_VECTOR,
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


@dataclass(frozen=True)
class FieldPlan:
    """Noise and receipts of a private run that spends exactly the budget."""

    settings: FieldPrivacySettings
    clock: Clock

    @property
    def length(self) -> int:
        """Slots of a cell."""
        lengths = {"slot": 1, "day": self.clock.slots_per_day}
        return lengths.get(self.settings.cells, self.clock.slots)

    @property
    def budget(self) -> Budget:
        """The budget that the ledger enforces."""
        wish = self.settings
        limits: dict[str, Any] = {wish.unit: wish.epsilon}
        return Budget(**limits, delta=wish.delta)

    @property
    def presence_reach(self) -> float:
        """How far the unit moves the release of presence, in shares of the window."""
        slots = {"visit": 1, "day": self.clock.slots_per_day}.get(self.settings.unit)
        return self.settings.bound if slots is None else slots / self.clock.slots

    def cap(self, most: float) -> float:
        """Return the cap of one slot; ``most`` is that of a positive person."""
        if self.settings.unit == "person":
            return self.settings.bound / self._slots_of_a_day
        return most

    def reach(self, number: int, most: float) -> float:
        """Return how far the unit moves the message of a sweep."""
        if number > 1 or self.settings.unit == "person":
            return self.settings.bound
        slots = 1.0 if self.settings.unit == "visit" else self._slots_of_a_day
        return slots * self.cap(most)

    def sigma(self, channel: str, number: int = 0) -> float:
        """Return the noise that the adversary sees, for a reach of 1."""
        wish = self.settings
        alone = self._receipt(channel, number, 1.0).squared_mu(wish.unit)
        left = self._share(channel) * mu_for(wish.epsilon, wish.delta) ** 2
        return math.sqrt(alone / left)

    def opening(self) -> tuple[Release, ...]:
        """Return the receipts of what leaves once, before the first sweep."""
        if self.settings.mode == "sums":
            return self.receipt(PRESENCE, 0), self.receipt(TESTS, 0)
        whole = Releases(visit=1, day=1, person=1)
        places = UnprotectedRelease(
            terms=Terms(channel="places", releases=whole),
            what="the places a person sends for",
        )
        return self.receipt(TESTS, 0), places

    def exchange(self, number: int) -> tuple[GaussianRelease, ...]:
        """Return the receipts of one sweep."""
        return (self.receipt(INFECTIOUS, number),)

    def receipt(self, channel: str, number: int) -> GaussianRelease:
        """Return the receipt of one channel in one sweep."""
        return self._receipt(channel, number, self.sigma(channel, number))

    def _share(self, channel: str) -> float:
        """Part of mu^2 for one release of the channel."""
        wish = self.settings
        presence = wish.presence_share if wish.mode == "sums" else 0.0
        known = {PRESENCE: presence, TESTS: wish.tests_share}
        return known.get(channel, (1 - sum(known.values())) / wish.sweeps)

    @property
    def _slots_of_a_day(self) -> float:
        """L2 norm of a day's slots if each one contributes 1."""
        slots = self.clock.slots_per_day
        return math.sqrt(slots) if self.length == 1 else float(slots)

    def _receipt(self, channel: str, number: int, sigma: float) -> GaussianRelease:
        later = channel == INFECTIOUS and number > 1
        terms = Terms(
            channel=channel,
            releases=ONE_VECTOR if later else self._releases(channel),
            round=number,
            relation="replace" if later else "zero-out",
            adversary="each-upload" if self.settings.mode == "local" else "sums",
        )
        clip = _CLIP_OF_TESTS if channel == TESTS else 1.0
        return GaussianRelease(terms=terms, clip=clip, sigma=sigma)

    def _releases(self, channel: str) -> Releases:
        """Return how many vectors of the protected unit a larger unit moves at most."""
        if channel == TESTS or self.settings.unit == "person":
            return ONE_VECTOR
        clock, length = self.clock, self.length
        if channel == PRESENCE:
            length = clock.slots
        of_a_day = clock.slots_per_day ** (1 if length == 1 else 2)
        of_days = clock.days ** (2 if length > clock.slots_per_day else 1)
        day = of_a_day if self.settings.unit == "visit" else 1
        return Releases(visit=1, day=day, person=day * of_days)


_UNPROTECTED = {
    "presence": "how many people were where, added up over a site",
    "tests": "how many were tested and positive, of a site by folds",
    "infectious": "expected infectiousness at places, added up over a site",
    "evidence": "evidence of what became of people, added up over a site",
    "transmission": (
        "tested people's infections and hazard by region, added up over a site"
    ),
    "judgement": "how well held-out tested people are told, added up over a site",
}


def budget_of(task: FieldTask, clock: Clock) -> Budget:
    """Return the budget that a ledger enforces for ``task``."""
    if not task.private:
        return Budget()
    return FieldPlan(task.wishes.privacy, clock).budget


def opening_receipts(task: FieldTask, clock: Clock) -> tuple[Release, ...]:
    """Return the receipts before the first sweep; without privacy those of all."""
    if task.private:
        return FieldPlan(task.wishes.privacy, clock).opening()
    absent = {
        "transmission": not task.learns_transmission,
        "judgement": not task.selects_transmission,
    }
    releases = Releases(visit=1, day=clock.slots_per_day, person=clock.slots)
    return tuple(
        UnprotectedRelease(terms=Terms(channel=name, releases=releases), what=what)
        for name, what in _UNPROTECTED.items()
        if not absent.get(name)
    )


def sweep_receipts(task: FieldTask, clock: Clock, number: int) -> tuple[Release, ...]:
    """Return the receipts of one sweep besides those."""
    if not task.private:
        return ()
    return FieldPlan(task.wishes.privacy, clock).exchange(number)
