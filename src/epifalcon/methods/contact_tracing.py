"""Contact tracing: binary as in the paper, and graded by count, duration and share.

Nothing is learned about people or places. Places and test results are used
unprotected, so there is no privacy guarantee. ``daily_exposure`` computes the same by
day, as input of learners and networks. A person's own test is subtracted from whole
numbers before any division, so its own figures do not depend on it, bit for bit.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import Checked, Count, NonNegative
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagation import edge_to_node, sum_to_edges
from epifalcon.logistic import fit_logistic
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, Floats, Mask, Probabilities, Slots

CHANNELS = 4
_SLOPE_SD = 10.0
"""Prior of the slope per standard deviation; matters only for very few results."""
_ROUNDING = 1e-9
"""Scores that differ by less are treated as equal."""


@dataclass(frozen=True, kw_only=True)
class TracingSettings(Checked):
    """Which contacts count as cases."""

    days_after_test: NonNegative | None = None
    """Days after a positive test for which a person counts as a case; None: always."""


@dataclass(frozen=True, kw_only=True)
class DctSettings(TracingSettings):
    """Which contacts count."""

    window_days: Count | None = 1
    """Number of latest days with contacts that count; None: all. In two weeks nearly
    everybody meets a known case; the paper's F1 and accuracy match an alarm for 88 %
    of the people, which one day gives in our city of that size."""


class Dct(Method):
    """Binary digital contact tracing (paper, section "Baselines").

    Everybody who met a known case within the window is a contact. Contacts get one risk
    and all others another: the shares of positive tests among the tested people of
    either kind, with half a result of each sort added. If contacts were not infected
    more often, everybody gets the overall share. An alarm is binary, so only F1 and
    accuracy are meaningful.

    Adapted: the paper gives only the alarm; the two shares make it a probability. A
    person is not its own contact.
    """

    name = "dct"
    settings_type = DctSettings
    settings: DctSettings

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Return the risk of contacts and of the others."""
        if not known.tested.any():
            raise DataError("nobody was tested, so there are no known cases")
        days = self.settings.window_days
        per_day = traces.clock.slots_per_day
        first = 0 if days is None else traces.slots - days * per_day
        last = case_until(known, traces.clock, self.settings.days_after_test)
        contact = encounters(traces, last, first).slots > 0
        tested, positive = known.tested, known.status == 1

        def share(kind: Mask) -> float:
            return float((positive[kind].sum() + 0.5) / (tested[kind].sum() + 1))

        met, others = share(contact), share(~contact)
        both_tested = tested[contact].any() and tested[~contact].any()
        if not (both_tested and met > others):
            met = others = share(np.ones_like(contact))
        risk = np.where(contact, met, others)
        people = np.flatnonzero(tested).astype(np.int32)
        diagnostics = {"contact_share": float(contact.mean())}
        return Scores(risk, people, risk[people], parameters=2, diagnostics=diagnostics)


class SoftDct(Method):
    """Risk increasing with the number of encounters with known cases.

    An encounter is one slot in one region with one known case. A logistic curve over
    log(1 + encounters), fitted to the tested people.
    """

    name: ClassVar[str] = "soft-dct"
    settings_type = TracingSettings
    settings: TracingSettings

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Return everybody's risk."""
        last = case_until(known, traces.clock, self.settings.days_after_test)
        return rising_scores(np.log1p(self._exposure(encounters(traces, last))), known)

    def _exposure(self, found: "Encounters") -> Counts:
        return found.total


class DurationDct(SoftDct):
    """Risk increasing with the slots spent with at least one known case.

    A graded form of the exposure time of tracing apps: a logistic curve over
    log(1 + slots), fitted to the tested people.
    """

    name: ClassVar[str] = "duration-dct"

    def _exposure(self, found: "Encounters") -> Counts:
        return found.slots


class SoftDctRatio(Method):
    """Risk increasing with the share of known cases among tested contacts."""

    name = "soft-dct-ratio"

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Return everybody's risk."""
        share = positive_share(Incidence.of(traces), known.status)
        return rising_scores(np.sqrt(share), known)


@dataclass(frozen=True, eq=False)
class Encounters:
    """Contact of each person with known cases."""

    slots: Counts
    """(people,) slots with at least one of them."""
    total: Counts
    """(people,) the number of them, summed over slots."""


def encounters(traces: Traces, last: Slots, first_slot: int = 0) -> Encounters:
    """Compute everybody's contact with cases from ``first_slot`` on.

    A person counts as a case until its slot ``last`` (people,), -1 for never. People
    are not their own contacts.
    """
    slots, total = np.zeros((2, traces.people), np.int64)
    for slot in range(max(first_slot, 0), traces.slots):
        here = traces.by_slot[slot]
        seen, case = here != UNKNOWN, last >= slot
        cases = np.bincount(here[seen & case], minlength=len(traces.regions))
        others = cases[here[seen]] - case[seen]
        slots[seen] += others > 0
        total[seen] += others
    return Encounters(slots, total)


