"""The localisation attack: which of the claimed places fits how people move.

Shokri et al., "Quantifying Location Privacy" (2011), as the paper uses it
("Evaluation of Privacy and Utility"): the server knows the population's mobility
profile <p, pi> and computes P(true place at t = r | all claims of the person) by
the forward-backward algorithm.

Adapted: the states of a window are its claims. pi(r|t) weighs the first window, the
normalised rows of p(r, t -> r', t+1), distance term included, every later one. The
aggregate profile replaces Shokri's profile of each person, which the server lacks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part
from epifalcon.errors import DataError
from epifalcon.evaluation.attacks.claims import Candidates
from epifalcon.mobility.markov import (
    MobilityModel,
    Transitions,
    distance_weight,
    find_move,
)
from epifalcon.types import Floats, RegionIds

_PEOPLE_AT_ONCE = 16
_DEEPEST = -600.0
_BITS = 1024


@dataclass(frozen=True, eq=False)
class Profile:
    """The population's mobility profile, for any number of attacks."""

    moves: Transitions
    visits: Floats
    """(slots per day, regions) pi(r|t)."""

    @cached_property
    def reached(self) -> NDArray[np.uint64]:
        """(rows of moves, words) has bit r' % 1024 where a move to r' is stored.

        Six in seven pairs of claims have no stored move, and need no search.
        """
        first, there = self.moves.first, self.moves.there
        made = np.zeros((len(first) - 1, _BITS // 64), np.uint64)
        row = np.repeat(np.arange(len(made)), np.diff(first))
        bit = np.uint64(1) << (there % 64).astype(np.uint64)
        np.bitwise_or.at(made, (row, there % _BITS // 64), bit)
        return made

    @classmethod
    def of(cls, model: MobilityModel) -> "Profile":
        """Take moves and visits of ``model``."""
        visits = [np.exp(model.log_visits(t)) for t in range(model.slots_per_day)]
        return cls(model.transitions, np.stack(visits))

    def log_visits(self, candidates: Candidates) -> Floats:
        """Return log pi(r|t), t the first slot of the claim's window: (claims,)."""
        self.require_match(candidates)
        with np.errstate(divide="ignore"):
            table = np.log(self.visits)[candidates.opens % len(self.visits)]
        return np.asarray(table[candidates.window, candidates.region])

    def require_match(self, candidates: Candidates) -> None:
        """Raise ``DataError`` unless both have the same regions and slots per day."""
        slots, regions = self.visits.shape
        pairs = {
            "regions": (regions, candidates.regions),
            "slots per day": (slots, candidates.clock.slots_per_day),
        }
        for name, (ours, theirs) in pairs.items():
            if ours != theirs:
                raise DataError(
                    f"the mobility model has {ours} {name}, the claims {theirs}"
                )


class Rows(NamedTuple):
    """Claims and mobility profile as compiled code takes them."""

    start: NDArray[np.int64]
    region: RegionIds
    evidence: Floats
    """(claims,) log-likelihoods minus the maximum of their row, or empty."""
    opens: NDArray[np.int64]
    """(windows,) the slot at which each window begins."""
    visits: Floats
    moves: Transitions
    reached: NDArray[np.uint64]
    """``Profile.reached``"""


def forward_backward(
    candidates: Candidates, profile: Profile, evidence: Floats | None = None
) -> Floats:
    """Compute P(the person was there | all claims of the person): (claims,).

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is the log-likelihood of other observations if the claim is true, up to a
    constant for each row, -inf for a claim that cannot be true; without it all
    claims are alike.

    - **Gaps.** A person without claims for a while is assumed to stand still and to
      make one move into the slot of the next claims, as pseudo traces do.
    - **Windows** of several slots: one region per window, one move at the border.
    - **Dead ends**, only with epsilon 0 or evidence of -inf: where no claim can be
      reached from the window before, the inference starts again.

    Evidence more than 600 below the best of its row counts as 600 below.
    """
    return each_person(_locate_people, candidates, profile, evidence)


def each_person(
    kernel: Callable[[Rows, int, int, Floats], None],
    candidates: Candidates,
    profile: Profile,
    evidence: Floats | None,
) -> Floats:
    """Run ``kernel(rows, first person, past the last, result)`` on all people."""
    profile.require_match(candidates)
    given = np.empty(0)
    if evidence is not None:
        given = candidates.about_claims("evidence", evidence)
        if np.isnan(given).any() or (given == np.inf).any():
            raise DataError("evidence must be finite or -inf")
        most = candidates.row_max(given)
        if np.isneginf(most).any():
            raise DataError("evidence rules out every claim of a person in a window")
        given = given - candidates.per_claim(most)
    rows = Rows(
        candidates.start,
        candidates.region,
        given,
        candidates.opens,
        profile.visits,
        profile.moves,
        profile.reached,
    )
    made = np.empty(candidates.claims)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        kernel(rows, first, past, made)

    parts = -(-candidates.people // _PEOPLE_AT_ONCE)
    each_part(work, parts, 10 * candidates.claims)
    return made


@compiled
def most_claims(start: NDArray[np.int64], windows: int, first: int, past: int) -> int:
    """Return the most claims of a row of people ``first`` to ``past``; at least 1."""
    most = 1
    for row in range(first * windows, past * windows):
        most = max(most, start[row + 1] - start[row])
    return most


@compiled
def fill_moves(rows: Rows, before: int, after: int, opens: int, table: Floats) -> None:
    """Fill ``table`` (earlier, later claims) with normalised move probabilities.

    ``before`` and ``after`` are rows of claims. The move is the one into slot
    ``opens``, at which the later window begins.
    """
    start, region, moves = rows.start, rows.region, rows.moves
    first, there, weight = moves.first, moves.there, moves.weight
    base = (opens - 1) % len(rows.visits) * len(moves.point_km)
    early, later = start[before], start[after]
    for one in range(start[before + 1] - early):
        here = region[early + one]
        row = base + here
        share = 1.0 / moves.total[row] if moves.total[row] > 0 else 0.0
        low, past = first[row], first[row + 1]
        for other in range(start[after + 1] - later):
            to = region[later + other]
            value = 0.0
            if moves.epsilon > 0:
                near = distance_weight(moves.point_km, moves.spherical, here, to)
                value = moves.epsilon * near
            if rows.reached[row, to % _BITS // 64] >> np.uint64(to % 64) & np.uint64(1):
                # Claims are in ascending order: search only behind the one before.
                low = find_move(there, low, past, to)
                if low < past and there[low] == to:
                    value += weight[low]
            table[one, other] = value * share


@compiled
def _locate_people(rows: Rows, first: int, past: int, probability: Floats) -> None:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``."""
    start, windows = rows.start, len(rows.opens)
    claims = most_claims(start, windows, first, past)
    table = np.empty((windows, claims, claims))
    filled = np.empty(windows, np.int64)
    cut = np.empty(windows, np.bool_)
    factor = np.ones((windows, claims))
    ahead, behind = np.empty(claims), np.empty(claims)
    for person in range(first, past):
        steps = 0
        for window in range(windows):
            row = person * windows + window
            here = probability[start[row] : start[row + 1]]
            if not len(here):
                continue
            if len(rows.evidence):
                for spot in range(len(here)):
                    gap = rows.evidence[start[row] + spot]
                    # What is only unlikely must not become impossible by underflow.
                    least = _DEEPEST if gap != -np.inf else gap
                    factor[steps, spot] = np.exp(max(gap, least))
            filled[steps], total = row, 0.0
            if steps > 0:
                last = filled[steps - 1]
                early = probability[start[last] : start[last + 1]]
                fill_moves(rows, last, row, rows.opens[window], table[steps])
                total = _step_forward(early, table[steps], factor[steps], here)
            cut[steps] = not total > 0
            if cut[steps]:
                visits = rows.visits[rows.opens[window] % len(rows.visits)]
                region = rows.region[start[row] : start[row + 1]]
                total = _begin(visits, region, factor[steps], here)
            here /= total
            steps += 1
        ahead[:] = 1.0
        for step in range(steps - 1, -1, -1):
            row = filled[step]
            here = probability[start[row] : start[row + 1]]
            if step + 1 < steps:
                later = filled[step + 1]
                size = start[later + 1] - start[later]
                ahead[:size] *= factor[step + 1, :size]
                _step_back(
                    table[step + 1, : len(here), :size], cut[step + 1], ahead, behind
                )
                ahead, behind = behind, ahead
            total = 0.0
            for spot in range(len(here)):
                total += here[spot] * ahead[spot]
            if total > 0:
                for spot in range(len(here)):
                    here[spot] *= ahead[spot] / total


@compiled
def _begin(visits: Floats, region: RegionIds, factor: Floats, here: Floats) -> float:
    """Start at a row by visits and evidence, or by evidence alone."""
    for spot in range(len(here)):
        here[spot] = visits[region[spot]] * factor[spot]
    if not here.sum() > 0:
        here[:] = factor[: len(here)]
    return float(here.sum())


@compiled
def _step_forward(early: Floats, move: Floats, factor: Floats, here: Floats) -> float:
    """Move the probabilities one window on; return the sum of what arrives."""
    here[:] = 0.0
    for one in range(len(early)):
        for spot in range(len(here)):
            here[spot] += early[one] * move[one, spot]
    here *= factor[: len(here)]
    return float(here.sum())


@compiled
def _step_back(move: Floats, cut: bool, ahead: Floats, behind: Floats) -> None:
    """Write the backward weights of the earlier window to ``behind``."""
    many, size = move.shape
    behind[:many] = 1.0
    if cut:
        return
    for spot in range(many):
        value = 0.0
        for later in range(size):
            value += move[spot, later] * ahead[later]
        behind[spot] = value
    total = behind[:many].sum()
    for spot in range(many):
        behind[spot] = behind[spot] / total if total > 0 else 1.0
