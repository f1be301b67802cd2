"""Privacy plan of Falcon Field: channels, noise and receipts of a site's releases.

A private run releases the number of people per place (once), the numbers of tested and
positive people (once), and in each sweep the excess infectiousness. Regional
transmission would need further sums; a private run uses the pathogen's rate.

The ``reach`` of a vector is its sensitivity to the protected unit:

- a person's whole vector is scaled down to ``bound`` if it is longer;
- a day or a visit changes only its own part of a first message, which depends on a
  person's tests but not on its trace: each slot is clipped at ``cap``, and scaling
  down the whole vector increases no distance;
- later messages depend on everything that a person received, so any visit may change
  all of them: they are clipped to ``bound``, with the relation ``replace``.
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
_STEP = 2.0**-24
"""Fixed-point step of messages in mode ``sealed``, in units of a positive person."""
_CLIP_OF_TESTS = math.sqrt(2)
"""Largest L2 norm of a person's 0/1 vector (tested, positive)."""


@dataclass(frozen=True)
class FieldPlan:
    """Noise scales and receipts of a run; a private run uses the whole budget."""

    settings: FieldPrivacySettings
    clock: Clock

    @property
    def length(self) -> int:
        """Number of slots per cell."""
        lengths = {"slot": 1, "day": self.clock.slots_per_day}
        return lengths.get(self.settings.cells, self.clock.slots)

    @property
    def budget(self) -> Budget:
        """Privacy budget enforced by the ledger; unlimited in mode ``off``."""
        privacy = self.settings
        if privacy.mode == "off":
            return Budget()
        limits: dict[str, Any] = {privacy.unit: privacy.epsilon}
        return Budget(**limits, delta=privacy.delta)

    @property
    def noises(self) -> int:
        """Number of noise terms in a sum: each aggregator adds the whole noise."""
        return 2 if self.settings.mode == "sealed" else 1

    @property
    def step(self) -> float:
        """Fixed-point step of messages; 0 if they are not rounded."""
        return _STEP if self.settings.mode == "sealed" else 0.0

    @property
    def places(self) -> int:
        """Number of regions per cell that a person sends for; 0 for all.

        One visit can change which regions have the most time, and so all of their
        entries. Only the bound of a person's whole message covers that.
        """
        limited = self.settings.mode == "local" and self.settings.unit == "person"
        return self.settings.places if limited else 0

    @property
    def presence_reach(self) -> float:
        """Sensitivity of presence to the protected unit, as a share of the window."""
        slots = {"visit": 1, "day": self.clock.slots_per_day}.get(self.settings.unit)
        return self.settings.bound if slots is None else slots / self.clock.slots

    def cap(self, most: float) -> float:
        """Return the limit per slot; ``most`` is the maximum of a positive person."""
        if self.settings.unit == "person":
            return self.settings.bound / self._slots_of_a_day
        return most

    def reach(self, number: int, most: float) -> float:
        """Return a message's sensitivity to the protected unit in sweep ``number``."""
        if number > 1 or self.settings.unit == "person":
            return self.settings.bound
        slots = 1.0 if self.settings.unit == "visit" else self._slots_of_a_day
        return slots * self.cap(most)

    def sigma(self, channel: str, number: int = 0) -> float:
        """Return the noise standard deviation of a channel for sensitivity 1."""
        privacy = self.settings
        alone = self._receipt(channel, number, 1.0).squared_mu(privacy.unit)
        left = self._share(channel) * mu_for(privacy.epsilon, privacy.delta) ** 2
        return math.sqrt(alone / left)

    def opening(self) -> tuple[Release, ...]:
        """Return the receipts of releases before the first sweep."""
        if self.settings.mode != "local":
            return self.receipt(PRESENCE, 0), self.receipt(TESTS, 0)
        whole = Releases(visit=1, day=1, person=1)
        places = UnprotectedRelease(
            terms=Terms(channel="places", releases=whole),
            what="the places a person sends for",
        )
        return self.receipt(TESTS, 0), places

    def exchange(self, number: int) -> tuple[GaussianRelease, ...]:
        """Return the receipts of one sweep; none in mode ``off``."""
        return (
            () if self.settings.mode == "off" else (self.receipt(INFECTIOUS, number),)
        )

    def receipt(self, channel: str, number: int) -> GaussianRelease:
        """Return the receipt of one channel in one sweep."""
        return self._receipt(channel, number, self.sigma(channel, number))

    def _share(self, channel: str) -> float:
        """Return the fraction of mu^2 spent on one release of the channel."""
        privacy = self.settings
        presence = 0.0 if privacy.mode == "local" else privacy.presence_share
        known = {PRESENCE: presence, TESTS: privacy.tests_share}
        return known.get(channel, (1 - sum(known.values())) / privacy.sweeps)

    @property
    def _slots_of_a_day(self) -> float:
        """L2 norm of a person's contributions in one day if each slot contributes 1."""
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
        """Return how many protected vectors one visit, day or person can change."""
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
    "presence": "numbers of people per place, summed over a site",
    "tests": "numbers of tested and positive people per fold, summed over a site",
    "infectious": "expected infectiousness at places, summed over a site",
    "evidence": "evidence messages of people at places, summed over a site",
    "transmission": (
        "tested people's infections and hazard by region, summed over a site"
    ),
    "testing": "numbers of tests, and of people some days after symptoms, by day",
    "held-out losses": "losses of held-out people, summed over a site",
}


def opening_receipts(task: FieldTask, clock: Clock) -> tuple[Release, ...]:
    """Return the receipts before the first sweep; in mode ``off`` of all sweeps."""
    if task.private:
        return FieldPlan(task.settings.privacy, clock).opening()
    absent = {
        "transmission": not task.learns_transmission,
        "testing": task.tests_are_random,
        "held-out losses": not task.scores_held_out,
    }
    releases = Releases(visit=1, day=clock.slots_per_day, person=clock.slots)
    return tuple(
        UnprotectedRelease(terms=Terms(channel=name, releases=releases), what=what)
        for name, what in _UNPROTECTED.items()
        if not absent.get(name)
    )
