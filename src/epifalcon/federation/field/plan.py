"""The plan of a private run: which channels, which noise, which receipts.

All that leaves devices is here: how many people were where (once), how many were
tested and positive (once), and in each exchange expected infectiousness and
evidence. Transmission by region would need sums of its own; a private run takes
the pathogen's.
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

PRESENCE, TESTS = "presence", "tests"
INFECTIOUS, EVIDENCE = "infectious", "evidence"
_CLIP_OF_TESTS = math.sqrt(2)
"""A person's vector of (tested, positive)."""


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """Noise and receipts of every channel; decided once."""

    settings: FieldPrivacySettings
    releases: Releases
    """Vectors of one exchange that a visit, a day and a person can change."""
    sigma: dict[str, float]
    """Noise by channel, on what the adversary sees."""

    @classmethod
    def of(cls, settings: FieldPrivacySettings, clock: Clock) -> "FieldPlan":
        """The plan that keeps the promise of ``settings`` exactly."""
        by_day = settings.cells == "day"
        releases = Releases(
            visit=1,
            day=1 if by_day else clock.slots_per_day,
            person=clock.days if by_day else clock.slots,
        )
        shares = {
            PRESENCE: settings.presence_share,
            TESTS: settings.tests_share,
            EVIDENCE: settings.evidence_share,
        }
        shares[INFECTIOUS] = 1 - sum(shares.values())
        plan = cls(settings=settings, releases=releases, sigma={})
        squared_mu = mu_for(settings.epsilon, settings.delta) ** 2
        for channel, share in shares.items():
            times = settings.sweeps if channel in (INFECTIOUS, EVIDENCE) else 1
            alone = plan._receipt(channel, 0, sigma=1.0)
            cost = times * alone.squared_mu(settings.unit)
            plan.sigma[channel] = math.sqrt(cost / (share * squared_mu))
        return plan

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

    def opening(self) -> tuple[Release, ...]:
        """Receipts of what leaves once, before the first exchange."""
        noised = (self.receipt(PRESENCE, 0), self.receipt(TESTS, 0))
        if self.settings.mode == "sums":
            return noised
        terms = Terms(channel="places", releases=self.releases)
        places = UnprotectedRelease(terms=terms, what="the places a person sends for")
        return *noised, places

    def exchange(self, number: int) -> tuple[GaussianRelease, GaussianRelease]:
        """Receipts of one exchange."""
        return self.receipt(INFECTIOUS, number), self.receipt(EVIDENCE, number)

    def receipt(self, channel: str, number: int) -> GaussianRelease:
        """The receipt of one channel in one exchange."""
        return self._receipt(channel, number, self.sigma[channel])

    def _receipt(self, channel: str, number: int, sigma: float) -> GaussianRelease:
        adversary: Adversary = (
            "each-upload" if self.settings.mode == "local" else "sums"
        )
        terms = Terms(
            channel=channel,
            releases=ONE_VECTOR if channel == TESTS else self.releases,
            round=number,
            adversary=adversary,
        )
        clip = {TESTS: _CLIP_OF_TESTS, EVIDENCE: self.settings.evidence_bound}
        return GaussianRelease(terms=terms, clip=clip.get(channel, 1.0), sigma=sigma)
