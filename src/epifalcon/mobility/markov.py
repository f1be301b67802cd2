"""The mobility model: how likely a move from region to region is at each slot.

Paper, "Aggregate Mobility Model". A person u at slot t moves from r to r' with

    p_u(r, t -> r', t+1) = pi_u(r | t) * p_u(r' | r),

pi_u the share of the person's observations at slot t that were in r, p_u the
share of the person's moves out of r that went to r'. The aggregate over the N
people of a group is

    p(r, t -> r', t+1) = (1/N) sum_u p_u(r, t -> r', t+1) + epsilon max(1, d(r, r'))^-2.

t is the slot of the day: observations of all days are pooled. Staying is a move
from r to r. Two slots make a move only if both are observed, so nothing is
learnt across a gap. The sum is kept sparse, the floor in closed form.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import non_negative, unit_interval
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility import sparse
from epifalcon.mobility.counting import count_moves, count_visits, visit_then_move
from epifalcon.mobility.floor import DistanceFloor
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Floats, Probabilities, RegionIds

_KIND = "mobility-model"
_POINTS_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class MobilityModelSettings:
    """What the aggregate mobility model is learnt from."""

    epsilon: float = 1e-8
    """Weight of the distance floor, d in kilometres. The moves of one slot add up
    to at most 1 over all regions, and the floor is added to every pair, so its
    part grows with the square of the number of regions: of the moves of people
    walking the presets' cities it makes 0.03 % (3,127 areas) and 2 % (11,234
    places)."""
    people_share: float = 1.0
    """Share of people, chosen at random, that the model is learnt from."""

    def __post_init__(self) -> None:
        non_negative(epsilon=self.epsilon)
        unit_interval(people_share=self.people_share)
        if self.people_share == 0:
            raise SettingsError("people_share=0 must be greater than 0")


@dataclass(frozen=True, eq=False)
class PersonModel:
    """One person's Markov model over the k regions that the person was seen in."""

    region: RegionIds
    """(k,) the person's regions, in rising order."""
    visits: Probabilities
    """pi_u(r | t) as (slots a day, k); a slot never observed is a row of zeros."""
    moves: Probabilities
    """p_u(r' | r) as (k, k); a region never left under observation: zeros."""

    def transition(self, slot: int) -> Probabilities:
        """p_u(r, t -> r', t+1) as (k, k) for ``slot``, taken modulo the day."""
        return np.asarray(self.visits[slot % len(self.visits)][:, None] * self.moves)


