"""Cases per region and day: from test results only, or, asked for by name, all.

The paper's X(t) is "the new cases of each region observed at time t", estimated
"from the confirmed cases observed in each region".
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from epifalcon._numba import njit
from epifalcon.checks import non_negative, one_of, positive, whole
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, PersonIds, RegionIds, Slots

CaseSource = Literal["reported", "all"]
CaseMeasure = Literal["count", "share", "presence"]

_LABELS = {
    "reported": "reported cases, tested people only",
    "all": "ALL CASES, hidden people included",
}


@dataclass(frozen=True, kw_only=True)
class CaseSettings:
    """How test results become numbers of regions and days."""

    measure: CaseMeasure = "share"
    """``count``: cases. ``share``: of 100 tested visitors, how many are cases;
    negative results count too, and a full region is no hotter for being full.
    ``presence``: slots that cases spent there, as in the authors' program."""
    window_days: int = 14
    """A result speaks of where the person was in so many days, the last of them
    the day of the test."""
    growth: float = 0.0
    """By how much new infections are thought to grow, e^growth a day: earlier
    slots of the window weigh that much less. 0 lets all weigh alike."""
    prior_people: float = 0.5
    """``share`` only: how many tested visitors with the city's share of the day
    are added to those of each region and day."""

    def __post_init__(self) -> None:
        one_of(get_args(CaseMeasure), measure=self.measure)
        whole(1, window_days=self.window_days)
        non_negative(growth=self.growth)
        positive(prior_people=self.prior_people)


COUNTS = CaseSettings(measure="count")
"""Plain counts, each case spread evenly over its window."""


@dataclass(frozen=True, eq=False)
class Cases:
    """How many cases each region had on each day, and where the number is from."""

    by_region_and_day: Floats
    """(regions, days), read-only."""
    source: CaseSource
    unplaced: int = 0
    """Cases of people who were not observed anywhere in the days that count."""
    measure: CaseMeasure = "count"

    def __post_init__(self) -> None:
        one_of(tuple(_LABELS), source=self.source)
        one_of(get_args(CaseMeasure), measure=self.measure)
        counts = self.by_region_and_day
        if counts.ndim != 2 or not (counts >= 0).all():
            raise DataError("cases must be numbers of 0 or more by region and day")
        counts.setflags(write=False)

    @property
    def label(self) -> str:
        """What every table and picture made from these cases must say."""
        return _LABELS[self.source]


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
        """The cases; counts are scaled up to ``everybody`` tested, where given."""
        if settings.measure == "share":
            prior = settings.prior_people * slots_per_day
            counts = _per_hundred(self.cases, self.visits, prior)
            return Cases(counts, "reported", self.unplaced, "share")
        scale = 1.0 if everybody is None else everybody / max(self.tested, 1)
        counts = self.cases * scale
        return Cases(counts, "reported", self.unplaced, settings.measure)


def reported_cases(
    known: Known, traces: Traces, settings: CaseSettings = COUNTS
) -> Cases:
    """Confirmed cases by region and day, from test results alone.

    Each person with a positive test is one case, at the first such test. It is
    spread over the slots in which the person was observed during the
    ``window_days`` days that end with the day of the test, up to the slot of
    the test: evenly, or with weights that rise by ``growth``. So it weighs most
    where the person spent most time. As a ``count``, all entries and
    ``unplaced`` add up to the number of people with a positive test.

    As a ``share``, each person has as much to spread as it has slots in its
    window, and what falls on a region and day is divided by the slots that all
    tested people spent there in their windows (of a person without a positive
    test: the days until its last one), times 100. ``prior_people`` pulls both
    towards the city's share of that day, which is also what a region has that
    no tested person visited; on days of which no test speaks it is drawn
    between those of the nearest days. A result of nobody else enters.

    As ``presence``, each person has as much to spread as for a share, and nothing
    is divided: without ``growth``, the slots that cases spent in each region.
    """
    tally = tally_cases(known, traces, settings)
    return tally.told(traces.clock.slots_per_day, settings)


def tally_cases(
    known: Known, traces: Traces, settings: CaseSettings = COUNTS
) -> CaseTally:
    """What these people add to ``reported_cases``."""
    _require_fit(known, traces)
    counts = np.zeros((len(traces.regions), traces.clock.days))
    case = np.flatnonzero(known.status == 1).astype(np.int32)
    window = _window(known.first_positive_slot[case], traces, settings)
    curve = _curve(traces, settings.growth)
    by_visit = settings.measure != "count"
    unplaced = _spread(traces.by_slot, case, window, (curve, by_visit), counts)
    visits = np.zeros(counts.shape)
    if settings.measure == "share":
        visits = _visits(known, traces, settings)
    return CaseTally(counts, visits, int(unplaced), int(known.tested.sum()))


