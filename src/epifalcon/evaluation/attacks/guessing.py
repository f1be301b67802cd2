"""From scores to guesses, and how often guesses are wrong.

Guessing needs what the server saw and nothing else; ``judge`` alone is given the
truth.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.traces import Traces
from epifalcon.types import Counts, Floats, Mask

Guess = NDArray[np.float32]
"""(claims,) the share of its row's guess that each claim gets: 1 for the named
one, 1/m for each of m that cannot be told apart. Rows add up to 1."""

_TIE = 1e-9
_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True, eq=False)
class Verdict:
    """How often an attack was wrong, person by person.

    A pair (person, window) counts if a true place of it is known. Ties count in
    expectation: a guess split in two, one of them true, is half wrong.
    """

    wrong: Floats
    """(people,) expected number of wrong pairs."""
    blind: Floats
    """(people,) the same for a blind guess: 1 - true/candidates a pair."""
    pairs: Counts
    """(people,) pairs that count."""

    @property
    def error(self) -> float:
        """Share of pairs guessed wrong."""
        return _ratio(self.wrong, self.pairs)

    @property
    def random(self) -> float:
        """What a blind guess gets wrong."""
        return _ratio(self.blind, self.pairs)

    def interval(
        self, rng: np.random.Generator, replicates: int = 1000, level: float = 0.95
    ) -> Interval:
        """The error with its interval by drawing people anew, all slots of each.

        Slots of one person are far from independent, so people are the units.
        It says what other people of the same city would give, not other cities.
        Where no guess was wrong, drawing anew shows nothing: then the upper end
        is the largest share of people with a wrong guess that fits none among
        these (Clopper and Pearson).
        """
        whole(2, replicates=replicates)
        if not 0 < level < 1:
            raise SettingsError(f"level={level} must lie between 0 and 1")
        counted = np.flatnonzero(self.pairs)
        wrong, pairs = self.wrong[counted], self.pairs[counted]
        drawn: list[Floats] = []
        rows = max(1, _DRAWS_AT_ONCE // len(counted))
        for first in range(0, replicates, rows):
            size = (min(rows, replicates - first), len(counted))
            chosen = rng.integers(0, len(counted), size)
            drawn.append(wrong[chosen].sum(axis=1) / pairs[chosen].sum(axis=1))
        ends = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(np.concatenate(drawn), ends)
        if not wrong.any():
            high = 1 - ends[0] ** (1 / len(counted))
        return Interval(self.error, float(low), float(high), level)


def name_best(
    candidates: Candidates, score: Floats, then: Floats | None = None
) -> Guess:
    """The claim with the largest ``score`` (claims,) of each person and window.

    Among equals (to one part in 10^9) the one with the largest ``then``; the
    guess is split evenly among those equal in both. No luck of order anywhere.
    """
    first = candidates.about_claims("score", score)
    second = first if then is None else candidates.about_claims("then", then)
    if np.isnan(first).any() or np.isnan(second).any():
        raise DataError("scores must be numbers, not NaN")
    made = np.empty(candidates.claims, np.float32)
    _share_out(candidates.start, first, second, made)
    return made


def true_claims(candidates: Candidates, traces: Traces) -> Mask:
    """Which claims are true, for whoever knows the traces: (claims,).

    Raises ``DataError`` where a person was in a region without claiming it.
    """
    wanted = (candidates.people, candidates.regions, candidates.clock.slots)
    given = (traces.people, len(traces.regions), traces.slots)
    if given != wanted:
        raise DataError(
            f"traces of (people, regions, slots) = {given}, claims of {wanted}"
        )
    made = np.zeros(candidates.claims, np.bool_)
    # A plain array: a memory-mapped one would be compiled for anew.
    by_person = np.ascontiguousarray(traces.by_person).view(np.ndarray)
    width = candidates.window_slots
    lost = _mark_true(candidates.start, candidates.region, by_person, width, made)
    if lost:
        raise DataError(f"{lost} true places are not among the claims")
    return made


def localisation_error(guess: Guess, candidates: Candidates, truth: Mask) -> Verdict:
    """Judge a guess: ``truth`` (claims,) says which claims are true.

    A guess is right if the region it names is a true one of the window.
    """
    if truth.shape != (candidates.claims,) or truth.dtype != np.bool_:
        raise DataError(
            f"truth is {truth.dtype} of shape {truth.shape}, expected bool of shape "
            f"({candidates.claims},)"
        )
    shares = candidates.about_claims("guess", guess)
    wrong, blind = np.zeros(candidates.people), np.zeros(candidates.people)
    pairs = np.zeros(candidates.people, np.int64)
    told = (shares, np.ascontiguousarray(truth))
    _count_wrong(candidates.start, candidates.windows, told, (wrong, blind), pairs)
    if not pairs.any():
        raise DataError("no claim is true: there is nothing to judge")
    return Verdict(wrong, blind, pairs)


def _ratio(part: Floats, whole_: Counts) -> float:
    return float(part.sum() / whole_.sum())


@compiled
def _share_out(
    start: NDArray[np.int64], score: Floats, then: Floats, made: Guess
) -> None:
    for row in range(len(start) - 1):
        begin, end = start[row], start[row + 1]
        best, second = -np.inf, -np.inf
        for claim in range(begin, end):
            best = max(best, score[claim])
        least = best - _TIE * abs(best) if np.isfinite(best) else best
        for claim in range(begin, end):
            if score[claim] >= least:
                second = max(second, then[claim])
        at_least = second - _TIE * abs(second) if np.isfinite(second) else second
        equal = 0
        for claim in range(begin, end):
            chosen = score[claim] >= least and then[claim] >= at_least
            made[claim] = 1.0 if chosen else 0.0
            equal += chosen
        for claim in range(begin, end):
            made[claim] /= equal


@compiled
def _mark_true(
    start: NDArray[np.int64],
    region: NDArray[np.int32],
    by_person: NDArray[np.int32],
    width: int,
    made: Mask,
) -> int:
    """Mark the claims of true places; how many places are not claimed."""
    people, slots = by_person.shape
    windows, lost = slots // width, 0
    for place in range(people * slots):
        person, slot = place // slots, place % slots
        here = by_person[person, slot]
        row = person * windows + slot // width
        claim, end = start[row], start[row + 1]
        while claim < end and region[claim] != here:
            claim += 1
        if claim < end:
            made[claim] = True
        elif here >= 0:
            lost += 1
    return lost


@compiled
def _count_wrong(
    start: NDArray[np.int64],
    windows: int,
    told: tuple[Floats, Mask],
    found: tuple[Floats, Floats],
    pairs: Counts,
) -> None:
    share, truth = told
    wrong, blind = found
    for row in range(len(start) - 1):
        begin, end = start[row], start[row + 1]
        right, true = 0.0, 0
        for claim in range(begin, end):
            if truth[claim]:
                right += share[claim]
                true += 1
        if true > 0:
            person = row // windows
            # Shares of a third each may add up to a little more than 1.
            wrong[person] += max(0.0, 1 - right)
            blind[person] += 1 - true / (end - begin)
            pairs[person] += 1
