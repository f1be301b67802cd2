"""A run of Falcon Field over sites: meet, count, all sweeps, finish.

Beside what every run leaves, the server's folder holds at the end the field at all
places. A run that was interrupted starts again from its first exchange, which takes
seconds: sites with noise answer with the same bits, and no ledger counts that twice.

A site that does not answer, or answers what cannot be, sits out: its last message in
the same run stays in use. With fewer sites than agreed the run ends.
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch

from epifalcon.belief_propagation import calibration
from epifalcon.belief_propagation.inference import Exchange, add_sums
from epifalcon.belief_propagation.seir_chain import EdgeMessages, Sums, SweepOptions
from epifalcon.errors import DataError
from epifalcon.federation.field.course import Course, Found
from epifalcon.federation.field.home import Counted, FieldRun, HeldOut
from epifalcon.federation.field.messages import (
    End,
    FieldAnswers,
    FieldCounted,
    FieldSums,
    Judge,
    Losses,
    Size,
    Sweep,
)
from epifalcon.federation.field.plan import (
    budget_of,
    opening_receipts,
    sweep_receipts,
)
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.field.site import FieldOrder
from epifalcon.federation.messages import (
    Count,
    Done,
    Finish,
    Record,
    Scores,
)
from epifalcon.federation.sites.coordinating import Gathered, Met, meet
from epifalcon.federation.sites.server_run import Conduct, ServerRun
from epifalcon.federation.sites.switchboard import Switchboard, Transport
from epifalcon.models.tensor_files import write_tensors
from epifalcon.progress import Progress
from epifalcon.types import Floats, Probabilities

FIELD = "field.safetensors"
R = TypeVar("R", bound=Record)
T = TypeVar("T")


class FieldSitesRun(ServerRun[FieldOrder]):
    """One run of Falcon Field, from its beginning each time."""

    order_type = FieldOrder

    def __init__(
        self, transport: Transport, folder: Path, order: FieldOrder, conduct: Conduct
    ) -> None:
        super().__init__(transport, folder, order, conduct)
        self._found: Found | None = None

    def carry_out(self, progress: Progress) -> None:
        """All runs of the task."""
        task = self._order.settings
        met = self._meet()
        budget = budget_of(task, met.clock)
        ledger = self.open_ledger(budget, opening_receipts(task, met.clock))

        def before(step: int) -> None:
            made = sweep_receipts(task, met.clock, step)
            if made:
                ledger.record(*made)

        apart = Apart(self.board, met, task, before)
        people = sum(met.people.values())
        last = perf_counter()

        def report(done: int, planned: int) -> None:
            nonlocal last
            now = perf_counter()
            self.round_seconds.append(now - last)
            last = now
            progress("sweeps", done, planned)
            self.report_progress(done, planned)

        course = Course(apart, task, people, met.clock, report)
        self._found = course.found
        found = course.go()
        if found.field:
            tensors = {name: torch.from_numpy(one) for name, one in found.field.items()}
            write_tensors(self._folder / FIELD, tensors)
        self.scores = apart.finish(self._conduct.scores)

    def figures(self) -> dict[str, Any]:
        """Sweeps, and the chosen law of transmission."""
        found = self._found
        return {
            "rounds": 0 if found is None else found.sweeps,
            "law": None if found is None else found.law,
        }

    def _meet(self) -> Met:
        """The sites, with the numbers that their people had before, if any."""
        order, folder = self._order, self._folder
        before = Gathered.load(folder, order.origin)
        met = meet(self.board, order.hello, before)
        if before is None:
            Gathered(met.first).save(folder, order.origin)
        elif set(met.first) != set(before.first) and order.is_private:
            missing = ", ".join(sorted(set(before.first) - set(met.first)))
            raise DataError(f"begun with {missing}: it must be there again")
        return met


class Apart:
    """The people of a task behind ``board``.

    ``before`` is called with the number of each exchange in its run, before anything
    is asked.
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
        requests = {site: Count(first, people) for site, first in met.first.items()}
        self._counted = board.ask(
            0,
            requests,
            FieldCounted,
            lambda site, answer: self._answers[site].counted(answer),
        )
        board.keep_only(self._counted)

    def counted(self) -> Counted:
        """The counts of all sites, added up."""
        first, *others = [self._counted[site] for site in sorted(self._counted)]
        return sum(others, first)

    def exchange(self, run: FieldRun) -> Exchange:
        """The exchanges of one run with all people."""
        return _Way(self, run)

    def judged(self, held_out: list[HeldOut]) -> calibration.Losses:
        """Losses of held-out people under each model, of the sites that send them."""
        found = self.ask(Judge.of(held_out), Losses, FieldAnswers.losses)
        first, *others = [found[site] for site in sorted(found)]
        return sum(others, first)

    def finish(self, scores: bool) -> dict[str, Probabilities]:
        """Let every site write its risks; return those that sites give."""

        def check(one: FieldAnswers, answer: Scores) -> Floats | None:
            return answer.require(one.people)

        found = self.ask(Finish(scores=scores), Scores, check)
        return {site: one for site, one in found.items() if one is not None}

    def begin(self, step: int) -> None:
        """Begin an exchange, the ``step``-th of its run: everybody may take part."""
        self._number += 1
        self.board.new_round()
        self._before(step)

    def ask(
        self, request: Record, answer: type[R], check: Callable[[FieldAnswers, R], T]
    ) -> dict[str, T]:
        """Ask all sites that attend the same."""
        requests = dict.fromkeys(self.board.attending, request)
        return self.board.ask(
            self._number,
            requests,
            answer,
            lambda site, one: check(self._answers[site], one),
        )


class _Way:
    """One run's exchanges."""

    def __init__(self, apart: Apart, run: FieldRun) -> None:
        self._apart, self._run = apart, run
        self._step = 0
        self._last: dict[str, Sums] = {}

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Send everybody the state of places; sum up the last message of each site."""
        self._step += 1
        self._apart.begin(self._step)
        request = Sweep.of(received, options, self._run, self._step)

        def check(one: FieldAnswers, answer: FieldSums) -> Sums:
            return one.sums(answer, options)

        self._last |= self._apart.ask(request, FieldSums, check)
        # The first one's arrays are added to, and may be needed again.
        latest = [self._last[site] for site in sorted(self._last)]
        copy = Sums(*(one.copy() for one in latest[0]))
        return add_sums([copy, *latest[1:]])

    def end(self, received: EdgeMessages) -> None:
        """Send everybody the last state of places; nothing comes back."""
        options = SweepOptions(0.0, np.zeros(len(received.day)), 0.0)
        request = End.of(received, options, self._run, self._step + 1)
        self._apart.ask(request, Done, lambda _, answer: answer)
