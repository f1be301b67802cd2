"""The recurrence attack: people come back to places, most pseudo traces do not.

Not in the paper, whose localisation attack looks at moves from slot to slot only.
Here days are laid over each other: a place claimed at the same hour of many other
days is a home or a place of work.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import Guess, name_best
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.mobility.city.borrow import borrow
from epifalcon.types import Floats

_PEOPLE_AT_ONCE = 256
_CLAIMS_AT_ONCE = 2**18
_SELDOM = 0.01


@dataclass(frozen=True, eq=False)
class Recurrence:
    """How often each claim comes back on other days, from 0 (never) to 1 (always).

    (claims,) float32 each. Counted is the weight of the other claims of the same
    region by the same person, over the windows with claims in which it could have
    been; 0 where there is no other day.
    """

    same_hour: NDArray[np.float32]
    """At the same window of other days."""
    any_hour: NDArray[np.float32]
    """At any window of other days."""


@dataclass(frozen=True)
class RecurrenceWeights:
    """A log-likelihood of claims, linear in how often they recur.

    The values given are a plain choice; ``rehearsal.learn`` finds better ones.
    """

    same_hour: float = 0.0
    log_same_hour: float = 1.0
    """Of log(.01 + share): a place seen never and one seen once differ most."""
    any_hour: float = 0.0
    log_any_hour: float = 0.0
    log_visits: float = 0.0
    """Of log pi(r|t). Below 0 where pseudo places are drawn by visits."""


def recurrence(candidates: Candidates, weight: Floats | None = None) -> Recurrence:
    """Count for each claim how often the person claims the region on other days.

    ``weight`` (claims,), each 0 to 1, is how far a claim is believed to be true;
    without it every claim counts 1. Work goes with the number of claims; windows
    must not cross midnight.
    """
    day = candidates.windows_per_day
    if weight is None:
        weight = np.ones(candidates.claims)
    told = candidates.about_claims("weight", weight)
    if told.size and not (told.min() >= 0 and told.max() <= 1 + 1e-9):
        raise DataError("weights must lie between 0 and 1")
    made = Recurrence(
        np.empty(candidates.claims, np.float32), np.empty(candidates.claims, np.float32)
    )
    shape = (candidates.windows, day, candidates.regions)
    parts = -(-candidates.people // _PEOPLE_AT_ONCE)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        claims = (candidates.start, candidates.region, told)
        out = (made.same_hour, made.any_hour)
        _count_people(claims, shape, first, past, out)

    each_part(work, parts, candidates.claims)
    return made


def recurrence_guess(
    candidates: Candidates, log_visits: Floats, *, any_hour: bool = False
) -> Guess:
    """Name the place claimed on most other days at the same hour.

    Among equals the one that more people visit (``Profile.log_visits``), then an
    even split. With ``any_hour`` the place claimed in most windows of other days.
    """
    found = recurrence(candidates)
    score = found.any_hour if any_hour else found.same_hour
    return name_best(candidates, score.astype(np.float64), log_visits)


def recurrence_evidence(
    found: Recurrence, log_visits: Floats, weights: RecurrenceWeights
) -> Floats:
    """The soft attack: a log-likelihood of each claim, up to a constant a row.

    (claims,); to be judged by itself or handed to ``forward_backward``.
    """
    made = np.empty(len(log_visits))
    told = np.array(list(vars(weights).values()))
    for first in range(0, len(made), _CLAIMS_AT_ONCE):
        part = slice(first, first + _CLAIMS_AT_ONCE)
        made[part] = features(found, log_visits, part) @ told
    return made


def features(found: Recurrence, log_visits: Floats, part: slice) -> Floats:
    """What ``RecurrenceWeights`` weigh, in its order: (claims of the part, 5)."""
    hour = found.same_hour[part].astype(np.float64)
    any_ = found.any_hour[part].astype(np.float64)
    # A region nobody visits is -inf where epsilon is 0; evidence must stay finite.
    visits = np.maximum(log_visits[part], -50.0)
    parts = [hour, np.log(_SELDOM + hour), any_, np.log(_SELDOM + any_), visits]
    return np.stack(parts, axis=1)


@compiled
def _count_people(
    claims: tuple[NDArray[np.int64], NDArray[np.int32], Floats],
    shape: tuple[int, int, int],
    first: int,
    past: int,
    out: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    windows, day, regions = shape
    lent = (borrow(claims[0]), borrow(claims[1]), borrow(claims[2]))
    # Weights by region: of one hour or the whole trace, and of one day. Zero again
    # after each use.
    whole, part = np.zeros(regions), np.zeros(regions)
    for person in range(first, past):
        rows = (person * windows, (person + 1) * windows)
        for hour in range(day):
            _count_hour(lent, (rows[0] + hour, rows[1], day), whole, out[0])
        seen = _add(lent, (rows[0], rows[1], 1), whole, 1.0)
        for begin in range(rows[0], rows[1], day):
            span = (begin, begin + day, 1)
            others = seen - _add(lent, span, part, 1.0)
            _put_other_days(lent, span, (whole, part), others, out[1])
            _add(lent, span, part, 0.0)
        _add(lent, (rows[0], rows[1], 1), whole, 0.0)


@compiled
def _add(
    claims: tuple[NDArray[np.int64], NDArray[np.int32], Floats],
    span: tuple[int, int, int],
    total: Floats,
    keep: float,
) -> int:
    """Add the weights of some rows by region, or set them to 0; rows with claims."""
    start, region, weight = claims
    seen = 0
    for row in range(span[0], span[1], span[2]):
        seen += start[row + 1] > start[row]
        for claim in range(start[row], start[row + 1]):
            total[region[claim]] = keep * (total[region[claim]] + weight[claim])
    return seen


@compiled
def _count_hour(
    claims: tuple[NDArray[np.int64], NDArray[np.int32], Floats],
    span: tuple[int, int, int],
    total: Floats,
    out: NDArray[np.float32],
) -> None:
    start, region, weight = claims
    others = _add(claims, span, total, 1.0) - 1
    for row in range(span[0], span[1], span[2]):
        for claim in range(start[row], start[row + 1]):
            back = max(0.0, total[region[claim]] - weight[claim])
            out[claim] = back / others if others > 0 else 0.0
    _add(claims, span, total, 0.0)


@compiled
def _put_other_days(
    claims: tuple[NDArray[np.int64], NDArray[np.int32], Floats],
    span: tuple[int, int, int],
    totals: tuple[Floats, Floats],
    others: int,
    out: NDArray[np.float32],
) -> None:
    start, region, _ = claims
    whole, part = totals
    for row in range(span[0], span[1], span[2]):
        for claim in range(start[row], start[row + 1]):
            here = region[claim]
            back = max(0.0, whole[here] - part[here])
            out[claim] = back / others if others > 0 else 0.0
