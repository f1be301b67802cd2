"""DCT: digital contact tracing, which knows only yes or no.

Paper, section "Baselines": everybody whose trace crossed that of somebody tested
positive. An alarm has no grades, so of the metrics only F1 and accuracy mean
something.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epifalcon.baselines.exposure import encounters
from epifalcon.baselines.method import Kind, Method, Scores
from epifalcon.checks import non_negative, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Mask, Probabilities, Slots


@dataclass(frozen=True, kw_only=True)
class DctSettings:
    """Which contacts count."""

    window_days: int | None = 1
    """Contacts in so many days before the end; none: in all days.

    One day, because in a fortnight nearly everybody meets a known case. The
    paper's F1 and accuracy (.3949 and .3311 where .2209 were infected) are those
    of an alarm for 88 % of people, which is what one day gives in our city of
    that size; the authors' program, too, reads a part of the slots alone.
    """
    days_after_test: float | None = None
    """Somebody tested positive is met as a case until so many days after the
    test; none: always."""

    def __post_init__(self) -> None:
        if self.window_days is not None:
            whole(1, window_days=self.window_days)
        if self.days_after_test is not None:
            non_negative(days_after_test=self.days_after_test)


@dataclass(frozen=True, kw_only=True)
class TracingSettings:
    """Who counts as a case when met."""

    days_after_test: float | None = None
    """Somebody tested positive is met as a case until so many days after the
    test; none: always."""

    def __post_init__(self) -> None:
        if self.days_after_test is not None:
            non_negative(days_after_test=self.days_after_test)


class Dct(Method):
    """Binary contact tracing.

    Whoever met a known case within the window is a contact. Contacts get one
    risk and all others another one: the shares of positive tests among the
    tested people of either kind (with half a result of each sort added, so that
    nobody is ever quite sure). Where contacts were not infected more often, an
    alarm means nothing and everybody gets the share of all.

    Adapted: the paper gives the alarm alone; the two shares let its error be
    measured like everybody else's. A person is no contact of itself.
    """

    name = "dct"
    title = "DCT"
    kind: ClassVar[Kind] = "paper"
    settings_type = DctSettings
    settings: DctSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """The risk of contacts and of the others; ``DataError`` without any test."""
        if not known.tested.any():
            raise DataError("nobody was tested: there is nobody to be a contact of")
        days = self.settings.window_days
        per_day = traces.clock.slots_per_day
        first = 0 if days is None else traces.slots - days * per_day
        last = case_until(known, traces.clock, self.settings.days_after_test)
        contact = encounters(traces, last, first).slots > 0
        risk = _shares(contact, known)
        tested = np.flatnonzero(known.tested).astype(np.int32)
        told = {"contact_share": float(contact.mean())}
        return Scores(risk, tested, risk[tested], parameters=2, told=told)


def case_until(known: Known, clock: Clock, days_after_test: float | None) -> Slots:
    """The last slot in which each person counts as a known case, -1 for never.

    Before the test too: whoever is tested positive was infectious before.
    """
    last = np.full(known.people, clock.slots - 1, np.int64)
    if days_after_test is not None:
        # A case is told by any positive test, and ends with the first one.
        last = known.first_positive_slot + np.int64(days_after_test / clock.slot_days)
    found = np.where(known.status == 1, np.minimum(last, clock.slots - 1), -1)
    return found.astype(np.int32)


def _shares(contact: Mask, known: Known) -> Probabilities:
    tested, positive = known.tested, known.status == 1

    def share(kind: Mask) -> float:
        return float((positive[kind].sum() + 0.5) / (tested[kind].sum() + 1))

    met, others = share(contact), share(~contact)
    told_apart = tested[contact].any() and tested[~contact].any() and met > others
    if not told_apart:
        met = others = share(np.ones_like(contact))
    return np.where(contact, met, others)
