"""Cases per region and day: from test results only, or, asked for by name, all.

The paper's X(t) is "the new cases of each region observed at time t", estimated
"from the confirmed cases observed in each region".
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import Checked, Count, NonNegative, Positive
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, Mask, RegionIds

CaseSource = Literal["reported", "all"]
CaseMeasure = Literal["count", "share", "presence"]


@dataclass(frozen=True, kw_only=True)
class CaseSettings(Checked):
    """How test results become numbers of regions and days."""

    measure: CaseMeasure = "share"
    """``count``: cases. ``share``: of 100 tested visitors, how many are cases;
    negative results count too, and a full region is no hotter for being full.
    ``presence``: slots that cases spent there, as in the authors' program."""
    window_days: Count = 14
    """A result speaks of where the person was in so many days, the last of them
    the day of the test."""
    growth: NonNegative = 0.0
    """By how much new infections are thought to grow, e^growth a day: earlier
    slots of the window weigh that much less. 0 lets all weigh alike."""
    prior_people: Positive = 0.5
    """``share`` only: how many tested visitors with the city's share of the day
    are added to those of each region and day."""


COUNTS = CaseSettings(measure="count")
"""Plain counts, each case spread evenly over its window."""


@dataclass(frozen=True, eq=False)
class Cases(Checked):
    """How many cases each region had on each day, and where the number is from."""

    by_region_and_day: Floats
    """(regions, days), read-only."""
    source: CaseSource
    unplaced: int = 0
    """Cases of people who were not observed anywhere in the days that count."""
    measure: CaseMeasure = "count"

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = self.by_region_and_day
        if counts.ndim != 2 or not (counts >= 0).all():
            raise DataError("cases must be numbers of 0 or more by region and day")
        counts.setflags(write=False)


@dataclass(frozen=True, eq=False)
class CaseTally:
    """What adds up over people, and over the sites that hold them."""

    cases: Floats
    """(regions, days) what the cases spread."""
    visits: Floats
    """(regions, days) slots that tested people spent there; 0 for counts."""
    unplaced: int
    tested: int
    """How many people were tested."""

    def __add__(self, other: "CaseTally") -> "CaseTally":
        return CaseTally(
            self.cases + other.cases,
            self.visits + other.visits,
            self.unplaced + other.unplaced,
            self.tested + other.tested,
        )

    def told(
        self, slots_per_day: int, settings: CaseSettings, everybody: int | None = None
    ) -> Cases:
        """Compute the cases; counts are scaled up to ``everybody``, if given."""
        if settings.measure == "share":
            prior = settings.prior_people * slots_per_day
            counts = _per_hundred(self.cases, self.visits, prior)
        else:
            scale = 1.0 if everybody is None else everybody / max(self.tested, 1)
            counts = self.cases * scale
        return Cases(counts, "reported", self.unplaced, settings.measure)


def reported_cases(
    known: Known, traces: Traces, settings: CaseSettings = COUNTS
) -> Cases:
    """Compute confirmed cases by region and day, from test results alone.

    A person's first positive test is one case, spread over the slots in which the
    person was observed in the ``window_days`` days before, with weights that rise by
    ``growth``. A ``count`` adds up, with ``unplaced``, to the number of cases; as
    ``presence`` a case weighs its number of slots. A ``share`` is that per 100 slots of
    tested people there, pulled towards the city's share by ``prior_people``.
    """
    tally = tally_cases(known, traces, settings)
    return tally.told(traces.clock.slots_per_day, settings)


def tally_cases(
    known: Known, traces: Traces, settings: CaseSettings = COUNTS
) -> CaseTally:
    """Compute what these people add to ``reported_cases``."""
    known.require_people_of(traces)
    positive, tested = np.flatnonzero(known.status == 1), np.flatnonzero(known.tested)
    last = np.full(known.people, -1, np.int32)
    # In order of slot, so the last test stays.
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
    """Return the infectious people of each region and day, hidden people included.

    As ``presence``, the slots that they spent there, as in the authors' program; as a
    ``count``, their mean number; as a ``share``, how many of 100 people present were
    infectious. This input holds the labels that a method is evaluated on, so results
    made with it may only stand beside the paper's table, marked by ``Cases.source``.
    """
    found = outbreak.infectious_by_region_and_day(traces).astype(np.float64)
    if measure == "count":
        found /= traces.clock.slots_per_day
    elif measure == "share":
        everybody = np.arange(traces.people)
        last = np.full(traces.people, traces.slots - 1)
        visits, _ = _spread(traces, everybody, last, traces.clock.days)
        found *= 100 / np.maximum(visits, 1)
    return Cases(found, "all", measure=measure)


def _per_hundred(cases: Floats, visits: Floats, prior: float) -> Floats:
    """Compute cases per 100 visits, with ``prior`` visits at the city's daily share."""
    everywhere, days = visits.sum(axis=0), np.arange(visits.shape[1])
    known = np.flatnonzero(everywhere)
    if not len(known):
        return np.zeros(visits.shape)
    # Days without tests: 0 would mean "no case at all", and the step to the first
    # day with tests would look like an outbreak.
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
    """Spread each person over the regions and days of its window: (regions, days).

    The window ends with the slot ``last`` (people,). A person weighs as much as it
    has observed slots in its window, or 1 unless ``by_visit``. Also returns how many
    people were observed nowhere.
    """
    clock = traces.clock
    first = (last // clock.slots_per_day - (window_days - 1)) * clock.slots_per_day
    ago = np.arange(traces.slots - 1, -1, -1) / clock.slots_per_day
    # A floor above 0: a person seen only long ago must still have a place.
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
