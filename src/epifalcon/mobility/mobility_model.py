"""The aggregate mobility model: probability of a move between two regions per slot.

Paper, "Aggregate Mobility Model". Person u moves from r to r' after slot t with

    p_u(r, t -> r', t+1) = pi_u(r | t) * p_u(r' | r),

where pi_u is the share of the person's observations at slot t that were in r, and
p_u the share of the person's moves out of r that went to r'. The aggregate over
the N people of a group is

    p(r, t -> r', t+1) = (1/N) sum_u p_u(r, t -> r', t+1) + epsilon max(1, d(r, r'))^-2.

t is the slot of the day: observations of all days are pooled. Staying is a move
from r to r. Two slots make a move only if both are observed, so gaps
contribute nothing. The sum is a sparse matrix; the distance term is computed on demand.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.checks import non_negative, shaped
from epifalcon.errors import DataError
from epifalcon.mobility.regions import EARTH_RADIUS_KM, Regions, unit_vectors
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Additive, Floats, Probabilities, RegionIds

EPSILON = 1e-8
"""Weight of the distance term, d in kilometres: 0.03 % of the moves in the preset with
3,127 areas, 2 % in the one with 11,234 places."""
_POINTS_PER_BLOCK = 2**20


class Transitions(NamedTuple):
    """Mobility model as plain arrays (CSR) for compiled code.

    Row ``t * regions + r`` holds the moves out of r after slot t of the day.
    """

    first: NDArray[np.int64]
    """Index in ``there`` at which each row begins, (rows + 1,)."""
    there: RegionIds
    """Destination region r', (cells,), ascending within a row."""
    weight: Floats
    """Weight (1/N) sum_u p_u(r, t -> r', t+1), without distance term, (cells,)."""
    total: Floats
    """Sum of each row, distance term included, (rows,)."""
    point_km: Floats
    """Locations for ``distance_weight`` in kilometres, (regions, 3)."""
    spherical: bool
    """True if ``point_km`` are on the sphere, False if on a plane."""
    epsilon: float


@dataclass(frozen=True, eq=False)
class MobilityModel:
    """The aggregate model of a group of people, with its distance term.

    The rows of the paper's p do not sum to 1: divide by ``transitions.total``.
    """

    joint: sp.csr_array
    """Mean of pi_u(r|t) p_u(r'|r) over people, (slots per day * regions, regions)."""
    visits: Probabilities
    """Mean pi(r|t) of pi_u over people observed at t, (slots per day, regions)."""
    regions: Regions
    epsilon: float
    people: int
    """Number of people N to whom the model was fitted."""

    def __post_init__(self) -> None:
        slots, count = len(self.visits), len(self.regions)
        shaped((slots, count), visits=self.visits)
        shaped((slots * count, count), joint=self.joint)
        non_negative(epsilon=self.epsilon)

    @property
    def slots_per_day(self) -> int:
        """Number of slots in a day."""
        return len(self.visits)

    @cached_property
    def transitions(self) -> Transitions:
        """The model as plain arrays."""
        joint = self.joint.sorted_indices()
        point_km, spherical = points_km(self.regions), self.regions.lonlat is not None
        total = np.asarray(joint.sum(axis=1), dtype=np.float64)
        if self.epsilon > 0:
            near = np.zeros((len(self.regions), 1))
            add_distance_weights(point_km, spherical, np.zeros(len(near), int), near)
            total += np.tile(self.epsilon * near[:, 0], self.slots_per_day)
        return Transitions(
            first=joint.indptr.astype(np.int64),
            there=joint.indices.astype(np.int32),
            weight=joint.data.astype(np.float64),
            total=total,
            point_km=point_km,
            spherical=spherical,
            epsilon=float(self.epsilon),
        )

    @cached_property
    def log_visits(self) -> Floats:
        """Log share of people in each region by slot, (slots per day, regions).

        epsilon is added to every share, so all are finite when it is above 0.
        """
        weight = self.visits + self.epsilon
        total = weight.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(weight / np.maximum(total, np.finfo(float).tiny)))

    def require_match(self, regions: int, slots_per_day: int, what: str) -> None:
        """Raise ``DataError`` unless ``what`` has these regions and slots per day."""
        ours, theirs = (len(self.regions), self.slots_per_day), (regions, slots_per_day)
        if ours != theirs:
            raise DataError(
                f"the mobility model has (regions, slots per day) = {ours}, "
                f"{what} {theirs}"
            )


@dataclass(frozen=True, eq=False)
class MobilityTally(Additive):
    """Sums over people from which the model is computed; groups can be added."""

    joint: sp.csr_array
    """Sum of pi_u(r|t) p_u(r'|r) over people, (slots per day * regions, regions)."""
    visits: Floats
    """Sum of pi_u(r|t) over people, (slots per day, regions)."""
    observed: Floats
    """Number of people observed at slot t, (slots per day, 1)."""
    people: int

    def model(self, regions: Regions, epsilon: float = EPSILON) -> MobilityModel:
        """Return the model of all people in the sums."""
        shares = self.visits / np.maximum(self.observed, 1)
        mean = sp.csr_array(self.joint / self.people)
        return MobilityModel(mean, shares, regions, epsilon, self.people)