def case_until(
    known: TestResults, clock: Clock, days_after_test: float | None
) -> Slots:
    """Return the last slot in which each person counts as a case, -1 for never."""
    last = np.full(known.people, clock.slots - 1, np.int64)
    if days_after_test is not None:
        # Any positive test makes a case, and its end follows the first one.
        last = known.first_positive_slot + np.int64(days_after_test / clock.slot_days)
    found = np.where(known.status == 1, np.minimum(last, clock.slots - 1), -1)
    return found.astype(np.int32)


def positive_share(incidence: Incidence, status: NDArray[np.int8]) -> Floats:
    """Return the mean share of known positives among the others met: (people,).

    With deg(u) the edges of u, P_e the known positives in edge e and K_e the known
    people in it, each without u itself:

        x_u = 1/deg(u) * sum over e of u of P_e / K_e

    An edge without other known people counts 0, and so does a person without edges.
    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested. A
    person's own result does not affect its own figure, bit for bit. People not
    tested do not count (a share of everybody present ranked people worse in nearly
    every tested city).
    """
    require_status(status, incidence.people)
    known = np.stack([status == 1, status >= 0], axis=1).astype(np.float64)
    positive, tested = sum_to_edges(torch.from_numpy(known), incidence).T
    # For an untested, negative or positive person: excluding a person from counts is
    # exact, subtracting it from a sum of shares is not.
    seen = torch.stack(
        [
            _share(positive, tested),
            _share(positive, tested - 1),
            _share(positive - 1, tested - 1),
        ],
        dim=1,
    )
    mean = edge_to_node(seen, incidence).numpy()
    own: Floats = np.take_along_axis(mean, status[:, None].astype(np.int64) + 1, 1)
    return own[:, 0]


def _share(part: Tensor, whole_: Tensor) -> Tensor:
    return torch.where(whole_ > 0, part / whole_.clamp(min=1), 0.0)


def rising_scores(score: Floats, known: TestResults) -> Scores:
    """Return the risk at each ``score`` (people,): a non-decreasing logistic curve.

    Fitted to the tested people, whose scores do not contain their own results, so their
    risk is that of an untested person. If people with lower scores were infected more
    often, everybody gets the share of positive tests.
    """
    require_both(known)
    tested = np.flatnonzero(known.tested).astype(np.int32)
    infected = known.status[tested] == 1
    risk: Probabilities = np.full(len(score), infected.mean())
    centre, spread = score[tested].mean(), score[tested].std()
    if spread > _ROUNDING:
        x = (score - centre) / spread
        curve = fit_logistic(x[tested], infected, slope_sd=_SLOPE_SD)
        if curve.slope > 0:
            risk = curve(x)
    return Scores(risk, tested, risk[tested], parameters=2)


def daily_exposure(traces: Traces, status: NDArray[np.int8]) -> NDArray[np.float32]:
    """Compute the exposure to known contacts by day: (people, days, 4).

    Means over the slots of the day in which the person was observed: known positives
    met over the others present, the same for known negatives, both times others /
    others tested of the whole city, so that the scale does not depend on the number of
    tests; log(1 + others present); and the share of slots observed. A day without
    observation is all zeros.

    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested.
    """
    require_status(status, traces.people)
    people, regions = traces.people, len(traces.regions)
    positive, negative = status == 1, status == 0
    tested = status >= 0
    scale = (people - 1) / np.maximum(tested.sum() - tested, 1)
    found = np.zeros((people, traces.clock.days, CHANNELS), np.float32)
    for day in range(traces.clock.days):
        slots = traces.clock.slots_of_day(day)
        sums: Floats = np.zeros((3, people))
        observed = np.zeros(people, np.int64)
        for here in traces.by_slot[slots]:
            seen = here != UNKNOWN
            # Region -1 counts people not observed, whom ``seen`` excludes at the end.
            place = here + 1
            present = np.bincount(place, minlength=regions + 1)
            others = np.maximum(present - 1, 1)[place]
            for row, kind in zip(sums, (positive, negative), strict=False):
                count = np.bincount(place[kind], minlength=regions + 1)
                row += seen * (count[place] - kind) / others
            sums[2] += seen * np.log(np.maximum(present, 1))[place]
            observed += seen
        mean = sums / np.maximum(observed, 1)
        found[:, day, :2] = (scale * mean[:2]).T
        found[:, day, 2] = mean[2]
        found[:, day, 3] = observed / traces.clock.slots_per_day
    return found


def require_status(status: NDArray[np.int8], people: int) -> None:
    """Raise ``DataError`` unless ``status`` (people,) holds 1, 0 and -1 alone."""
    if status.shape != (people,):
        raise DataError(f"status has shape {status.shape}, expected ({people},)")
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")
