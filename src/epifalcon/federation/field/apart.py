"""Exchanges over sites: the way to people who are at home elsewhere.

A site that does not answer, or answers what cannot be, sits out: what it sent last
in the same run stands. With fewer sites than agreed the run ends, and can be begun
again under its name: it tells the same and hears the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from epifalcon.errors import DataError
from epifalcon.federation.field.home import Counted, FieldRun
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.messages import FieldAnswers, Size, tell
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.sites.gathering import Met
from epifalcon.federation.sites.switchboard import Payload, Switchboard
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.people import add_up
from epifalcon.models.field.sweeps import Exchange
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.types import Floats, Probabilities

T = TypeVar("T")
_NOWHERE = 1e9
"""For a centre that is not known, since messages hold no NaN."""


@dataclass(frozen=True, eq=False)
class _First:
    """What a site answered to ``count``."""

    counted: Counted
    centre_km: Floats


class Apart:
    """The people of a task behind ``board``; ``before`` is called with each exchange.

    It is given the number of the exchange in its run before anything is asked.
    """

    def __init__(
        self,
        board: Switchboard,
        met: Met,
        task: FieldTask,
        before: Callable[[int], None],
    ) -> None:
        self.board, self._before = board, before
        people = sum(met.people.values())
        size = Size(people, met.clock, met.regions)
        self._answers = {
            site: FieldAnswers(task, size, count) for site, count in met.people.items()
        }
        self._number = 0
        found = self._count(met, size)
        self._counted = {site: one.counted for site, one in found.items()}
        centre = next(iter(found.values())).centre_km
        centre = np.where(centre >= _NOWHERE, np.nan, centre)
        self.regions = Regions(kind="area", centre_km=centre)

    def counted(self) -> Counted:
        """What all sites counted, added up."""
        first, *others = [self._counted[site] for site in sorted(self._counted)]
        return sum(others, first)

    def exchange(self, run: FieldRun) -> Exchange:
        """The way to all people and back for one run."""
        return _Way(self, run)

    def judged(self, folds: list[int]) -> Judgement:
        """How well each law told the people of ``folds``, of the sites that say."""
        payload = Payload(told={"folds": folds})
        found = self.ask("judged", payload, lambda one, came: one.judgement(came))
        return sum((found[site] for site in sorted(found)), Judgement.none())

    def finish(self, scores: bool) -> dict[str, Probabilities]:
        """Let every site write its risks; those that give them, where wished."""
        payload = Payload(told={"scores": scores})
        found = self.ask("finish", payload, lambda one, came: one.scores(came))
        return {site: one for site, one in found.items() if one is not None}

    def begin(self, step: int) -> None:
        """A new exchange, the ``step``-th of its run: everybody may take part."""
        self._number += 1
        self.board.new_round()
        self._before(step)

    def ask(
        self, phase: str, payload: Payload, read: Callable[[FieldAnswers, Parcel], T]
    ) -> dict[str, T]:
        """Ask all that attend the same."""
        calls = dict.fromkeys(self.board.attending, payload)

        def of(site: str, answer: Parcel) -> T:
            return read(self._answers[site], answer)

        return self.board.ask((phase, self._number), calls, of)

    def _count(self, met: Met, size: Size) -> Mapping[str, _First]:
        calls = {
            site: Payload(told={"first": first, "people": size.people})
            for site, first in met.first.items()
        }
        read = partial(self._read_first, regions=size.regions)
        found = self.board.ask(("count", 0), calls, read)
        self.board.keep_only(found)
        return found

    def _read_first(self, site: str, answer: Parcel, *, regions: int) -> _First:
        centre: Floats = answer.tensor("centre_km").numpy()
        if centre.shape != (regions, 2) or centre.dtype != np.float64:
            raise DataError(f"centres of {centre.dtype} and {centre.shape}")
        if not np.isfinite(centre).all():
            raise DataError("centres hold NaN or infinity")
        return _First(self._answers[site].counted(answer), centre)


class _Way:
    """One run's exchanges."""

    def __init__(self, apart: Apart, run: FieldRun) -> None:
        self._apart, self._run = apart, run
        self._step = 0
        self._last: dict[str, Sums] = {}

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring the sums of what they sent last."""
        self._step += 1
        self._apart.begin(self._step)
        payload = tell(told, manner, self._run, self._step)
        payload = Payload(
            payload.tensors, {**payload.told, "well": well, "tally": tally}
        )
        read = partial(_read_sums, well=well, tally=tally)
        self._last |= self._apart.ask("sweep", payload, read)
        # The first one's arrays are added to, and may be needed again.
        latest = [self._last[site] for site in sorted(self._last)]
        copy = Sums(*(one.copy() for one in latest[0]))
        return add_up([copy, *latest[1:]])

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        payload = tell(told, manner, self._run, self._step + 1)
        self._apart.ask("end", payload, _nothing)


def _read_sums(
    answers: FieldAnswers, answer: Parcel, *, well: bool, tally: bool
) -> Sums:
    return answers.sums(answer, well=well, tally=tally)


def _nothing(answers: FieldAnswers, answer: Parcel) -> None:
    """An answer that says no more than that all is well."""
