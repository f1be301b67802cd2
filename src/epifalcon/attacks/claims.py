"""Claimed places, guesses of the true ones, and the errors of these guesses.

A server receives claims: places of a person, true and pseudo. Attacks score each claim
only from what the server received; only ``true_claims`` and ``localisation_error`` read
the truth.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.uncertainty import LEVEL, Interval
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_traces import PseudoTraces
from epifalcon.types import UNKNOWN, Counts, Floats, Mask, RegionIds

Guess = NDArray[np.float32]
"""Weight of each claim in the guess of its row, (claims,): 1 for the best claim, or 1/m
for each of m claims with equal scores. The weights of a row add up to 1."""

_PEOPLE_AT_ONCE = 512
_TIE = 1e-9
_REPLICATES = 1000


@dataclass(frozen=True, eq=False)
class Candidates:
    """Claimed regions of each person and window, of which one or more may be true.

    Rows are (person, window), person by person; row i holds the claims from
    ``start[i]`` to ``start[i + 1]``, in ascending order of region, so that the
    position of a claim reveals nothing. A person without observation in a window
    has an empty row there. Every array about claims (evidence, probabilities,
    guesses) has this order.

    With windows of several slots a claim is a region claimed at some slot of
    the window, and several claims of a row may be true. Attacks then guess one
    region per window, and are right if the person was there at any of its slots.
    """

    people: int
    regions: int
    clock: Clock
    window_slots: int
    start: NDArray[np.int64]
    """First claim of each row, and the end, (people * windows + 1,)."""
    region: RegionIds
    """Region of each claim, (claims,)."""

    def __post_init__(self) -> None:
        self.start.setflags(write=False)
        self.region.setflags(write=False)

    @classmethod
    def of_claims(
        cls,
        person: NDArray[np.integer[Any]],
        key: NDArray[np.integer[Any]],
        people: int,
        regions: int,
        clock: Clock,
        window_slots: int = 1,
    ) -> "Candidates":
        """Build candidates from ``person`` and ``key``, (claims,) each, in any order.

        ``key`` is window * regions + region, as in ``Incidence.edge_key``. Duplicate
        claims raise ``DataError``.
        """
        windows = clock.windows(window_slots)
        places = windows * regions
        code = np.sort(person.astype(np.int64) * places + key)
        if (np.diff(code) == 0).any():
            raise DataError("a person claims a place twice")
        row = np.arange(people * windows + 1)
        start = np.searchsorted(code, row * regions).astype(np.int64)
        region = (code % regions).astype(np.int32)
        return cls(people, regions, clock, window_slots, start, region)

    @classmethod
    def of_pseudo(cls, made: PseudoTraces, window_slots: int = 1) -> "Candidates":
        """Build the claims that all devices would send: true and pseudo regions."""
        true, codes = made.true, []
        regions = len(true.regions)
        places = true.clock.windows(window_slots) * regions
        for first in range(0, true.people, _PEOPLE_AT_ONCE):
            part = slice(first, first + _PEOPLE_AT_ONCE)
            every = [true.by_slot[None, :, part], made.pseudo[..., part]]
            claims = np.concatenate(every)
            copy, slot, person = np.nonzero(claims != UNKNOWN)
            key = slot // window_slots * regions + claims[copy, slot, person]
            codes.append(np.unique((first + person) * places + key))
        person, key = np.divmod(np.concatenate(codes), places)
        clock = true.clock
        return cls.of_claims(person, key, true.people, regions, clock, window_slots)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return self.clock.slots // self.window_slots

    @property
    def windows_per_day(self) -> int:
        """Number of windows per day; ``SettingsError`` if one crosses midnight."""
        if self.clock.slots_per_day % self.window_slots:
            raise SettingsError(
                f"window_slots={self.window_slots} must divide the day of "
                f"{self.clock.slots_per_day} slots to compare days"
            )
        return self.clock.slots_per_day // self.window_slots

    @property
    def opens(self) -> NDArray[np.int64]:
        """First slot of each window: (windows,)."""
        return np.arange(self.windows, dtype=np.int64) * self.window_slots

    @property
    def claims(self) -> int:
        """Number of claims."""
        return len(self.region)

    @property
    def row(self) -> NDArray[np.int64]:
        """The row, person * windows + window, of each claim: (claims,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @property
    def window(self) -> NDArray[np.int64]:
        """The window of each claim: (claims,)."""
        return np.asarray(self.row % self.windows)

    @property
    def key(self) -> NDArray[np.int64]:
        """Number of each claim's place, window * regions + region: (claims,)."""
        return np.asarray(self.window * self.regions + self.region)

    def of_people(self, count: int) -> "Candidates":
        """Return the claims of the first ``count`` people."""
        start = self.start[: count * self.windows + 1].copy()
        region = self.region[: start[-1]].copy()
        return replace(self, people=count, start=start, region=region)

    def row_max(self, values: Floats) -> Floats:
        """Return the maximum of each non-empty row of ``values`` (claims,)."""
        return self._reduce(np.maximum, values)

    def row_sum(self, values: NDArray[Any]) -> Floats:
        """Return the sum of each non-empty row of ``values`` (claims,)."""
        return self._reduce(np.add, values.astype(np.float64))

    def per_claim(self, values: Floats) -> Floats:
        """Repeat each non-empty row's value for all claims of the row: (claims,)."""
        sizes = np.diff(self.start)
        return np.repeat(values, sizes[sizes > 0])

    def _reduce(self, how: np.ufunc, values: Floats) -> Floats:
        filled = self.start[:-1][np.diff(self.start) > 0]
        return np.asarray(how.reduceat(values, filled) if len(filled) else values)


@dataclass(frozen=True, eq=False)
class AttackErrors:
    """Localisation errors of an attack on each person.

    Only pairs (person, window) with a known true place count. Ties count in
    expectation: a guess split between a true and a false claim is half wrong.
    """

    wrong: Floats
    """Expected number of wrong pairs, (people,)."""
    blind: Floats
    """``wrong`` for a random guess, (people,): 1 - true/candidates for each pair."""
    pairs: Counts
    """Number of pairs that count, (people,)."""

    @property
    def error(self) -> float:
        """Share of wrong guesses."""
        return float(self.wrong.sum() / self.pairs.sum())

    @property
    def random(self) -> float:
        """Error of a random guess."""
        return float(self.blind.sum() / self.pairs.sum())

    def interval(self, rng: np.random.Generator) -> Interval:
        """Return the error with its bootstrap interval over people.

        Slots of one person are dependent, so people are resampled. The interval is for
        other people of the same city, not for other cities. If no guess was wrong, the
        upper end is that of Clopper and Pearson for the share of people with a wrong
        guess.
        """
        counted = np.flatnonzero(self.pairs)
        wrong, pairs = self.wrong[counted], self.pairs[counted]
        chosen = rng.integers(0, len(counted), (_REPLICATES, len(counted)))
        drawn = wrong[chosen].sum(axis=1) / pairs[chosen].sum(axis=1)
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if not wrong.any():
            high = 1 - ((1 - LEVEL) / 2) ** (1 / len(counted))
        return Interval(self.error, float(low), float(high))


def name_best(
    candidates: Candidates, score: NDArray[Any], then: Floats | None = None
) -> Guess:
    """Guess the claim with the largest ``score`` (claims,) of each row.

    Ties (to one part in 10^9) are broken by the largest ``then``; the guess is split
    evenly among claims equal in both, so that order has no influence.
    """
    chosen = np.ones(candidates.claims, np.bool_)
    for values in (score, then):
        if values is None:
            continue
        given = values.astype(float)
        best = candidates.row_max(np.where(chosen, given, -np.inf))
        slack = np.where(np.isfinite(best), _TIE * np.abs(best), 0.0)
        chosen &= given >= candidates.per_claim(best - slack)
    ties = candidates.per_claim(candidates.row_sum(chosen))
    return (chosen / ties).astype(np.float32)


def true_claims(candidates: Candidates, traces: Traces) -> Mask:
    """Return a mask of the true claims, (claims,).

    Raises ``DataError`` if a person was in a region without claiming it.
    """
    slot, person = np.nonzero(traces.by_slot != UNKNOWN)
    row = person * candidates.windows + slot // candidates.window_slots
    visited = np.unique(row * candidates.regions + traces.by_slot[slot, person])
    made = np.isin(candidates.row * candidates.regions + candidates.region, visited)
    if missing := len(visited) - np.count_nonzero(made):
        raise DataError(f"{missing} true places are not claimed")
    return made


def localisation_error(
    guess: Guess, candidates: Candidates, truth: Mask
) -> AttackErrors:
    """Compute the errors of a guess; ``truth`` (claims,) marks the true claims."""
    true = candidates.row_sum(truth)
    known = true > 0
    if not known.any():
        raise DataError("no claim is true: there is nothing to evaluate")
    # Shares of a third each may add up to a little more than 1.
    wrong = np.maximum(0.0, 1 - candidates.row_sum(guess * truth))
    size = np.diff(candidates.start)
    person = np.flatnonzero(size) // candidates.windows
    blind = 1 - true / size[size > 0]

    def by_person(values: Floats) -> Floats:
        counted = np.bincount(person[known], values[known], candidates.people)
        return counted.astype(np.float64)

    pairs = by_person(np.ones(len(known))).astype(np.int64)
    return AttackErrors(by_person(wrong), by_person(blind), pairs)
