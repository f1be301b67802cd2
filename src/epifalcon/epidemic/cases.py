"""Cases per region and day, from test results or (if requested) from the full truth.

The paper's X(t) is "the new cases of each region observed at time t", estimated
"from the confirmed cases observed in each region".
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import Checked, Count, NonNegative, Positive
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.traces import Traces
from epifalcon.types import Additive, Floats, Mask, RegionIds

CaseSource = Literal["reported", "all"]
CaseMeasure = Literal["count", "share", "presence"]


@dataclass(frozen=True, kw_only=True)
class CaseSettings(Checked):
    """Settings for computing cases per region and day from test results."""

    measure: CaseMeasure = "share"
    """``count``: number of cases. ``share``: cases per 100 tested visitors, which
    uses negative results too and does not grow with the size of the crowd.
    ``presence``: slots that cases spent in the region, as in the authors' program."""
    window_days: Count = 14
    """Number of days over which a result is spread over the visited regions, up to
    and including the day of the test."""
    growth: NonNegative = 0.0
    """Assumed growth rate of new infections per day: a slot d days before the end of
    the window has the weight e^(-growth d). With 0, all slots weigh the same."""
    prior_people: Positive = 0.5
    """Number of pseudo-visitors with the city's share of that day that are added to
    each region and day; for ``share`` only."""


COUNTS = CaseSettings(measure="count")
"""Default settings: counts, with each case spread evenly over its window."""


@dataclass(frozen=True, eq=False)
class Cases:
    """Number of cases per region and day, and the source of the numbers."""

    by_region_and_day: Floats
    """Number of cases, or another ``measure`` of them, (regions, days)."""
    source: CaseSource
    unplaced: int = 0
    """Number of cases of people who were not observed anywhere in their window."""
    measure: CaseMeasure = "count"


@dataclass(frozen=True, eq=False)
class CaseTally(Additive):
    """Sums over people needed to compute cases; sums of several sites can be added."""

    cases: Floats
    """Sum of the weights of the cases, (regions, days)."""
    visits: Floats
    """Slots spent by tested people, (regions, days); 0 unless ``measure`` is share."""
    unplaced: int
    tested: int
    """Number of tested people."""

    def estimate(
        self, slots_per_day: int, settings: CaseSettings, everybody: int | None = None
    ) -> Cases:
        """Compute the cases; counts are scaled from tested people to ``everybody``."""
        if settings.measure == "share":
            prior = settings.prior_people * slots_per_day
            counts = _per_hundred(self.cases, self.visits, prior)
        else:
            scale = 1.0 if everybody is None else everybody / max(self.tested, 1)
            counts = self.cases * scale
        return Cases(counts, "reported", self.unplaced, settings.measure)


def reported_cases(
    known: TestResults, traces: Traces, settings: CaseSettings = COUNTS
) -> Cases:
    """Compute confirmed cases by region and day, from test results alone.

    A person's first positive test is one case. It is spread over the slots of its
    window in which the person was observed, with weights that rise by ``growth``. With
    ``count`` the total plus ``unplaced`` is the number of cases; with ``presence`` the
    weight of a case is its number of slots. ``share`` is presence per 100 slots of
    tested people in the region, shrunk towards the city's share by ``prior_people``.
    """
    tally = tally_cases(known, traces, settings)
    return tally.estimate(traces.clock.slots_per_day, settings)


def tally_cases(
    known: TestResults, traces: Traces, settings: CaseSettings = COUNTS
) -> CaseTally:
    """Compute the sums for ``reported_cases`` over the people of ``traces``."""
    known.require_people_of(traces)
    positive, tested = np.flatnonzero(known.status == 1), np.flatnonzero(known.tested)
    last = np.full(known.people, -1, np.int32)
    # Tests are sorted by slot, so the last test of a person wins.
    last[known.person] = known.slot
    last[positive] = known.first_positive_slot[positive]
    days = settings.window_days
    counts, unplaced = _spread(
        traces,
        positive,
        last[positive],
        days,
        growth=settings.growth,
        by_visit=settings.measure != "count",
    )
    visits = np.zeros(counts.shape)
    if settings.measure == "share":
        visits, _ = _spread(traces, tested, last[tested], days)
    return CaseTally(counts, visits, unplaced, len(tested))


def all_cases(
    outbreak: Outbreak, traces: Traces, measure: CaseMeasure = "count"
) -> Cases:
    """Return the infectious people per region and day, untested people included.

    ``presence``: the slots that they spent in the region, as in the authors' program;
    ``count``: their mean number; ``share``: infectious people per 100 people present.
    This input contains the held-out labels. Use results based on it only to compare
    with the paper's table; ``Cases.source`` marks them.
    """
    cases = outbreak.infectious_by_region_and_day(traces).astype(np.float64)
    if measure == "count":
        cases /= traces.clock.slots_per_day
    elif measure == "share":
        everybody = np.arange(traces.people)
        last = np.full(traces.people, traces.slots - 1)
        visits, _ = _spread(traces, everybody, last, traces.clock.days)
        cases *= 100 / np.maximum(visits, 1)
    return Cases(cases, "all", measure=measure)


def _per_hundred(cases: Floats, visits: Floats, prior: float) -> Floats:
    """Compute cases per 100 visits; ``prior`` visits have the city's daily share."""
    everywhere, days = visits.sum(axis=0), np.arange(visits.shape[1])
    known = np.flatnonzero(everywhere)
    if not len(known):
        return np.zeros(visits.shape)
    # Interpolate days without tests: 0 would mean "no cases", and the step to the
    # first day with tests would resemble an outbreak.
    city = np.interp(days, known, cases.sum(axis=0)[known] / everywhere[known])
    return np.asarray(100 * (cases + prior * city) / (visits + prior))


def _spread(
    traces: Traces,
    people: NDArray[np.integer],
    last: NDArray[np.integer],
    window_days: int,
    *,
    growth: float = 0.0,
    by_visit: bool = True,
) -> tuple[Floats, int]:
    """Distribute each person's weight over regions and days: (regions, days).

    The window ends with the slot ``last`` (people,). The weight of a person is its
    number of observed slots in the window if ``by_visit``, else 1. Also returns the
    number of people who were not observed in their window.
    """
    clock = traces.clock
    first = (last // clock.slots_per_day - (window_days - 1)) * clock.slots_per_day
    ago = np.arange(traces.slots - 1, -1, -1) / clock.slots_per_day
    # Bounded above 0, so that a person observed only long ago still has a weight.
    curve = np.exp(np.maximum(-growth * ago, -600.0))

    def present(slot: int) -> tuple[Mask, RegionIds]:
        here = traces.by_slot[slot][people]
        inside = (first <= slot) & (slot <= last) & (here >= 0)
        return inside, here[inside]

    observed, total = np.zeros((2, len(people)))
    for slot in range(traces.slots):
        inside, _ = present(slot)
        observed += inside
        total += curve[slot] * inside
    weight = (observed if by_visit else 1.0) / np.where(observed > 0, total, 1.0)
    counts = np.zeros((len(traces.regions), clock.days))
    for slot in range(traces.slots):
        inside, region = present(slot)
        amount = weight[inside] * curve[slot]
        counts[:, clock.day_of_slot(slot)] += np.bincount(region, amount, len(counts))
    return counts, int((observed == 0).sum())
