"""A run of Falcon Field over sites: meet, count, all sweeps, finish.

The server's folder also holds, at the end, the sums at all places. An interrupted run
starts again from its first exchange, which takes seconds: sites with noise answer with
the same bits, and no ledger counts that twice.

A site that does not answer, or answers what cannot be, sits out: its last message in
the same run stays in use. With fewer sites than agreed the run ends.
"""

from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch

from epifalcon.belief_propagation import calibration
from epifalcon.belief_propagation.inference import add_sums
from epifalcon.belief_propagation.seir_chain import EdgeMessages, Sums, SweepOptions
from epifalcon.errors import DataError
from epifalcon.federation.field.course import Course, Found
from epifalcon.federation.field.home import Counted, FieldRun, HeldOut
from epifalcon.federation.field.messages import (
    End,
    FieldAnswers,
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
from epifalcon.federation.sites.switchboard import Transport
from epifalcon.models.tensor_files import write_tensors
from epifalcon.progress import Progress
from epifalcon.types import Floats

FIELD = "field.safetensors"
R = TypeVar("R", bound=Record)
T = TypeVar("T")


class FieldSitesRun(ServerRun[FieldOrder]):
    """One run of Falcon Field, from its beginning each time.

    It is also the ``People`` of its course: all that are behind its sites.
    """

    order_type = FieldOrder

    def __init__(
        self, transport: Transport, folder: Path, order: FieldOrder, conduct: Conduct
    ) -> None:
        super().__init__(transport, folder, order, conduct)
        self._found = Found()
        self._task = order.settings
        self._number = 0
        """Exchanges of all runs so far."""
        self._run, self._step = FieldRun(), 0
        self._last: dict[str, Sums] = {}
        """Of each site, its last message in this run."""

    def carry_out(self, progress: Progress) -> None:
        """Run the whole schedule."""
        met = self._meet()
        budget = budget_of(self._task, met.clock)
        opening = opening_receipts(self._task, met.clock)
        self._met, self._receipts = met, self.open_ledger(budget, opening)
        people = sum(met.people.values())
        size = Size(people, met.clock, met.regions)
        self._answers = {
            site: FieldAnswers(self._task, size, count)
            for site, count in met.people.items()
        }
        last = perf_counter()

        def report(done: int, planned: int) -> None:
            nonlocal last
            now = perf_counter()
            self.round_seconds.append(now - last)
            last = now
            progress("sweeps", done, planned)
            self.report_progress(done, planned)

        course = Course(self, self._task, people, met.clock, report)
        self._found = course.found
        found = course.go().field
        tensors = {name: torch.from_numpy(one) for name, one in found.items()}
        write_tensors(self._folder / FIELD, tensors)

        def check(one: FieldAnswers, answer: Scores) -> Floats | None:
            return answer.require(one.people)

        scores = self._ask(Finish(scores=self._conduct.scores), Scores, check)
        self.scores = {site: one for site, one in scores.items() if one is not None}

    def figures(self) -> dict[str, Any]:
        """Return the number of sweeps and the selected model of transmission."""
        found = self._found
        return {"rounds": found.sweeps, "law": found.law if found.sweeps else None}

    def _meet(self) -> Met:
        """Greet the sites; their people have the numbers that they had before."""
        order, folder = self._order, self._folder
        before = Gathered.load(folder, order.origin)
        met = meet(self.board, order.hello, before)
        if before is None:
            Gathered(met.first).save(folder, order.origin)
        elif set(met.first) != set(before.first) and order.is_private:
            missing = ", ".join(sorted(set(before.first) - set(met.first)))
            raise DataError(f"begun with {missing}: it must be there again")
        return met

    def counted(self) -> Counted:
        """Return the counts of all sites, added up."""
        people = sum(self._met.people.values())
        found = self.board.ask(
            0,
            {site: Count(first, people) for site, first in self._met.first.items()},
            Counted,
            lambda site, answer: self._answers[site].counted(answer),
        )
        self.board.keep_only(found)
        return reduce(add, [found[site] for site in sorted(found)])

    def begin(self, run: FieldRun) -> None:
        """Begin a run; sites learn of it with the first exchange."""
        self._run, self._step, self._last = run, 0, {}

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Send the messages of all edges; sum up the last message of each site."""
        self._step += 1
        self._number += 1
        self.board.new_round()
        if made := sweep_receipts(self._task, self._met.clock, self._step):
            self._receipts.record(*made)
        request = Sweep.of(received, options, self._run, self._step)

        def check(one: FieldAnswers, answer: FieldSums) -> Sums:
            return one.sums(answer, options)

        self._last |= self._ask(request, FieldSums, check)
        # The first one's arrays are added to, and may be needed again.
        latest = [self._last[site] for site in sorted(self._last)]
        copy = Sums(*(one.copy() for one in latest[0]))
        return add_sums([copy, *latest[1:]])

    def end(self, received: EdgeMessages) -> None:
        """Send the last messages of all edges; nothing comes back."""
        options = SweepOptions(0.0, np.zeros(len(received.day)), 0.0)
        request = End.of(received, options, self._run, self._step + 1)
        self._ask(request, Done, lambda _, answer: answer)

    def judged(self, held_out: list[HeldOut]) -> calibration.Losses:
        """Return the losses of held-out people, of the sites that send them."""
        found = self._ask(Judge.of(held_out), Losses, FieldAnswers.losses)
        return reduce(add, [found[site] for site in sorted(found)])

    def _ask(
        self, request: Record, answer: type[R], check: Callable[[FieldAnswers, R], T]
    ) -> dict[str, T]:
        """Send the same request to all attending sites; return checked answers."""
        return self.board.ask(
            self._number,
            dict.fromkeys(self.board.attending, request),
            answer,
            lambda site, one: check(self._answers[site], one),
        )
