"""An aggregator: opens its share of each report and answers once per task.

Each (run, exchange, channel) has one task and one set of reports. Before an answer is
sent, these are on disk, in this order: the digest of the task, the charge in the
ledger, the answer with its noise, the digest of the set. A repeated request returns the
stored answer. So a process that is killed at any point draws no second noise for an
answer that was sent, and never answers for two sets. The noise covers whoever differs
between two tasks, and the ledger charges both.

Shares are held in memory until the answer is stored; after a restart the server sends
the reports again.
"""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation.sealed import shares
from epifalcon.federation.sealed.combine import SumShare, set_digest
from epifalcon.federation.sealed.fixed_point import Words
from epifalcon.federation.sealed.noise import Draw, discrete_gaussian, noise_of
from epifalcon.federation.sealed.sealing import identity, load_key, open_share
from epifalcon.federation.sealed.task import Role, SealedTask
from epifalcon.locks import FileLock
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.replay_log import ReplayError, ReplayLog
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.settings import as_plain
from epifalcon.streams import stored_secret

_KIND = "sealed-sum"
REFUSE_UNPROTECTED = Budget(refuse_unprotected=True)
"""Unlimited epsilon, but no sums without noise."""


class Aggregator:
    """The folder of an aggregator: keys, ledger of all tasks, log and answers."""

    def __init__(
        self, folder: Path, name: str, budget: Budget = REFUSE_UNPROTECTED
    ) -> None:
        """Open the folder, created if missing; one process at a time."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FileLock.inside(folder)
        self.folder, self.key = folder, load_key(folder / "key")
        self.identity = identity(name, self.key)
        self._logs: dict[str, ReplayLog] = {}
        code = hmac.digest(stored_secret(folder / "secret"), b"record", "sha256")
        self.record = SpendingRecord(folder / "spent.json", code)
        with store.owner_only():
            self.ledger = Ledger.open(
                folder / "ledger.jsonl", budget=budget, record=self.record
            )

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()

    def open(
        self,
        task: SealedTask,
        pinned: Mapping[str, str],
        draw: Draw = discrete_gaussian,
    ) -> "TaskReports":
        """Accept a task and return its reports, initially none.

        Raises ``ReplayError`` if another task of this run, exchange and channel was
        accepted before, and ``DataError`` if an aggregator is not ``pinned`` or this
        one does not take part.
        """
        task.require_trusted(pinned)
        if self.identity not in task.aggregators:
            names = " and ".join(repr(one.name) for one in task.aggregators)
            raise DataError(
                f"the task is for aggregators {names} with other keys than that of "
                f"{self.identity.name!r}"
            )
        with store.owner_only():
            log = self._log(task)
            log.require(task.terms.round, f"task {task.terms.channel}", task.sha256)
        role: Role = "a" if self.identity == task.aggregator("a") else "b"
        return TaskReports(self, task, role, log, draw)

    def charge(self, task: SealedTask) -> None:
        """Record the cost of a task in the ledger, once; refuse it past the budget."""
        channel = f"{task.run}/{task.terms.channel}"
        receipt = replace(task.receipt, terms=replace(task.terms, channel=channel))
        if receipt not in self.ledger.releases:
            self.ledger.record(receipt)

    def answer_path(self, task: SealedTask) -> Path:
        """Return the folder of the answer to a task."""
        return self.folder / "runs" / task.run / task.sha256

    def _log(self, task: SealedTask) -> ReplayLog:
        """Return the log of the task's run, one for all of its tasks."""
        if task.run not in self._logs:
            path = self.answer_path(task).with_name("tasks.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._logs[task.run] = ReplayLog(path, self.record)
        return self._logs[task.run]


class TaskReports:
    """The reports of one task at one aggregator; made by ``Aggregator.open``."""

    def __init__(
        self,
        aggregator: Aggregator,
        task: SealedTask,
        role: Role,
        log: ReplayLog,
        draw: Draw,
    ) -> None:
        self.task, self.role = task, role
        self._aggregator, self._log, self._draw = aggregator, log, draw
        self._path = aggregator.answer_path(task)
        self._shares: dict[str, bytes] = {}

    @property
    def accepted(self) -> tuple[str, ...]:
        """Ids of the accepted reports, in ascending order."""
        return tuple(sorted(self._shares))

    def accept(self, report: str, sealed: bytes) -> None:
        """Open and store the share of a report; raise ``DataError`` for a second one.

        A share that cannot be opened does not count, so it blocks no valid one.
        """
        if report in self._shares:
            raise DataError(f"report {report}: was already accepted for this task")
        if len(self._shares) >= (most := self.task.most_people):
            raise DataError(
                f"report {report}: the task has {most} reports already, "
                f"most_people={most}"
            )
        self._shares[report] = open_share(
            self.task, report, self.role, sealed, self._aggregator.key
        )

    def answer(self, reports: Collection[str]) -> SumShare:
        """Return the noised sum of the shares of ``reports``, the agreed set.

        A repeated request returns the stored answer. Raises ``ReplayError`` for another
        set, ``BudgetExceededError`` past the budget, and ``DataError`` if the set is
        below the minimum cohort or has reports that were not accepted.
        """
        number, phase = self.task.terms.round, f"set {self.task.terms.channel}"
        digest = set_digest(self.task, reports)
        self._log.refuse_other(number, phase, digest)
        with store.owner_only():
            if not self._path.exists():
                if (number, phase) in self._log:
                    raise CorruptFileError(
                        f"{self._path}: is missing, but this sum was released: restore "
                        "it; its noise is not drawn twice"
                    )
                self._store(self._add_up(reports), digest)
            share = self._stored()
            if share.reports != digest:
                raise ReplayError(
                    f"run {self.task.run}, exchange {number}: this aggregator has "
                    "answered for another set of reports"
                )
            self._log.require(number, phase, digest)
        return share

    def _add_up(self, reports: Collection[str]) -> Words:
        """Charge the task, then add up shares and draw the noise."""
        if len(reports) < (least := self.task.least_reports):
            raise DataError(
                f"the set has {len(reports)} reports, the minimum cohort is {least}: "
                "nothing was released"
            )
        if missing := sorted(set(reports) - self._shares.keys()):
            raise DataError(
                f"{len(missing)} of {len(reports)} reports of the set were not "
                f"accepted here (first: {missing[0]!r}): send them again, or agree on "
                "the accepted ones"
            )
        self._aggregator.charge(self.task)
        total = noise_of(self.task, self._draw)
        for report in reports:
            share = self._shares[report]
            total += (
                shares.expand(share, self.task.length)
                if self.role == "b"
                else shares.from_bytes(share)
            )
        return total

    def _store(self, words: Words, digest: str) -> None:
        meta = {"task": self.task.sha256, "role": self.role, "reports": digest}
        origin = store.Origin.now(as_plain(self.task), seed=None)
        with store.new_directory(self._path) as made:
            store.write(made, _KIND, {"words": words}, meta=meta, origin=origin)

    def _stored(self) -> SumShare:
        stored = store.read(self._path, _KIND)
        return SumShare(**stored.meta, words=np.array(stored.arrays["words"]))
