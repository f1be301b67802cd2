"""The localisation attack: which of the claimed places fits how people move.

Shokri et al., "Quantifying Location Privacy" (2011), as the paper uses it
("Evaluation of Privacy and Utility"): the server knows the population's mobility
profile <p, pi> and computes P(true place at t = r | all claims of the person) by
the forward-backward algorithm.

As adapted here: the hidden state is one of the claims, so that a window has as
many states as claims. pi(r|t) weighs the first window, the normalised rows of
p(r, t -> r', t+1), distance term included, every later one. Shokri's profile is
each person's own; the server has none, so the aggregate takes its place.
"""

from dataclasses import dataclass
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

_PEOPLE_AT_ONCE = 64
_DEEPEST = -600.0


@dataclass(frozen=True, eq=False)
class Profile:
    """The population's mobility profile, for any number of attacks."""

    moves: Transitions
    visits: Floats
    """(slots per day, regions) pi(r|t)."""

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
    """(claims,) log-likelihoods, or empty."""
    opens: NDArray[np.int64]
    """(windows,) the slot at which each window begins."""
    visits: Floats
    moves: Transitions


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
    rows = rows_of(candidates, profile, evidence)
    made = np.empty(candidates.claims)
    parts = -(-candidates.people // _PEOPLE_AT_ONCE)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        _locate_people(rows, first, past, made)

    each_part(work, parts, 10 * candidates.claims)
    return made


def rows_of(candidates: Candidates, profile: Profile, evidence: Floats | None) -> Rows:
    """Check claims and evidence, and gather them for compiled code."""
    profile.require_match(candidates)
    given = np.empty(0)
    if evidence is not None:
        given = candidates.about_claims("evidence", evidence)
        if np.isnan(given).any() or (given == np.inf).any():
            raise DataError("evidence must be finite or -inf")
        if np.isneginf(candidates.row_max(given)).any():
            raise DataError("evidence rules out every claim of a person in a window")
    given.setflags(write=False)
    return Rows(
        candidates.start,
        candidates.region,
        given,
        candidates.opens,
        profile.visits,
        profile.moves,
    )


@compiled
def scratch_size(
    start: NDArray[np.int64], windows: int, first: int, past: int
) -> tuple[int, int]:
    """Return the most moves of a person, and the most claims of a row."""
    moves, claims = 0, 1
    for person in range(first, past):
        total, last = 0, 0
        for row in range(person * windows, (person + 1) * windows):
            size = start[row + 1] - start[row]
            claims = max(claims, size)
            if size > 0:
                total += last * size
                last = size
        moves = max(moves, total)
    return moves, claims


@compiled
def fill_moves(rows: Rows, before: int, after: int, opens: int, table: Floats) -> None:
    """Fill ``table`` (earlier, later claims) with normalised move probabilities.

    ``before`` and ``after`` are rows of claims. The move is the one into slot
    ``opens``, at which the later window begins.
    """
    start, region, moves = rows.start, rows.region, rows.moves
    first, there, weight = moves.first, moves.there, moves.weight
    base = (opens - 1) % len(rows.visits) * len(moves.point_km)
    for one in range(start[before], start[before + 1]):
        here = region[one]
        row = base + here
        share = 1.0 / moves.total[row] if moves.total[row] > 0 else 0.0
        for other in range(start[after], start[after + 1]):
            to = region[other]
            value = 0.0
            if moves.epsilon > 0:
                value = moves.epsilon * distance_weight(
                    moves.point_km, moves.spherical, here, to
                )
            cell = find_move(first, there, row, to)
            if cell >= 0:
                value += weight[cell]
            table[one - start[before], other - start[after]] = value * share


@compiled
def _locate_people(rows: Rows, first: int, past: int, probability: Floats) -> None:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``."""
    start, windows = rows.start, len(rows.opens)
    moves, claims = scratch_size(start, windows, first, past)
    table = np.empty(moves)
    block = np.empty(windows, np.int64)
    cut = np.empty(windows, np.bool_)
    factor = np.empty((windows, claims))
    ahead, behind = np.empty(claims), np.empty(claims)
    for person in range(first, past):
        base, last, end = person * windows, -1, 0
        for window in range(windows):
            row = base + window
            here = probability[start[row] : start[row + 1]]
            if not len(here):
                continue
            _evidence_factor(rows, row, factor[window])
            total = 0.0
            if last >= 0:
                early = probability[start[base + last] : start[base + last + 1]]
                size = len(early) * len(here)
                move = table[end : end + size].reshape((len(early), len(here)))
                fill_moves(rows, base + last, row, rows.opens[window], move)
                block[window] = end
                end += size
                total = _step_forward(early, move, factor[window], here)
            cut[window] = not total > 0
            if cut[window]:
                total = _begin(rows, row, rows.opens[window], factor[window], here)
            here /= total
            last = window
        ahead[:] = 1.0
        later = -1
        for window in range(windows - 1, -1, -1):
            row = base + window
            here = probability[start[row] : start[row + 1]]
            if not len(here):
                continue
            if later >= 0:
                size = start[base + later + 1] - start[base + later]
                move = table[block[later] : block[later] + len(here) * size]
                move = move.reshape((len(here), size))
                _step_back(move, cut[later], factor[later], ahead, behind)
                ahead, behind = behind, ahead
            total = 0.0
            for spot in range(len(here)):
                total += here[spot] * ahead[spot]
            if total > 0:
                for spot in range(len(here)):
                    here[spot] *= ahead[spot] / total
            later = window


@compiled
def _evidence_factor(rows: Rows, row: int, factor: Floats) -> None:
    """Write exp(evidence - maximum of the row); 1 without evidence."""
    begin, end = rows.start[row], rows.start[row + 1]
    factor[: end - begin] = 1.0
    if len(rows.evidence) == 0:
        return
    most = np.max(rows.evidence[begin:end])
    for claim in range(begin, end):
        gap = rows.evidence[claim] - most
        # What is only unlikely must not become impossible by underflow.
        if gap != -np.inf and gap < _DEEPEST:
            gap = _DEEPEST
        factor[claim - begin] = np.exp(gap)


@compiled
def _begin(rows: Rows, row: int, opens: int, factor: Floats, here: Floats) -> float:
    """Start at a row by visits and evidence, or by evidence alone."""
    visits = rows.visits[opens % len(rows.visits)]
    total = 0.0
    for spot in range(len(here)):
        here[spot] = visits[rows.region[rows.start[row] + spot]] * factor[spot]
        total += here[spot]
    if not total > 0:
        for spot in range(len(here)):
            here[spot] = factor[spot]
            total += factor[spot]
    return total


@compiled
def _step_forward(early: Floats, move: Floats, factor: Floats, here: Floats) -> float:
    """Move the probabilities one window on; return the sum of what arrives."""
    here[:] = 0.0
    for one in range(len(early)):
        for spot in range(len(here)):
            here[spot] += early[one] * move[one, spot]
    total = 0.0
    for spot in range(len(here)):
        here[spot] *= factor[spot]
        total += here[spot]
    return total


@compiled
def _step_back(
    move: Floats, cut: bool, factor: Floats, ahead: Floats, behind: Floats
) -> None:
    """Write the backward weights of the earlier window to ``behind``."""
    many, size = move.shape
    behind[:many] = 1.0
    if cut:
        return
    total = 0.0
    for spot in range(many):
        value = 0.0
        for later in range(size):
            value += move[spot, later] * factor[later] * ahead[later]
        behind[spot] = value
        total += value
    for spot in range(many):
        behind[spot] = behind[spot] / total if total > 0 else 1.0
