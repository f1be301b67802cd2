"""How alike two people's days are: the distance behind DSTAGNN's graph.

Lan et al. 2022, "DSTAGNN: Dynamic Spatial-Temporal Aware Graph Neural Network
for Traffic Flow Forecasting" (ICML). A person is a distribution
over its days: day d weighs |w_d|, where w_d holds what was measured in each slot
of the day, and moving weight from day d of one person to day e of another costs
1 - cos(w_d, w_e). The distance of two people is the least cost of moving the one
distribution into the other (Wasserstein); they are alike by 1 - distance.

What is measured is the company: log(1 + others present). It is known from the
traces alone, so the graph never meets a test result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import at_least, whole
from epifalcon.hypergraph.compiled import each_part
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN

_PARTS = 64
_STAGES = (16.0, 4.0, 1.0)

Floats = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])


def _quick(function: F) -> F:
    """Compiled; sums may be added up in any order, hence in vectors."""
    return cast(
        F,
        njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc"})(
            function
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SinkhornSettings:
    """How exactly distances are found."""

    softness: float = 0.005
    """Of the entropy; costs lie in [0, 1]. Less is nearer to the truth."""
    sweeps: int = 15
    """In each of three stages: 16 and 4 times the softness show the way."""

    def __post_init__(self) -> None:
        # Below, exp(-cost / softness) leaves the range of double precision.
        at_least(0.002, softness=self.softness)
        whole(1, sweeps=self.sweeps)


def day_profiles(traces: Traces) -> NDArray[np.float32]:
    """(people, days, slots a day): log(1 + others present), 0 where unobserved."""
    company = np.zeros((traces.slots, traces.people), np.float32)
    for slot, here in enumerate(traces.by_slot):
        seen = here != UNKNOWN
        company[slot, seen] = np.log(traces.occupancy(slot)[here[seen]])
    shape = (traces.people, traces.clock.days, traces.clock.slots_per_day)
    return np.ascontiguousarray(company.T).reshape(shape)


def likeness(
    profiles: NDArray[np.floating], pairs: Tensor, settings: SinkhornSettings
) -> NDArray[np.float64]:
    """1 - the distance of the two people of each pair: (pairs,) in [0, 1].

    ``profiles`` (people, days, slots), none negative; ``pairs`` (2, pairs). By
    Sinkhorn's scaling and then rounding to a true transport (Altschuler et al.
    2017), so the distance is never less than the least one. A day of zeros is
    at cost 1 from every day; a person of such days alone weighs them alike.
    """
    weight, direction = _days(np.asarray(profiles, np.float64))
    first, second = np.ascontiguousarray(pairs.numpy())
    made = np.empty(len(first))
    days = weight.shape[1]

    def some(part: int) -> None:
        begin = len(first) * part // _PARTS
        end = len(first) * (part + 1) // _PARTS
        these = (first[begin:end], second[begin:end])
        how = (settings.softness, settings.sweeps)
        _distances(these, weight, direction, how, made[begin:end])

    each_part(some, _PARTS, len(first) * days**2 * settings.sweeps)
    return np.clip(1 - made, 0, 1)


def _days(profiles: Floats) -> tuple[Floats, Floats]:
    """Each person's weights over days, adding up to 1, and unit vectors of days."""
    length = np.sqrt((profiles**2).sum(axis=2))
    total = length.sum(axis=1, keepdims=True)
    even = np.full_like(length, 1 / length.shape[1])
    weight = np.divide(length, total, out=even, where=total > 0)
    direction = profiles / np.where(length > 0, length, 1)[:, :, None]
    return weight, direction


@_quick
def _distances(
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    weight: Floats,
    direction: Floats,
    how: tuple[float, int],
    out: Floats,
) -> None:
    days = weight.shape[1]
    cost, plan = np.empty((days, days)), np.empty((days, days))
    price = np.empty(days), np.empty(days)
    for pair in range(len(out)):
        one, other = pairs[0][pair], pairs[1][pair]
        _costs(direction[one], direction[other], cost)
        price[0][:] = 0
        price[1][:] = 0
        for stage in _STAGES:
            softness = how[0] * stage
            _soften(cost, price, softness, plan)
            _scale(plan, (weight[one], weight[other]), how[1], (price, softness))
        _round(plan, weight[one], weight[other])
        out[pair] = (cost * plan).sum()


@_quick
def _costs(one: Floats, other: Floats, cost: Floats) -> None:
    """1 - cosine of each two days."""
    for here in range(len(one)):
        for there in range(len(other)):
            cosine = 0.0
            for slot in range(one.shape[1]):
                cosine += one[here, slot] * other[there, slot]
            cost[here, there] = max(1 - cosine, 0.0)


@_quick
def _soften(
    cost: Floats, price: tuple[Floats, Floats], softness: float, plan: Floats
) -> None:
    """Write exp((price of both days - cost) / softness)."""
    for here in range(len(cost)):
        for there in range(len(cost)):
            gain = price[0][here] + price[1][there] - cost[here, there]
            plan[here, there] = np.exp(gain / softness)


@_quick
def _scale(
    plan: Floats,
    masses: tuple[Floats, Floats],
    sweeps: int,
    prices: tuple[tuple[Floats, Floats], float],
) -> None:
    """Make ``plan`` diag(u) plan diag(v) with about the sums ``masses`` (Sinkhorn).

    Prices are raised by softness log u and softness log v.
    """
    days, (mass, wanted) = len(plan), masses
    left, right, sums = np.ones(days), np.ones(days), np.empty(days)
    for _ in range(sweeps):
        for here in range(days):
            total = 0.0
            for there in range(days):
                total += plan[here, there] * right[there]
            left[here] = mass[here] / total if total > 0 else 0.0
        sums[:] = 0
        for here in range(days):
            for there in range(days):
                sums[there] += plan[here, there] * left[here]
        for there in range(days):
            right[there] = wanted[there] / sums[there] if sums[there] > 0 else 0.0
    price, softness = prices
    for here in range(days):
        for there in range(days):
            plan[here, there] *= left[here] * right[there]
    for day in range(days):
        price[0][day] += softness * np.log(left[day])
        price[1][day] += softness * np.log(right[day])


@_quick
def _round(plan: Floats, mass: Floats, wanted: Floats) -> None:
    """Make the sums of ``plan`` exact: shrink what is too much, spread what lacks."""
    days = len(mass)
    for here in range(days):
        total = plan[here].sum()
        if total > mass[here]:
            plan[here] *= mass[here] / total
    for there in range(days):
        total = plan[:, there].sum()
        if total > wanted[there]:
            plan[:, there] *= wanted[there] / total
    lacking, open_ = np.empty(days), np.empty(days)
    for day in range(days):
        lacking[day] = mass[day] - plan[day].sum()
        open_[day] = wanted[day] - plan[:, day].sum()
    total = lacking.sum()
    if total > 1e-15:
        for here in range(days):
            for there in range(days):
                plan[here, there] += lacking[here] * open_[there] / total
