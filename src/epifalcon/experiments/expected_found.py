"""The expected number of infected people among the first K of the list of risks."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from epifalcon.epidemic.test_results import TestResults
from epifalcon.evaluation.calibration import fit_platt, why_not
from epifalcon.methods.base import Scores
from epifalcon.methods.registry import entry
from epifalcon.types import Floats, Probabilities

_NORMAL_95 = 1.96
_COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_LARGEST_SHARE = 0.3
"""Share of the untested people up to which numbers are computed."""


@dataclass(frozen=True, eq=False)
class ExpectedFound:
    """Expected infected people among the K untested people with the highest risk.

    Arrays are (largest K,); entry K - 1 is for K people.
    """

    expected: Floats
    low: Floats
    """Lower end of the 95 % interval: chance, and the uncertain level of the risks."""
    high: Floats
    at_random: float
    """Expected share of infected among all untested people."""
    untested: int
    what: Literal["now", "ever"]
    """Infected at the end of the last day, or at any time before."""
    recalibrated: bool
    """True if scores were recalibrated here, on tested people."""
    checked: bool
    """True if the interval includes the uncertain level of the risks."""

    @property
    def counts(self) -> list[int]:
        """Numbers of tests to show."""
        most = len(self.expected)
        return [*(count for count in _COUNTS if count < most), most]

    def as_plain(self) -> list[dict[str, Any]]:
        """Return one record per shown number of tests, for JSON."""
        return [
            {
                "tests": count,
                "expected": float(self.expected[count - 1]),
                "low": float(self.low[count - 1]),
                "high": float(self.high[count - 1]),
                "at_random": count * self.at_random,
            }
            for count in self.counts
        ]


def expected_found(
    method: str, scores: Scores, known: TestResults
) -> ExpectedFound | None:
    """Compute the expected number of infected people among those to test first.

    None if everybody was tested or the scores cannot be read as probabilities: those of
    a trained method or a count are recalibrated on tested people, whose own results
    they do not use, if enough are positive and negative.
    """
    untested = ~known.tested
    if not untested.any():
        return None
    listed = scores.risk[untested]
    value, masked, recalibrated = listed, scores.masked_risk, False
    positive = None if scores.masked is None else known.status[scores.masked] == 1
    if scores.now is not None:
        value = scores.now[untested]
    elif not entry(method).uses_pathogen:
        if masked is None or positive is None or why_not(masked, positive) is not None:
            return None
        platt, recalibrated = fit_platt(masked, positive), True
        value, masked = platt(listed), platt(masked)
    order = np.argsort(-listed, kind="stable")
    # A short list of few people is their whole list.
    least = min(len(order), _COUNTS[0])
    most = max(least, min(int(_LARGEST_SHARE * len(order)), _COUNTS[-1]))
    chosen = value[order[:most]]
    expected = np.cumsum(chosen)
    variance = np.cumsum(chosen * (1 - chosen))
    if masked is not None and len(masked):
        variance = variance + (expected * _level_error(masked)) ** 2
    spread = _NORMAL_95 * np.sqrt(variance)
    return ExpectedFound(
        expected,
        np.maximum(expected - spread, 0),
        np.minimum(expected + spread, np.arange(1, most + 1)),
        at_random=float(value.mean()),
        untested=len(order),
        what="ever" if scores.now is None else "now",
        recalibrated=recalibrated,
        checked=masked is not None,
    )


def _level_error(risk: Probabilities) -> float:
    """Return the relative standard error of the level of risks, (tested people,).

    This is how closely the number of positive results of these people confirms the sum
    of their risks.
    """
    return float(np.sqrt((risk * (1 - risk)).sum()) / max(risk.sum(), 1.0))
