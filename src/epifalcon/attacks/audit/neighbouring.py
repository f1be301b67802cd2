"""Epsilon of recorded releases under neighbouring relations other than their own.

A receipt with relation ``zero-out`` compares a vector with zero, at a distance of at
most the clip. Another test result changes a vector into another one, at up to twice the
clip. This affects only vectors computed from the test (see ``models.person_model`` and
``federation.client``):

| input | gradient path | vectors that a test enters |
| --- | --- | --- |
| embedding | local | gradient; ``upload/0`` after the first round, since the row |
| | | is updated by the own loss |
| embedding | exchanged | gradient; ``return`` of the last layer |
| status | local | each round either ``upload/0``, if the status is shown, or the |
| | | gradient, if it is the target |
| status | exchanged | gradient; and either ``upload/0`` or ``return`` of the last |
| | | layer |

``upload/1`` and higher are computed from received rows, presence from places only.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import DELTA, epsilon_of
from epifalcon.privacy.events import GaussianRelease, Release

_When = Literal["always", "shown", "target", "never"]
_BETWEEN_ROWS = 2.0
"""Largest distance of two clipped rows relative to the clip."""


@dataclass(frozen=True, kw_only=True)
class OtherRelations:
    """Epsilons of one person for relations other than ``zero-out``."""

    test: float
    """Epsilon if only the test result changes or is removed."""
    replace: float
    """Epsilon if all data of the person are replaced."""

    @classmethod
    def of(
        cls,
        releases: Iterable[Release],
        model: FalconSettings,
        exchanged: bool,
        delta: float = DELTA,
    ) -> "OtherRelations":
        """Compute epsilons of all Gaussian releases; infinite if one has no noise."""
        noised = [one for one in releases if isinstance(one, GaussianRelease)]
        everything = math.sqrt(sum(map(_apart, noised)))
        return cls(
            test=epsilon_of(test_mu(noised, model, exchanged), delta),
            replace=epsilon_of(everything, delta),
        )


def test_mu(
    releases: Iterable[GaussianRelease], model: FalconSettings, exchanged: bool
) -> float:
    """Return the total mu if a person's test result changes or is removed."""
    always = 0.0
    by_round: dict[int, dict[_When, float]] = defaultdict(
        lambda: {"shown": 0.0, "target": 0.0}
    )
    for one in releases:
        when = enters(one.terms.channel, one.terms.round, model, exchanged)
        if when == "always":
            always += _apart(one)
        elif when != "never":
            by_round[one.terms.round][when] += _apart(one)
    return math.sqrt(always + sum(max(one.values()) for one in by_round.values()))


def enters(channel: str, number: int, model: FalconSettings, exchanged: bool) -> _When:
    """Return in which rounds messages of ``channel`` depend on the person's own test.

    ``shown`` and ``target`` are rounds in which a status input shows the test, or hides
    it and uses it as the target.
    """
    status = model.input == "status"
    if channel == "gradient":
        return "target" if status and not exchanged else "always"
    if channel == f"return/{model.layers - 1}":
        return "target" if status else "always"
    if channel == "scoring/0":
        return "always" if status or not exchanged else "never"
    if channel == "upload/0":
        if status:
            return "shown"
        return "never" if exchanged or number == 0 else "always"
    return "never"


def _apart(release: GaussianRelease) -> float:
    """Return mu^2 of a release if all vectors of a person may be replaced."""
    if not release.protected:
        return math.inf
    ratio = _BETWEEN_ROWS * release.clip / release.sigma
    return release.terms.releases.person * ratio * ratio