def mobility_model(traces: Traces, epsilon: float = EPSILON) -> MobilityModel:
    """Fit the aggregate model to all people of ``traces``."""
    return tally_mobility(traces).model(traces.regions, epsilon)


def tally_mobility(
    traces: Traces, group: NDArray[np.int64] | None = None, progress: Progress = silent
) -> MobilityTally:
    """Sum the contributions of all people, or those of ``group``, to the model."""
    group = np.arange(traces.people) if group is None else group
    count, day = len(traces.regions), traces.clock.slots_per_day
    visits, observed = np.zeros((day, count)), np.zeros((day, 1))
    parts = [sp.csr_array((day * count, count))]
    block = max(1, _POINTS_PER_BLOCK // traces.slots)
    for start in range(0, group.size, block):
        trace = traces.by_slot[:, group[start : start + block]].T
        part = _tally_block(trace, count, day, visits, observed)
        # Join parts of similar size only: adding each part to a growing total
        # would copy the total every time.
        while parts and parts[-1].nnz <= 2 * part.nnz:
            part = parts.pop() + part
        parts.append(part)
        progress("mobility model", min(start + block, group.size), group.size)
    joint = parts.pop()
    while parts:
        joint = parts.pop() + joint
    return MobilityTally(joint, visits, observed, int(group.size))


def _tally_block(
    trace: RegionIds, regions: int, day: int, visits: Floats, observed: Floats
) -> sp.csr_array:
    """Add the people of ``trace`` (people, slots) to ``visits`` and ``observed``.

    Returns sum_u pi_u(r|t) p_u(r'|r) as (slots per day * regions, regions). An
    owner is a number for a person and a region: person * regions + region.
    """
    person, slot = np.nonzero(trace != UNKNOWN)
    owner = person * regions + trace[person, slot]
    cell, times = np.unique(owner * day + slot % day, return_counts=True)
    owner, of_day = cell // day, cell % day
    seen = np.bincount(person * day + slot % day, minlength=len(trace) * day)
    share = times / seen[owner // regions * day + of_day]
    region = of_day * regions + owner % regions
    visits += np.bincount(region, share, day * regions).reshape(day, regions)
    observed[:, 0] += np.count_nonzero(seen.reshape(-1, day), axis=0)

    both = (trace[:, :-1] != UNKNOWN) & (trace[:, 1:] != UNKNOWN)
    person, slot = np.nonzero(both)
    left = person * regions + trace[person, slot]
    move = left * regions + trace[person, slot + 1]
    cell, times = np.unique(move, return_counts=True)
    owners, index = np.unique(cell // regions, return_inverse=True)
    place, shape = (index, cell % regions), (owners.size, regions)
    moves = sp.csr_array((times.astype(float), place), shape=shape)
    moves.data /= np.repeat(np.asarray(moves.sum(axis=1)), np.diff(moves.indptr))
    selected = np.isin(owner, owners)
    pick = (region[selected], np.searchsorted(owners, owner[selected]))
    shape = (day * regions, owners.size)
    joint = sp.csr_array((share[selected], pick), shape=shape) @ moves
    joint.sort_indices()
    return joint


def points_km(regions: Regions) -> Floats:
    """Return locations in km, on the sphere if degrees are known: (regions, 3)."""
    if regions.lonlat is not None:
        return np.asarray(EARTH_RADIUS_KM * unit_vectors(regions.lonlat))
    return np.hstack([regions.centre_km, np.zeros((len(regions), 1))])


@compiled
def distance_weight(point_km: Floats, spherical: bool, here: int, there: int) -> float:
    """Compute max(1, d)^-2 between two regions; 1 if a location is unknown."""
    x = point_km[here, 0] - point_km[there, 0]
    y = point_km[here, 1] - point_km[there, 1]
    z = point_km[here, 2] - point_km[there, 2]
    squared = x * x + y * y + z * z
    if spherical:
        half = np.sqrt(squared) / (2 * EARTH_RADIUS_KM)
        # Not min(), which would turn NaN into 1.
        arc = 2 * EARTH_RADIUS_KM * np.arcsin(1.0 if half > 1.0 else half)
        squared = arc * arc
    # The condition is False for NaN too.
    return 1.0 / squared if squared > 1.0 else 1.0


@compiled
def add_distance_weights(
    point_km: Floats, spherical: bool, group: NDArray[np.int64], total: Floats
) -> None:
    """Add each region's distance weights, summed by group, to ``total``."""
    for here in range(len(point_km)):
        for there in range(len(point_km)):
            weight = distance_weight(point_km, spherical, here, there)
            total[here, group[there]] += weight


@compiled
def find_move(there: RegionIds, low: int, past: int, to: int) -> int:
    """Return the last cell in [low, past) whose region is at most ``to``."""
    size = past - low
    while size > 1:
        half = size // 2
        # Without a branch, which the processor would mispredict half of the time.
        low += half * (there[low + half] <= to)
        size -= half
    return low
