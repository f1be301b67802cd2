"""What a canary is, and what an auditor saw of all of them in one channel.

A canary is a visit (or, for gradients, a person) whose value an auditor made up: a
row longer than the clip, so that the clip must hold it, sent or left out by a fair
coin of its own. "Left out" is what the ledger's relation calls neighbouring: the
place is a pseudo one, whose row is zero, or (``replace``) the row points the other
way.

The auditor sees what leaves, knows every made-up row but not the coins, and scores
each canary by the matched filter: the released vector along the canary's row, in
units of the clip. Rows change sign from round to round, so noise that is used in two
rounds cancels in the sum over rounds instead of hiding there.

Blanks, places and people whose value is always zero, show the noise alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from epifalcon.privacy.events import Relation, Unit
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask

Way = Literal["each upload", "fast engine", "sums of a site"]
"""Uploads one by one, as a server sees them; what the fast engine makes; or sums over
the people of a site."""

BLANKS = 64
"""People whose value is always zero, where blanks are people."""
_SHORTEST, _LONGEST = 1.05, 1000.0
"""Of a canary's row, in clips: a clip that spares rows a little too long shows too."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """What the auditor saw of one channel over all rounds."""

    channel: str
    unit: Unit
    way: Way
    rounds: tuple[int, ...]
    """Numbers of the rounds."""
    scores: Floats
    """(rounds, canaries) along the canary's own row: 1 where one clip's worth came,
    0 where nothing did, -1 for the opposite row."""
    lengths: Floats
    """(rounds, canaries) L2 norm of what came for each canary, in clips."""
    included: Mask
    """(canaries,) the coins; for judging only."""
    middle: float
    """Halfway between what "in" and "out" should score in one round."""
    blank: dict[str, Floats]
    """By part of the value, such as a parameter's name, each (rounds, owners, places,
    width): what was sent where nothing was to tell."""
    size: int
    """Numbers in what leaves for one canary."""
    noises: int = 1
    """Uploads whose noise is in one value; ``blank`` is divided by its root."""


def coins(seed: int, name: str, shape: tuple[int, ...]) -> Mask:
    """Fair coins, one stream for each name."""
    return Streams(seed).numpy(f"canary coins of {name}").random(shape) < 0.5


def row_lengths(seed: int, name: str, count: int) -> Floats:
    """How long canaries are, in clips: from hardly too long to far too long."""
    rng = Streams(seed).numpy(f"canary lengths of {name}")
    low, high = math.log(_SHORTEST), math.log(_LONGEST)
    return np.exp(rng.uniform(low, high, count))


def factors(included: Mask, relation: Relation) -> Floats:
    """What each canary's row is multiplied with: 1, or 0 or -1 if it is out."""
    return np.where(included, 1.0, -1.0 if relation == "replace" else 0.0)


def middle(relation: Relation) -> float:
    """Halfway between the two factors."""
    return 0.0 if relation == "replace" else 0.5


def signs(rounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Each round's number, and the sign of all rows in it: 1 or -1 in turn."""
    return tuple((number, 1 - 2 * (turn % 2)) for turn, number in enumerate(rounds))
