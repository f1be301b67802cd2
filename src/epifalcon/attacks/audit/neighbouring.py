"""What receipts promise for other neighbours than their own.

A receipt with relation ``zero-out`` compares a vector with zero: at most one clip
apart. Another result of a test changes a vector into another one: up to two clips
apart. Only vectors that are computed from the test count then (see
``models.person_model`` and ``federation.client``):

| input | gradient path | vectors that a test enters |
| --- | --- | --- |
| embedding | local | gradient; ``upload/0`` after the first round, since the row |
| | | is moved at home by the own loss |
| embedding | exchanged | gradient; ``return`` of the last layer |
| status | local | each round either ``upload/0``, where the status is shown, or |
| | | the gradient, where it is asked for |
| status | exchanged | gradient; and either ``upload/0`` or ``return`` of the last |
| | | layer |

``upload/1`` and higher are computed from what came back, presence from places alone.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import DELTA, epsilon_of
from epifalcon.privacy.events import GaussianRelease, Release

_When = Literal["always", "shown", "asked", "never"]
_BETWEEN_ROWS = 2.0
"""Clips between two rows that may point anywhere."""


@dataclass(frozen=True, kw_only=True)
class OtherRelations:
    """Epsilons of one person for what ``zero-out`` does not compare."""

    test: float
    """Another result, or no test at all, everything else alike."""
    replace: float
    """Everything of the person replaced by anything else."""

    @classmethod
    def of(
        cls,
        releases: Iterable[Release],
        model: FalconSettings,
        exchanged: bool,
        delta: float = DELTA,
    ) -> "OtherRelations":
        """By all noised releases of a run; infinite where one has no noise."""
        noised = [one for one in releases if isinstance(one, GaussianRelease)]
        everything = math.sqrt(sum(map(_apart, noised)))
        return cls(
            test=epsilon_of(test_mu(noised, model, exchanged), delta),
            replace=epsilon_of(everything, delta),
        )


def test_mu(
    releases: Iterable[GaussianRelease], model: FalconSettings, exchanged: bool
) -> float:
    """The mu of another result, or of no test, for a person over all releases."""
    always = 0.0
    by_round: dict[int, dict[_When, float]] = defaultdict(
        lambda: {"shown": 0.0, "asked": 0.0}
    )
    for one in releases:
        when = enters(one.terms.channel, one.terms.round, model, exchanged)
        if when == "always":
            always += _apart(one)
        elif when != "never":
            by_round[one.terms.round][when] += _apart(one)
    return math.sqrt(always + sum(max(one.values()) for one in by_round.values()))


def enters(channel: str, number: int, model: FalconSettings, exchanged: bool) -> _When:
    """When a person's own test enters what it sends by ``channel`` in a round.

    ``shown`` and ``asked`` are rounds in which a status input shows the test or hides
    and asks for it.
    """
    status = model.input == "status"
    if channel == "gradient":
        return "asked" if status and not exchanged else "always"
    if channel == f"return/{model.layers - 1}":
        return "asked" if status else "always"
    if channel == "scoring/0":
        return "always" if status or not exchanged else "never"
    if channel == "upload/0":
        if status:
            return "shown"
        return "never" if exchanged or number == 0 else "always"
    return "never"


def _apart(release: GaussianRelease) -> float:
    """The part of mu^2 of a person whose vectors may all become any others."""
    if not release.protected:
        return math.inf
    ratio = _BETWEEN_ROWS * release.clip / release.sigma
    return release.terms.releases.person * ratio * ratio
