"""Contact tracing: binary as in the paper, and graded by count, duration and share.

Only the map from score to risk is fitted. Places and test results are used
unprotected, so there is no privacy guarantee. ``daily_exposure`` computes exposure by
day, as input of other methods. A person's own test is subtracted from integer counts
before any division, so the person's own features are bitwise independent of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import Checked, Count
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.hypergraph.propagation import inverse
from epifalcon.logistic import fit_logistic
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, Floats, Mask, Probabilities, RegionIds

CHANNELS = 4
_SLOPE_SD = 10.0
"""Prior standard deviation of the slope for standardised scores; matters only for very
few test results."""
_ROUNDING = 1e-9
"""Scores that differ by less are treated as equal."""


@dataclass(frozen=True, kw_only=True)
class DctSettings(Checked):
    """Settings of digital contact tracing."""

    window_days: Count | None = 1
    """Number of latest days whose contacts count; None for all. In two weeks nearly
    everybody meets a known case. The paper's F1 and accuracy match an alarm for 88 %
    of the people, which one day gives in our city of that size."""


class Dct(Method):
    """Binary digital contact tracing (paper, section "Baselines").

    Everybody who met a known case within the window is a contact. The risk of contacts
    is the share of positive tests among tested contacts, that of other people the share
    among tested other people, each with half a positive and half a negative result
    added. If contacts were not infected more often, everybody gets the overall share.
    The prediction is binary, so only F1 and accuracy are meaningful.

    Adapted: the paper gives only a binary alarm; the two shares make it a probability.
    """

    name = "dct"
    settings_type = DctSettings
    settings: DctSettings

    def score(self, traces: Traces, known: TestResults) -> Scores:
        if not known.tested.any():
            raise DataError("nobody was tested, so there are no known cases")
        days = self.settings.window_days
        per_day = traces.clock.slots_per_day
        first = 0 if days is None else traces.slots - days * per_day
        tested, positive = known.tested, known.status == 1
        contact = encounters(traces, known.status, first).slots > 0

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

    An encounter is one slot in one region with one known case. The risk is a logistic
    function of log(1 + encounters), fitted to the tested people.
    """

    name: ClassVar[str] = "soft-dct"

    def score(self, traces: Traces, known: TestResults) -> Scores:
        return rising_scores(self.exposure(encounters(traces, known.status)), known)

    def exposure(self, found: "Encounters") -> Floats:
        """Return the score of each person, (people,)."""
        return np.log1p(found.total)


class DurationDct(SoftDct):
    """Risk increasing with the number of slots spent with at least one known case.

    Like the exposure time of tracing apps. The risk is a logistic function of
    log(1 + slots), fitted to the tested people.
    """

    name: ClassVar[str] = "duration-dct"

    def exposure(self, found: "Encounters") -> Floats:
        return np.log1p(found.slots)


class SoftDctRatio(SoftDct):
    """Risk increasing with the share of known cases among tested contacts."""

    name: ClassVar[str] = "soft-dct-ratio"

    def exposure(self, found: "Encounters") -> Floats:
        return np.sqrt(found.share)


@dataclass(frozen=True, eq=False)
class Encounters:
    """Encounters of each person with known cases."""

    slots: Counts
    """Number of slots with at least one known case present, (people,)."""
    total: Counts
    """Number of known cases present, summed over slots, (people,)."""
    share: Floats
    """Share of known cases among the other tested people present, averaged over the
    slots in which the person was observed, (people,). The share of everybody present
    ranked worse in nearly every city tested."""


def encounters(
    traces: Traces, status: NDArray[np.int8], first_slot: int = 0
) -> Encounters:
    """Compute the encounters of all people from ``first_slot`` on.

    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested.
    """
    slots, total, observed = np.zeros((3, traces.people), np.int64)
    share = np.zeros(traces.people)
    for here in traces.by_slot[max(first_slot, 0) :]:
        cases = _others(here, status == 1)
        slots += cases > 0
        total += cases
        share += cases / np.maximum(_others(here, status >= 0), 1)
        observed += here != UNKNOWN
    return Encounters(slots, total, share * inverse(observed))


def _others(here: RegionIds, kind: Mask) -> Counts:
    """Return the number of others of ``kind`` in each person's region, (people,).

    0 for people who are not observed in the slot.
    """
    place = here + 1
    count = np.bincount(place[kind], minlength=int(place.max(initial=0)) + 1)
    return (count[place] - kind) * (here != UNKNOWN)


def rising_scores(score: Floats, known: TestResults) -> Scores:
    """Return the risk at each ``score`` (people,) by a non-decreasing logistic curve.

    Fitted to the tested people, whose scores exclude their own results, so their risks
    are comparable with those of untested people. If the slope would be negative,
    everybody gets the share of positive tests.
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
    """Compute the exposure to tested people by day, (people, days, 4).

    The channels are means over the slots of the day in which the person was observed:
    the share of known positives among the others present; the same for known
    negatives; log(1 + others present); and the share of slots observed. The first two
    are multiplied by others / tested others of the whole city, so that their scale does
    not depend on the number of tests. A day without observation is all zeros.

    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested.
    """
    people = traces.people
    everybody, tested = np.ones(people, np.bool_), status >= 0
    scale = (people - 1) / np.maximum(tested.sum() - tested, 1)
    found = np.zeros((people, traces.clock.days, CHANNELS), np.float32)
    for day in range(traces.clock.days):
        sums: Floats = np.zeros((3, people))
        observed = np.zeros(people, np.int64)
        for here in traces.by_slot[traces.clock.slots_of_day(day)]:
            present = _others(here, everybody)
            sums[0] += _others(here, status == 1) / np.maximum(present, 1)
            sums[1] += _others(here, status == 0) / np.maximum(present, 1)
            sums[2] += np.log(present + 1)
            observed += here != UNKNOWN
        mean = sums / np.maximum(observed, 1)
        found[:, day, :2] = (scale * mean[:2]).T
        found[:, day, 2] = mean[2]
        found[:, day, 3] = observed / traces.clock.slots_per_day
    return found