@dataclass(frozen=True, eq=False)
class MobilityModel:
    """The aggregate model of a group of people, with its distance floor.

    Slots are taken modulo the day, so a slot of the traces may be given as it
    is. Without ``normalised`` the values are the paper's, whose rows do not
    add up to 1; with it each row is divided by its total, which makes it the
    distribution of the next region.
    """

    joint: sp.csr_array
    """(1/N) sum_u pi_u(r|t) p_u(r'|r), (slots a day * regions, regions), t first."""
    visits: Probabilities
    """pi(r|t), mean of pi_u over the people observed at t: (slots a day, regions)."""
    moves: sp.csr_array
    """p(r'|r) of all people's moves taken together: (regions, regions)."""
    regions: Regions
    epsilon: float
    people: int
    """N: how many people the model was learnt from."""
    floor: DistanceFloor = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.regions)
        slots = len(self.visits)
        expected = {
            "joint": (self.joint.shape, (slots * count, count)),
            "visits": (self.visits.shape, (slots, count)),
            "moves": (self.moves.shape, (count, count)),
        }
        for name, (shape, wanted) in expected.items():
            if shape != wanted:
                raise DataError(f"{name} has shape {shape}, expected {wanted}")
        non_negative(epsilon=self.epsilon)
        object.__setattr__(self, "floor", DistanceFloor(self.regions))

    @property
    def slots_per_day(self) -> int:
        """Number of slots in a day."""
        return len(self.visits)

    def slot_moves(self, slot: int) -> sp.csr_array:
        """The sparse part at ``slot``, (regions, regions), without the floor."""
        return sparse.rows_of(self.joint, self._of_day(slot), len(self.regions))

    def transition_row(
        self, slot: int, region: int, *, normalised: bool = False
    ) -> Probabilities:
        """From one region at ``slot`` to every region at the next: (regions,)."""
        self._require_regions(np.asarray(region))
        row = self._of_day(slot) * len(self.regions) + region
        cells = slice(int(self.joint.indptr[row]), int(self.joint.indptr[row + 1]))
        made = self.epsilon * self.floor.row(region)
        made[self.joint.indices[cells]] += self.joint.data[cells]
        return _shares(made) if normalised else made

    def transition(
        self, slot: int, here: RegionIds, there: RegionIds, *, normalised: bool = False
    ) -> Probabilities:
        """From ``here`` at ``slot`` to ``there`` at the next, element by element.

        Shapes broadcast. A normalised row that is empty is 0 everywhere.
        """
        here, there = np.broadcast_arrays(here, there)
        self._require_regions(here)
        self._require_regions(there)
        first = self._of_day(slot) * len(self.regions)
        found = sparse.lookup(
            self.joint,
            first + here.ravel().astype(np.int64),
            there.ravel().astype(np.int64),
        )
        made = found.reshape(here.shape) + self.epsilon * self.floor.between(
            here, there
        )
        if not normalised:
            return np.asarray(made)
        total = self.row_totals(slot)[here]
        return np.divide(made, total, out=np.zeros(made.shape), where=total > 0)

    def log_transition(
        self, slot: int, here: RegionIds, there: RegionIds
    ) -> NDArray[np.float64]:
        """Logarithm of the normalised ``transition``; -inf where it is 0.

        Finite everywhere when epsilon is above 0: what a forward-backward
        attack walks on.
        """
        return _log(self.transition(slot, here, there, normalised=True))

    def log_visits(self, slot: int) -> NDArray[np.float64]:
        """Logarithm of the share of people in each region at ``slot``: (regions,).

        epsilon is added to every share, so all are finite when it is above 0.
        """
        return _log(_shares(self.visits[self._of_day(slot)] + self.epsilon))

    def row_totals(self, slot: int) -> Floats:
        """The sum of each region's row at ``slot``, floor included: (regions,)."""
        sums = np.asarray(self.slot_moves(slot).sum(axis=1), dtype=np.float64)
        if self.epsilon == 0:
            return sums
        return np.asarray(sums + self.epsilon * self.floor.totals)

    def sample_next(
        self, slot: int, here: RegionIds, rng: np.random.Generator
    ) -> RegionIds:
        """The region at the next slot of people who are in ``here``: (people,).

        Exact draws from the normalised rows, sparse part and floor together.
        Raises ``DataError`` for a region that nothing leads out of, which can
        be only when epsilon is 0.
        """
        here = np.asarray(here)
        self._require_regions(here)
        row = self._of_day(slot) * len(self.regions) + here.astype(np.int64)
        start = self._heap[self.joint.indptr[row]]
        known = self._heap[self.joint.indptr[row + 1]] - start
        floor = np.zeros(here.size)
        if self.epsilon > 0:
            floor = self.epsilon * self.floor.totals[here]
        if (stuck := known + floor <= 0).any():
            raise DataError(f"no moves out of region {here[stuck][0]}, and epsilon=0")
        target = rng.random(here.size) * (known + floor)
        seen = target < known
        made = np.empty(here.size, dtype=np.int32)
        made[seen] = self._pick(row[seen], start[seen] + target[seen])
        made[~seen] = self.floor.draw(here[~seen], rng)
        return made

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        arrays = {"visits": self.visits, **self.regions.pack()}
        arrays |= sparse.pack("joint", self.joint) | sparse.pack("moves", self.moves)
        meta = {
            "epsilon": self.epsilon,
            "people": self.people,
            "kind": self.regions.kind,
        }
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "MobilityModel":
        """Read what ``save`` wrote."""
        stored = store.read(folder, _KIND)
        try:
            regions = Regions.unpack(stored.meta["kind"], stored.arrays)
            visits = stored.arrays["visits"]
            count = len(regions)
            return cls(
                sparse.unpack("joint", stored.arrays, (len(visits) * count, count)),
                visits,
                sparse.unpack("moves", stored.arrays, (count, count)),
                regions,
                stored.meta["epsilon"],
                stored.meta["people"],
            )
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None

    @cached_property
    def _heap(self) -> Floats:
        """Running total of the sparse cells, one longer than they are."""
        return np.concatenate([[0.0], np.cumsum(self.joint.data)])

    def _pick(self, row: NDArray[np.int64], target: Floats) -> RegionIds:
        """The column of the cell in ``row`` under which ``target`` falls."""
        cell = np.searchsorted(self._heap, target, side="right") - 1
        cell = np.clip(cell, self.joint.indptr[row], self.joint.indptr[row + 1] - 1)
        return self.joint.indices[cell].astype(np.int32)

    def _of_day(self, slot: int) -> int:
        if slot < 0:
            raise SettingsError(f"slot={slot} must be 0 or more")
        return int(slot) % self.slots_per_day

    def _require_regions(self, ids: NDArray[Any]) -> None:
        if ids.size and (ids.min() < 0 or ids.max() >= len(self.regions)):
            raise DataError(
                f"region ids run from {ids.min()} to {ids.max()}, "
                f"expected 0 to {len(self.regions) - 1}"
            )


