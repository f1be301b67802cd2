"""A whole run of Falcon Field over sites: meet, count, all sweeps, finish.

What the server writes lies in the run's folder: the ledger, at the end the field
that the places tell, and ``summary.json``. A run that was broken off is begun again
from its first exchange, which takes seconds: sites that promised something answer
with the same bits, and no ledger counts that twice.
"""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from epifalcon import store
from epifalcon.errors import DataError, EpifalconError
from epifalcon.federation.checkpoints import ledger_of, record_once
from epifalcon.federation.field import receipts
from epifalcon.federation.field.apart import Apart
from epifalcon.federation.field.course import Course, Found, Setting
from epifalcon.federation.field.task import METHOD, FieldOrder
from epifalcon.federation.sites.coordinating import (
    PROGRESS,
    SCORES,
    SUMMARY,
    Conduct,
    score_table,
)
from epifalcon.federation.sites.door import LEDGER
from epifalcon.federation.sites.gathering import Met, meet
from epifalcon.federation.sites.locks import FolderLock
from epifalcon.federation.sites.remembering import TROUBLES, Gathered, Troubles
from epifalcon.federation.sites.switchboard import Switchboard
from epifalcon.federation.sites.transport import Transport
from epifalcon.federation.spending import spent_figures
from epifalcon.models.tensor_files import write_tensors
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.types import Probabilities

FIELD = "field.safetensors"


class FieldSitesRun:
    """One run; ``go`` carries it out, from its beginning each time."""

    def __init__(
        self, transport: Transport, folder: Path, order: FieldOrder, conduct: Conduct
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: FolderLock | None = FolderLock(folder)
        known = Troubles(folder / TROUBLES)
        self.board = Switchboard(transport, folder.name, order.rules, known)
        self.scores: dict[str, Probabilities] = {}
        self._folder, self._order, self._conduct = folder, order, conduct
        self._ledger: Ledger | None = None
        self._found: Found | None = None
        self._seconds: list[float] = []
        self._began = perf_counter()

    def go(self, progress: Progress = silent) -> dict[str, Any]:
        """All runs of the task; returns the summary, which is also written."""
        began = perf_counter()
        self._lock = self._lock or FolderLock(self._folder)
        try:
            self._sweep(progress)
            return self._write_report(perf_counter() - began)
        except EpifalconError as error:
            self._write_report(perf_counter() - began, error)
            raise
        finally:
            self._lock.release()
            self._lock = None

    def _sweep(self, progress: Progress) -> None:
        task = self._order.settings
        met = self._meet()
        ledger = self._open_ledger(met)

        def before(step: int) -> None:
            made = receipts.exchange(task, met.clock, step)
            if made:
                ledger.record(*made)

        apart = Apart(self.board, met, task, before)
        setting = Setting(sum(met.people.values()), met.clock, apart.regions)
        self._began = perf_counter()
        course = Course(apart, task, setting, self._teller(progress))
        self._found = course.found
        found = course.go()
        if found.field:
            tensors = {name: torch.from_numpy(one) for name, one in found.field.items()}
            write_tensors(self._folder / FIELD, tensors)
        self.scores = apart.finish(self._conduct.scores)
        if self.scores:
            store.replace_text(self._folder / SCORES, score_table(self.scores))

    def _meet(self) -> Met:
        """The sites, with the numbers that their people had before, if any."""
        order, folder = self._order, self._folder
        before = Gathered.load(folder, order.origin)
        met = meet(self.board, order.told, before)
        if before is None:
            Gathered(met.first, {}).save(folder, order.origin)
        elif set(met.first) != set(before.first) and order.settings.private:
            missing = ", ".join(sorted(set(before.first) - set(met.first)))
            raise DataError(f"begun with {missing}: it must be there again")
        return met

    def _open_ledger(self, met: Met) -> Ledger:
        task = self._order.settings
        budget = receipts.budget_of(task, met.clock)
        ledger = ledger_of(self._folder / LEDGER, budget, None)
        record_once(ledger, receipts.opening(task, met.clock))
        self._ledger = ledger
        return ledger

    def _teller(self, progress: Progress) -> Any:  # noqa: ANN401
        def told(done: int, planned: int) -> None:
            now = perf_counter()
            self._seconds.append(now - self._began)
            self._began = now
            progress("sweeps", done, planned)
            text = json_text({"round": done, "rounds": planned, "told": ""})
            store.replace_text(self._folder / PROGRESS, text)

        return told

    def _write_report(
        self, seconds: float, error: EpifalconError | None = None
    ) -> dict[str, Any]:
        found, traffic, ledger = self._found, self.board.traffic, self._ledger
        later = self._seconds[1:] or self._seconds or [0.0]
        mode = self._order.settings.mode
        spent = None if ledger is None else spent_figures(mode, ledger)
        summary = {
            "run": self.board.run,
            "method": METHOD,
            "finished": error is None,
            "error": None if error is None else str(error),
            "error_kind": None if error is None else type(error).__name__,
            "rounds": 0 if found is None else found.sweeps,
            "law": None if found is None else found.law,
            "seconds": seconds,
            "seconds_per_round": sum(later) / len(later),
            "round_seconds": self._seconds,
            "calls": traffic.calls,
            "call_seconds": traffic.seconds,
            "site_seconds": traffic.site_seconds,
            "bytes_sent": traffic.sent,
            "bytes_received": traffic.received,
            "epsilon": None if spent is None else spent["epsilon"],
            "ledger_head": None if ledger is None else ledger.head,
            "sites": self.board.report(),
        }
        store.replace_text(self._folder / SUMMARY, json_text(summary, indent=2))
        return summary