def all_cases(
    outbreak: Outbreak, traces: Traces, measure: CaseMeasure = "count"
) -> Cases:
    """Return the infectious people of each region and day, hidden people included.

    As ``presence``, the slots that they spent there: what the authors' program gave
    its region model. As a ``count``, their mean number. As a ``share``, how many of
    100 people present were infectious; 0 where nobody was. This input holds the
    labels that a method is evaluated on, so results made with it may only stand
    beside the paper's table, marked by ``Cases.label``.
    """
    found = outbreak.infectious_by_region_and_day(traces).astype(np.float64)
    if measure == "count":
        found /= traces.clock.slots_per_day
    elif measure == "share":
        everybody = np.arange(traces.people, dtype=np.int32)
        window = np.zeros_like(everybody), np.full_like(everybody, traces.slots - 1)
        visits = np.zeros(found.shape)
        _spread(
            traces.by_slot, everybody, window, (np.ones(traces.slots), True), visits
        )
        found *= 100 / np.maximum(visits, 1)
    return Cases(found, "all", measure=measure)


def _require_fit(known: Known, traces: Traces) -> None:
    if known.people != traces.people:
        raise DataError(f"tests of {known.people} people, traces of {traces.people}")
    last = int(known.slot.max(initial=-1))
    if last >= traces.slots:
        raise DataError(
            f"a test in slot {last}, the traces end with {traces.slots - 1}"
        )


def _window(last: Slots, traces: Traces, settings: CaseSettings) -> tuple[Slots, Slots]:
    """First and last slot of which a test in ``last`` speaks."""
    per_day = traces.clock.slots_per_day
    first = (last // per_day - (settings.window_days - 1)) * per_day
    return np.maximum(first, 0), last


def _curve(traces: Traces, growth: float) -> Floats:
    """Weight of each slot, 1 in the last one: (slots,)."""
    ago = np.arange(traces.slots - 1, -1, -1) / traces.clock.slots_per_day
    # A floor above 0: a person seen only long ago must still have a place.
    return np.asarray(np.exp(np.maximum(-growth * ago, -600.0)))


def _visits(known: Known, traces: Traces, settings: CaseSettings) -> Floats:
    """Slots that tested people spent in their windows: (regions, days)."""
    end = np.full(known.people, -1, np.int32)
    # In order of slot, so the last test stays.
    end[known.person] = known.slot
    end = np.where(known.first_positive_slot >= 0, known.first_positive_slot, end)
    tested = np.flatnonzero(known.tested).astype(np.int32)
    visits = np.zeros((len(traces.regions), traces.clock.days))
    window = _window(end[tested], traces, settings)
    _spread(traces.by_slot, tested, window, (np.ones(traces.slots), True), visits)
    return visits


def _per_hundred(cases: Floats, visits: Floats, prior: float) -> Floats:
    """Cases in 100 visits, after ``prior`` visits like the whole city's that day."""
    everywhere, days = visits.sum(axis=0), np.arange(visits.shape[1])
    told = np.flatnonzero(everywhere)
    if not len(told):
        return np.zeros(visits.shape)
    # No test speaks of the days between and around: 0 would say "no case at all",
    # and the step to the first day with tests would be taken for an outbreak.
    city = np.interp(days, told, cases.sum(axis=0)[told] / everywhere[told])
    return np.asarray(100 * (cases + prior * city) / (visits + prior))


@njit
def _spread(
    by_slot: RegionIds,
    people: PersonIds,
    window: tuple[Slots, Slots],
    rule: tuple[Floats, bool],
    counts: Floats,
) -> int:
    """Add each person's weight to ``counts``; return how many had no place.

    ``rule`` is the curve by slot, and whether a person's weight is 1 for each
    slot observed in its window instead of 1 in all.
    """
    slots = by_slot.shape[0]
    (first, last), (curve, by_visit) = window, rule
    observed = np.zeros(people.size, np.int64)
    total = np.zeros(people.size)
    for slot in range(slots):
        for index in range(people.size):
            inside = first[index] <= slot <= last[index]
            if inside and by_slot[slot, people[index]] >= 0:
                observed[index] += 1
                total[index] += curve[slot]
    for slot in range(slots):
        day = slot * counts.shape[1] // slots
        for index in range(people.size):
            region = by_slot[slot, people[index]]
            if region >= 0 and first[index] <= slot <= last[index]:
                amount = observed[index] if by_visit else 1
                counts[region, day] += amount * curve[slot] / total[index]
    unplaced: int = (observed == 0).sum()
    return unplaced
