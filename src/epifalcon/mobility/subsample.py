"""Subsample traces: keep a share of the points, or only the latest days.

Paper, experiment settings: the trajectory reporting rate eta (``trace_share``)
and the length l of the reported trace (``last_days``).
"""

from dataclasses import dataclass

import numpy as np

from epifalcon.checks import Checked, Count, Share
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, RegionIds

_POINTS_PER_BLOCK = 2**20


@dataclass(frozen=True, kw_only=True)
class ReportingSettings(Checked):
    """Settings for the reported part of the traces; by default everything."""

    trace_share: Share = 1.0
    """Share of each person's observed points that is reported (paper: eta)."""
    last_days: Count | None = None
    """Number of latest days that are reported (paper: l); all by default."""


def report(
    traces: Traces,
    settings: ReportingSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Traces:
    """Select the latest days, then a random share of each person's observed points.

    A person with n observed points retains floor(trace_share * n + u) of them, u
    uniform in [0, 1), so trace_share * n on average; every subset of that size is
    equally likely. All other points become -1. With an equal ``rng`` the points of
    a smaller share are a subset of those of a larger one. A share of 1 draws nothing.
    """
    if settings.last_days is not None:
        traces = keep_last_days(traces, settings.last_days)
    if settings.trace_share == 1:
        return traces
    thinned = np.full(traces.by_slot.shape, UNKNOWN, dtype=np.int32)
    block = max(1, _POINTS_PER_BLOCK // traces.slots)
    for first in range(0, traces.people, block):
        people = slice(first, first + block)
        points = traces.by_person[people]
        thinned[:, people] = _thin(points, settings.trace_share, rng).T
        progress("reporting", min(first + block, traces.people), traces.people)
    return Traces(thinned, traces.clock, traces.regions, names=traces.names)


def keep_last_days(traces: Traces, last_days: int) -> Traces:
    """Select the latest ``last_days`` days (paper: l), as a view."""
    clock = traces.clock.last(last_days)
    latest = traces.by_slot[-clock.slots :]
    return Traces(latest, clock, traces.regions, traces.names)


def _thin(region: RegionIds, trace_share: float, rng: np.random.Generator) -> RegionIds:
    """Return (people, slots) with all but a random share of each row's points -1."""
    people, slots = region.shape
    observed = region != UNKNOWN
    seen = np.count_nonzero(observed, axis=1)
    wanted = np.floor(trace_share * seen + rng.random(people)).astype(np.int64)

    # The slot in the lowest part makes keys unique, so the count is exact.
    largest = np.iinfo(np.int64).max
    key = rng.integers(largest // slots, size=(people, slots)) * slots
    key += np.arange(slots)
    key[~observed] = largest
    ranked = np.sort(key, axis=1)
    limit = ranked[np.arange(people), np.maximum(wanted, 1) - 1]
    keep = observed & (key <= limit[:, None]) & (wanted > 0)[:, None]
    return np.where(keep, region, np.int32(UNKNOWN))
