"""Contact tracing: binary as in the paper, and graded by count, duration and share.

Only the map from score to risk is fitted. Places and test results are used
unprotected, so there is no privacy guarantee. ``daily_exposure`` computes exposure by
day, as input of other methods. A person's own test is subtracted from integer counts
before any division, so the person's own features are bitwise independent of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import Checked, Count
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagation import edge_to_node, sum_to_edges
from epifalcon.logistic import fit_logistic
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, Floats, Mask, Probabilities

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
        contact = encounters(traces, positive, first).slots > 0

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
    exposure: ClassVar[str] = "total"
    """Name of the field of ``Encounters`` to use."""

    def score(self, traces: Traces, known: TestResults) -> Scores:
        found = encounters(traces, known.status == 1)
        return rising_scores(np.log1p(getattr(found, self.exposure)), known)


class DurationDct(SoftDct):
    """Risk increasing with the number of slots spent with at least one known case.

    Like the exposure time of tracing apps. The risk is a logistic function of
    log(1 + slots), fitted to the tested people.
    """

    name: ClassVar[str] = "duration-dct"
    exposure: ClassVar[str] = "slots"


class SoftDctRatio(Method):
    """Risk increasing with the share of known cases among tested contacts."""

    name = "soft-dct-ratio"

    def score(self, traces: Traces, known: TestResults) -> Scores:
        share = positive_share(Incidence.of(traces), known.status)
        return rising_scores(np.sqrt(share), known)


@dataclass(frozen=True, eq=False)
class Encounters:
    """Encounters of each person with known cases."""

    slots: Counts
    """Number of slots with at least one known case present, (people,)."""
    total: Counts
    """Number of known cases present, summed over slots, (people,)."""


def encounters(traces: Traces, case: Mask, first_slot: int = 0) -> Encounters:
    """Compute the encounters of all people with cases (people,) from ``first_slot`` on.

    People are not their own contacts.
    """
    slots, total = np.zeros((2, traces.people), np.int64)
    for slot in range(max(first_slot, 0), traces.slots):
        here = traces.by_slot[slot]
        seen = here != UNKNOWN
        cases = np.bincount(here[seen & case], minlength=len(traces.regions))
        others = cases[here[seen]] - case[seen]
        slots[seen] += others > 0
        total[seen] += others
    return Encounters(slots, total)


def positive_share(incidence: Incidence, status: NDArray[np.int8]) -> Floats:
    """Return the mean share of positives among other tested people met, (people,).

    With deg(u) the number of edges of u, P_e the number of people in edge e who tested
    positive and K_e the number who were tested, each without u:

        x_u = 1/deg(u) * sum over e of u of P_e / K_e

    An edge without other tested people contributes 0; a person without edges gets 0.
    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested. A
    person's value is bitwise independent of that person's result. Untested people are
    ignored: the share of everybody present ranked worse in nearly every city tested.
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
    """Raise ``DataError`` unless ``status`` (people,) contains only 1, 0 and -1."""
    if status.shape != (people,):
        raise DataError(f"status has shape {status.shape}, expected ({people},)")
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")
