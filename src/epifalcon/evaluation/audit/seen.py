"""What a canary is, and what an auditor saw of all of them in one channel.

A canary is a visit (or, for gradients, a person) whose value an auditor made up: a
row far longer than the clip, so that the clip must hold it, sent or left out by a
fair coin of its own. "Left out" is what the ledger's relation calls neighbouring:
the place is a pseudo one, whose row is zero, or (``replace``) the row points the
other way.

The auditor sees what leaves, knows every made-up row but not the coins, and scores
each canary by the matched filter: the released vector along the canary's row, in
units of the clip. Rows change sign from round to round, so noise that is used in two
rounds cancels in the sum over rounds instead of hiding there.

Blanks, places and people whose value is always zero, show the noise alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from epifalcon.privacy.events import Relation, Unit
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask

Way = Literal["each upload", "fast engine"]
"""Uploads one by one, as a server sees them; or what the fast engine hands back."""

BLANKS = 64
"""People whose value is always zero, where blanks are people."""
LENGTH = 8.0
"""Of a canary's row, in clips."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the auditor saw of one channel over all rounds."""

    channel: str
    unit: Unit
    way: Way
    scores: Floats
    """(rounds, canaries) along the canary's own row: 1 where one clip's worth came,
    0 where nothing did, -1 for the opposite row."""
    included: Mask
    """(canaries,) the coins; for judging only."""
    middle: float
    """Halfway between what "in" and "out" should score in one round."""
    blank: Floats
    """(rounds, owners, places, width) what was sent where nothing was to tell."""


def coins(seed: int, name: str, shape: tuple[int, ...]) -> Mask:
    """Fair coins, one stream for each name."""
    return Streams(seed).numpy(f"canary coins of {name}").random(shape) < 0.5


def factors(included: Mask, relation: Relation) -> Floats:
    """What each canary's row is multiplied with: 1, or 0 or -1 if it is out."""
    return np.where(included, 1.0, -1.0 if relation == "replace" else 0.0)


def middle(relation: Relation) -> float:
    """Halfway between the two factors."""
    return 0.0 if relation == "replace" else 0.5


def sign(number: int) -> int:
    """Of all rows in a round: 1 or -1 in turn."""
    return 1 - 2 * (number % 2)
