"""Contact tracing: binary as in the paper, and graded by count, duration and share.

Nothing is learnt about people or places. Places and test results are used as they are,
so there is no privacy guarantee.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import non_negative, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagate import edge_to_node, sum_to_edges
from epifalcon.logistic import fit_logistic
from epifalcon.methods.base import Kind, Method, Scores, require_both
from epifalcon.methods.exposure import encounters, require_status
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, Mask, Probabilities, Slots

_SLOPE_SD = 10.0
"""Prior of the slope per standard deviation; matters only for very few results."""
_ROUNDING = 1e-9
"""Scores that differ by less are equal."""


@dataclass(frozen=True, kw_only=True)
class TracingSettings:
    """Who counts as a case when met."""

    days_after_test: float | None = None
    """Somebody tested positive is a case until so many days after the test; None:
    always."""

    def __post_init__(self) -> None:
        if self.days_after_test is not None:
            non_negative(days_after_test=self.days_after_test)


@dataclass(frozen=True, kw_only=True)
class DctSettings(TracingSettings):
    """Which contacts count."""

    window_days: int | None = 1
    """Contacts in so many days before the end; None: in all days.

    One day, because in a fortnight nearly everybody meets a known case. The paper's F1
    and accuracy (.3949 and .3311 where .2209 were infected) are those of an alarm for
    88 % of people, which is what one day gives in our city of that size; the authors'
    program, too, reads only a part of the slots.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window_days is not None:
            whole(1, window_days=self.window_days)


class Dct(Method):
    """Binary digital contact tracing (paper, section "Baselines").

    Everybody who met a known case within the window is a contact. Contacts get one risk
    and all others another: the shares of positive tests among the tested people of
    either kind, with half a result of each sort added. If contacts were not infected
    more often, everybody gets the share of all. An alarm has no grades, so of the
    metrics only F1 and accuracy are meaningful.

    Adapted: the paper gives the alarm alone; the two shares allow its error to be
    measured. A person is no contact of itself.
    """

    name = "dct"
    title = "DCT"
    kind: ClassVar[Kind] = "paper"
    settings_type = DctSettings
    settings: DctSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Return the risk of contacts and of the others."""
        if not known.tested.any():
            raise DataError("nobody was tested: there is nobody to be a contact of")
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
    """The number of encounters with known cases, as a rising risk.

    An encounter is one slot in one region with one known case. A logistic curve over
    log(1 + encounters), fitted to the tested people.
    """

    name = "soft-dct"
    title = "Soft DCT, count"
    kind: ClassVar[Kind] = "reference"
    settings_type = TracingSettings
    settings: TracingSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Return everybody's risk."""
        last = case_until(known, traces.clock, self.settings.days_after_test)
        return rising_scores(np.log1p(encounters(traces, last).total), known)


class DurationDct(Method):
    """The slots spent with at least one known case, as a rising risk.

    What tracing apps do with the time near a case, graded: a logistic curve over
    log(1 + slots), fitted to the tested people.
    """

    name = "duration-dct"
    title = "DCT by duration"
    kind: ClassVar[Kind] = "reference"
    settings_type = TracingSettings
    settings: TracingSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Return everybody's risk."""
        last = case_until(known, traces.clock, self.settings.days_after_test)
        return rising_scores(np.log1p(encounters(traces, last).slots), known)


class SoftDctRatio(Method):
    """The share of known cases among the tested people met, as a rising risk.

    Over the root of ``positive_share``: risk rises less and less with exposure.
    """

    name = "soft-dct-ratio"
    title = "Soft DCT, ratio"
    kind: ClassVar[Kind] = "reference"

    def score(self, traces: Traces, known: Known) -> Scores:
        """Return everybody's risk."""
        share = positive_share(Incidence.of(traces), known.status)
        return rising_scores(np.sqrt(share), known)


def case_until(known: Known, clock: Clock, days_after_test: float | None) -> Slots:
    """Return the last slot in which each person counts as a known case, -1 for never.

    Before the test too: whoever is tested positive was infectious before.
    """
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
    person's own result never enters its own figure, not even by a last bit. People not
    tested do not count (a share of everybody present ranked people worse in nearly
    every city tried).
    """
    require_status(status, incidence.people)
    known = np.stack([status == 1, status >= 0], axis=1).astype(np.float64)
    positive, tested = sum_to_edges(torch.from_numpy(known), incidence).T
    # As seen by somebody untested, negative or positive: leaving a person out of whole
    # numbers is exact, subtracting it from a sum of shares is not.
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


def rising_scores(score: Floats, known: Known) -> Scores:
    """Return the risk at each ``score`` (people,): a logistic curve that never falls.

    Fitted to the tested people, whose scores do not contain their own results, so their
    risk is that of somebody not tested. If people with lower scores were infected more
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
