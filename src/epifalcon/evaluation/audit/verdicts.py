"""What an audit says of one channel: the claim, and what canaries show beside it."""

from dataclasses import dataclass
from typing import Literal

from epifalcon.evaluation.audit.repeats import NoiseFound
from epifalcon.evaluation.audit.seen import Way
from epifalcon.privacy.events import Unit

Strength = Literal["run", "test", "bare"]
"""The run's own noise; just so much that the ledger claims a small epsilon; or next
to none, so that the clip shows."""

ROUNDING = 1e-4
"""What sums in single precision may add to a length, as a share of the clip."""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One channel at one strength: what is claimed, and what guesses show."""

    channel: str
    unit: Unit
    way: Way
    strength: Strength
    sigma: float
    """Of the noise, as the plan has it."""
    rounds: tuple[int, ...]
    """Numbers of the rounds that were audited."""
    delta: float
    claimed: float
    """Epsilon by the ledger's receipts for these rounds, this channel, this unit."""
    lower_bound: float
    """The least epsilon that an honest ledger could have claimed for the same
    (``rates_mu``); infinite where noise is used twice."""
    one_run_bound: float
    """Lower bound on epsilon without taking anything for Gaussian."""
    confidence: float
    """Of all rows together."""
    canaries: int
    guesses: int
    correct: int
    noise: NoiseFound
    without_receipt: int
    """Rounds in which something left that the ledger does not know."""
    longest: float
    """The longest value that left for a canary, in clips, with its noise."""
    allowed: float
    """How long clip and noise can make it."""

    @property
    def repeats(self) -> int:
        """Vectors of noise that came more than once."""
        return self.noise.repeats

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; nothing if the claim stands."""
        found, noise = [], self.noise
        where = f" in {', '.join(noise.parts)}" if noise.parts else ""
        if noise.repeated:
            found.append(
                f"noise repeats{where}: {noise.repeats} equal vectors, correlation "
                f"between {noise.along} {noise.correlation:.1f} standard errors"
            )
        if noise.short:
            found.append(f"noise of {noise.sigma:.3g}{where}, claimed {self.sigma:.3g}")
        if self.longest > self.allowed:
            found.append(
                f"a value {self.longest:.4g} clips long left, the clip allows 1"
            )
        if self.without_receipt:
            found.append(f"{self.without_receipt} rounds left without a receipt")
        if self.lower_bound > self.claimed:
            found.append(
                f"epsilon is {self.lower_bound:.3g} or more, claimed {self.claimed:.3g}"
            )
        return tuple(found)

    @property
    def passed(self) -> bool:
        """Whether the claim stands."""
        return not self.findings
