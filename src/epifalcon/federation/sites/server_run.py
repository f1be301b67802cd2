"""One run over sites as its server sees it, whatever its method.

What the server writes is in the run's folder: the ledger, progress, at the end
``summary.json`` and, if asked for and given, everybody's scores.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import EpifalconError
from epifalcon.federation.checkpoints import (
    Checkpoint,
    ledger_of,
    record_once,
    spent_figures,
)
from epifalcon.federation.sites.session import LEDGER, Order
from epifalcon.federation.sites.switchboard import (
    TROUBLES,
    Switchboard,
    Transport,
    Troubles,
)
from epifalcon.locks import FileLock
from epifalcon.privacy.events import Release
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.types import Probabilities

SUMMARY = "summary.json"
PROGRESS = "progress.json"
SCORES = "scores.csv"
OrderT = TypeVar("OrderT", bound=Order)


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How a run is carried out, beside what it computes."""

    keep_every: int = 10
    """Rounds between two checkpoints."""
    scores: bool = False
    """Whether to ask the sites for the scores of all people at the end."""

    def __post_init__(self) -> None:
        whole(1, keep_every=self.keep_every)


class ServerRun(ABC, Generic[OrderT]):
    """One run; ``go`` carries it out, or resumes it."""

    order_type: ClassVar[type[Order]]

    def __init__(
        self, transport: Transport, folder: Path, order: OrderT, conduct: Conduct
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: FileLock | None = FileLock.inside(folder)
        known = Troubles(folder / TROUBLES)
        self.board = Switchboard(transport, folder.name, order.rules, known)
        self.scores: dict[str, Probabilities] = {}
        self.round_seconds: list[float] = []
        self._folder, self._order, self._conduct = folder, order, conduct
        self._ledger: Ledger | None = None

    @abstractmethod
    def carry_out(self, progress: Progress) -> None:
        """Run the method; fill ``scores`` with those that sites give."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """The method's own part of the summary, at any time."""

    def go(self, progress: Progress = silent) -> dict[str, Any]:
        """Run to the end; return the summary, which is also written.

        With too few sites the run stops, and the same call resumes it later.
        """
        began = perf_counter()
        self._lock = self._lock or FileLock.inside(self._folder)
        try:
            self.carry_out(progress)
            if self.scores:
                lines = [
                    f"{site},{person},{score!r}\n"
                    for site, some in sorted(self.scores.items())
                    for person, score in enumerate(some.tolist())
                ]
                text = "site,person,probability\n" + "".join(lines)
                store.replace_text(self._folder / SCORES, text)
            return self._write_summary(perf_counter() - began)
        except EpifalconError as error:
            # Also of a run that never began: why must be known.
            self._write_summary(perf_counter() - began, error)
            raise
        finally:
            self._lock.release()
            self._lock = None

    def open_ledger(
        self,
        budget: Budget,
        opening: Sequence[Release],
        resumed: Checkpoint | None = None,
    ) -> Ledger:
        """Open the server's ledger, with the receipts of what leaves first."""
        self._ledger = ledger_of(self._folder / LEDGER, budget, resumed)
        record_once(self._ledger, opening)
        return self._ledger

    def report_progress(self, done: int, planned: int, text: str = "") -> None:
        """Let whoever looks into the folder see how far the run is."""
        values = {"round": done, "rounds": planned, "told": text}
        store.replace_text(self._folder / PROGRESS, json_text(values))

    def _write_summary(
        self, seconds: float, error: EpifalconError | None = None
    ) -> dict[str, Any]:
        traffic, ledger, listed = self.board.traffic, self._ledger, self.round_seconds
        later = listed[1:] or listed or [0.0]
        spent = None if ledger is None else spent_figures(self._order.mode, ledger)
        summary = {
            "run": self.board.run,
            "method": self._order.method,
            "finished": error is None,
            "error": None if error is None else str(error),
            "error_kind": None if error is None else type(error).__name__,
            **self.figures(),
            "seconds": seconds,
            # The first round also makes what all others use.
            "seconds_per_round": sum(later) / len(later),
            "round_seconds": listed,
            "calls": traffic.calls,
            "call_seconds": traffic.seconds,
            "site_seconds": traffic.site_seconds,
            "bytes_sent": traffic.sent,
            "bytes_received": traffic.received,
            "epsilon": None if spent is None else spent["epsilon"],
            "ledger_head": None if ledger is None else ledger.head,
            "sites": self.board.report(),
        }
        if ledger is not None or not self._ended_before():
            store.replace_text(self._folder / SUMMARY, json_text(summary, indent=2))
        return summary

    def _ended_before(self) -> bool:
        """Whether the folder holds the summary of a run that was completed."""
        try:
            return bool(json.loads((self._folder / SUMMARY).read_text())["finished"])
        except (OSError, ValueError, KeyError):
            return False