@dataclass(frozen=True, eq=False)
class MobilityTally:
    """What adds up over people before it becomes a model."""

    joint: sp.csr_array
    """sum_u pi_u(r|t) p_u(r'|r), (slots a day * regions, regions)."""
    visits: Floats
    """sum_u pi_u(r|t), (slots a day, regions)."""
    observed: Floats
    """People observed at t, (slots a day, 1)."""
    moves: sp.csr_array
    """Moves r to r', counted: (regions, regions)."""
    people: int

    def __add__(self, other: "MobilityTally") -> "MobilityTally":
        return MobilityTally(
            sparse.add(self.joint, other.joint),
            self.visits + other.visits,
            self.observed + other.observed,
            sparse.add(self.moves, other.moves),
            self.people + other.people,
        )

    def model(self, regions: Regions, epsilon: float) -> MobilityModel:
        """The model of everybody tallied."""
        mean, seen = self.joint.copy(), self.observed > 0
        mean.data /= self.people
        shares = np.divide(
            self.visits, self.observed, out=np.zeros(self.visits.shape), where=seen
        )
        return MobilityModel(
            joint=mean,
            visits=shares,
            moves=_row_shares(self.moves),
            regions=regions,
            epsilon=epsilon,
            people=self.people,
        )


def person_model(traces: Traces, person: int) -> PersonModel:
    """The Markov model of one person, from that person's trace alone."""
    if not 0 <= person < traces.people:
        raise DataError(f"person={person} must lie between 0 and {traces.people - 1}")
    trace = np.asarray(traces.by_person[person])
    seen = trace != UNKNOWN
    region, place = np.unique(trace[seen], return_inverse=True)
    local = np.full(trace.size, UNKNOWN, dtype=np.int64)
    local[seen] = place
    visits = np.zeros((traces.clock.slots_per_day, region.size))
    of_day = np.arange(trace.size) % len(visits)
    np.add.at(visits, (of_day[seen], place), 1)
    moves = np.zeros((region.size, region.size))
    both = seen[:-1] & seen[1:]
    np.add.at(moves, (local[:-1][both], local[1:][both]), 1)
    return PersonModel(region, _shares(visits), _shares(moves))


def mobility_model(
    traces: Traces,
    settings: MobilityModelSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> MobilityModel:
    """Learn the aggregate model of a group of people, everybody unless told.

    Work and memory follow the number of observed points, taken in blocks of
    people; ``rng`` chooses the group and is not touched when it is everybody.
    """
    group = _group(traces.people, settings.people_share, rng)
    tally = tally_mobility(traces, group, progress)
    return tally.model(traces.regions, settings.epsilon)


def tally_mobility(
    traces: Traces, group: NDArray[np.int64] | None = None, progress: Progress = silent
) -> MobilityTally:
    """What these people, all or a ``group``, add to the aggregate model."""
    group = np.arange(traces.people) if group is None else group
    count, day = len(traces.regions), traces.clock.slots_per_day
    joint = sparse.RunningSum((day * count, count), np.float64)
    moves = sparse.RunningSum((count, count), np.int64)
    visits, observed = np.zeros((day, count)), np.zeros((day, 1))
    block = max(1, _POINTS_AT_ONCE // traces.slots)
    for first in range(0, group.size, block):
        trace = traces.by_slot[:, group[first : first + block]].T
        seen = count_visits(trace, count, day)
        steps = count_moves(trace, count)
        visits += seen.by_region(count)
        observed[:, 0] += seen.people_by_slot()
        moves.add(steps.table(count))
        joint.add(visit_then_move(seen, steps, count))
        progress("mobility model", min(first + block, group.size), group.size)
    return MobilityTally(
        joint.total(), visits, observed, moves.total(), int(group.size)
    )


def _group(people: int, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    if share == 1:
        return np.arange(people)
    size = max(1, round(share * people))
    return np.sort(rng.choice(people, size=size, replace=False))


def _row_shares(counts: sp.csr_array) -> sp.csr_array:
    total = np.repeat(np.asarray(counts.sum(axis=1)), np.diff(counts.indptr))
    return sp.csr_array(
        (counts.data / total, counts.indices, counts.indptr), shape=counts.shape
    )


def _shares(weights: Floats) -> Probabilities:
    """Each row (last axis) over its sum; a row of zeros stays."""
    total = weights.sum(axis=-1, keepdims=True)
    made = np.zeros(weights.shape)
    return np.asarray(np.divide(weights, total, out=made, where=total > 0))


def _log(values: Floats) -> NDArray[np.float64]:
    return np.log(values, out=np.full(values.shape, -np.inf), where=values > 0)
