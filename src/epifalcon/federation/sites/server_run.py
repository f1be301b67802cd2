"""One run over sites as its server sees it, whatever its method.

Every answer is checked before it is used: heading, types, shapes, numbers, norms.
An answer that fails is refused, counted and named, and its site sits out the rest of
the round, as does a site that did not answer in time. Fewer sites than agreed end the
run in a way that can be resumed.

Sites answer a round that is repeated only upon equal requests. So a server records
which sites were missing at which step, and leaves them out there again.

What the server writes is in the run's folder: the ledger, progress, at the end
``summary.json`` and, if requested and given, everybody's scores.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from epifalcon import store
from epifalcon.checks import Checked, Count
from epifalcon.errors import DataError, EpifalconError, TooFewSitesError
from epifalcon.federation import checkpoints, messages
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.files import REPLAYED, open_journal
from epifalcon.federation.sites.session import LEDGER, Order
from epifalcon.locks import FileLock
from epifalcon.privacy.events import Release
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import build, json_text
from epifalcon.types import Probabilities

R = TypeVar("R", bound=messages.Record)
T = TypeVar("T")
OrderT = TypeVar("OrderT", bound=Order)
SUMMARY = "summary.json"
PROGRESS = "progress.json"
SCORES = "scores.csv"
TROUBLES = "troubles.jsonl"
_MOST_WORDS = 300
_BEFORE = frozenset({"hello", "count", "states", "prepare"})
"""Steps before the rounds; the sites that are ready then are stored as a whole."""


class Transport(Protocol):
    """Carries calls to sites and answers back, whatever the network is."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites, as the network knows them."""

    def ask(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its call; answers by site, and why others failed.

        All at once, waiting at most ``seconds``. Answers are named by what the
        network vouches for, not by what a message says.
        """


class InMemoryTransport:
    """Carries calls by function calls, one site after another."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._answers = dict(answers)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return tuple(self._answers)

    def ask(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the answer of each site; none fails and none takes too long."""
        del seconds
        return {site: self._answers[site](call) for site, call in calls.items()}, {}


@dataclass(frozen=True)
class Trouble:
    """One failure of one site."""

    site: str
    round: int
    phase: str
    kind: Literal["silent", "refused", "failed"]
    why: str


@dataclass
class Traffic:
    """Bytes and seconds of the calls so far."""

    calls: int = 0
    call_seconds: float = 0.0
    """From packing a call to reading the last answer."""
    site_seconds: float = 0.0
    """Working time of the slowest site, as it reports, call by call."""
    bytes_sent: int = 0
    bytes_received: int = 0


class Switchboard:
    """Calls the sites of one run; ``present`` lists those still in it, in order.

    Failures on which later calls depend are stored in ``path`` before those leave.
    """

    def __init__(
        self, transport: Transport, run: str, rules: SiteRules, path: Path | None = None
    ) -> None:
        self.run, self.rules = run, rules
        self.present = sorted(transport.sites)
        self._path, self._journal, self._stored = path, None, list[Trouble]()
        if path is not None:
            self._journal, self._stored = open_journal(path, partial(build, Trouble))
        self._absent = {(one.site, one.phase, one.round) for one in self._stored}
        self.troubles = list(self._stored)
        self.traffic = Traffic()
        self._transport = transport
        self._sitting_out: set[str] = set()
        self._missed: Counter[str] = Counter()
        self._lost: list[Trouble] = []
        """In this round, and never before."""
        self._require_enough()

    @property
    def attending(self) -> list[str]:
        """The sites that take part in the rest of this round."""
        return [site for site in self.present if site not in self._sitting_out]

    def new_round(self) -> None:
        """Let everybody take part again, except sites that missed too many rounds."""
        for site in self.present:
            missed = self._missed[site] + 1 if site in self._sitting_out else 0
            self._missed[site] = missed
        most = self.rules.most_missed
        self.present = [one for one in self.present if self._missed[one] < most]
        self._sitting_out.clear()
        self._lost.clear()
        self._require_enough()

    def keep_only(self, sites: Iterable[str]) -> None:
        """Continue without the other sites: they were not there at the start."""
        some = set(sites)
        self.present = [site for site in self.present if site in some]
        self._require_enough()

    def ask(
        self,
        number: int,
        requests: Mapping[str, messages.Record],
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        """Send each site its request of round ``number``; return accepted answers.

        ``check`` returns what is made of an answer, or refuses it by a ``DataError``.
        """
        if not requests:
            return {}
        began, before = perf_counter(), len(self.troubles)
        step = next(iter(requests.values())).moment
        absent = {one for one in requests if (one, step, number) in self._absent}
        self._sitting_out |= absent
        headings = {
            site: messages.Heading(self.run, site, number, step)
            for site in requests
            if site not in absent
        }
        calls = {
            site: messages.pack(requests[site].encode(heading))
            for site, heading in headings.items()
        }
        answers, failures = self._transport.ask(calls, self.rules.answer_seconds)
        accepted: dict[str, T] = {}
        busy = [0.0]
        for site in calls:
            if site not in answers:
                why = failures.get(site, "no answer")
                self._sit_out(Trouble(site, number, step, "silent", why))
                continue
            try:
                packet = self._accept(answers[site], headings[site])
                accepted[site] = check(site, answer.decode(packet))
                busy.append(_seconds(packet))
            except Exception as error:
                # Whatever the bytes of a site lead to is that site's failure.
                self._sit_out(Trouble(site, number, step, "refused", _why(error)))
        self.traffic.site_seconds += max(busy)
        self.traffic.bytes_sent += sum(map(len, calls.values()))
        self.traffic.bytes_received += sum(map(len, answers.values()))
        self.traffic.calls += 1
        self.traffic.call_seconds += perf_counter() - began
        self._continue_after(self.troubles[before:])
        return accepted

    def refuse(self, trouble: Trouble) -> None:
        """Withdraw an accepted answer: it does not fit those of the others."""
        self._sit_out(trouble)
        self._continue_after([trouble])

    def report(self) -> dict[str, Any]:
        """All failures, for the run's report."""
        kinds = Counter((one.site, one.kind) for one in self.troubles)
        counts: dict[str, dict[str, int]] = {}
        for (site, kind), count in sorted(kinds.items()):
            counts.setdefault(site, {})[kind] = count
        return {
            "sites": list(self.present),
            "counts": counts,
            "troubles": [asdict(one) for one in self.troubles],
        }

    def _accept(self, answer: bytes, heading: messages.Heading) -> messages.Packet:
        if len(answer) > (most := self.rules.most_answer_mb) * 2**20:
            raise DataError(f"an answer of {len(answer):,} bytes, at most {most} MB")
        packet = messages.unpack(answer)
        packet.heading.require(heading)
        if messages.ERROR in packet.values:
            # Text of a stranger: short, and one line.
            said = " ".join(str(packet.values[messages.ERROR]).split())[:200]
            raise DataError(f"the site says: {said}")
        return packet

    def _continue_after(self, new: list[Trouble]) -> None:
        """Require enough sites, and store who was missing at this step."""
        try:
            self._require_enough()
        except TooFewSitesError:
            # What ended a run is not stored: nothing was sent upon it, and a site
            # that comes back may answer. Nor is a loss in a repeated round which
            # the others do not repeat without the lost site.
            if any(REPLAYED in one.why for one in new):
                self._forget_lost()
            raise
        stored = [one for one in new if one.phase not in _BEFORE]
        self._stored += stored
        self._lost += stored
        if self._journal is not None and stored:
            self._journal.append(json.dumps(asdict(one)) for one in stored)

    def _forget_lost(self) -> None:
        """Let sites take part again: the run could not continue without them."""
        self._stored = [one for one in self._stored if one not in self._lost]
        if self._path is not None and self._lost:
            lines = [f"{json.dumps(asdict(one))}\n" for one in self._stored]
            store.replace_text(self._path, "".join(lines))
            self._journal, _ = open_journal(self._path, partial(build, Trouble))

    def _sit_out(self, trouble: Trouble) -> None:
        self._sitting_out.add(trouble.site)
        self.troubles.append(trouble)

    def _require_enough(self) -> None:
        there, least = len(self.attending), max(self.rules.least_sites, 1)
        if there >= least:
            return
        last = "".join(
            f"; {one.site} in round {one.round}, {one.phase}: {one.why}"
            for one in self.troubles[-3:]
        )
        raise TooFewSitesError(f"{there} sites take part, {least} are needed{last}")


def accepted(_site: str, answer: R) -> R:
    """Accept an answer as it is."""
    return answer


def given(answers: Mapping[str, T | None]) -> dict[str, T]:
    """Return the answers that hold something."""
    return {site: one for site, one in answers.items() if one is not None}


def _why(error: Exception) -> str:
    """One line: our own words, or the type of an error that we did not foresee."""
    if not isinstance(error, EpifalconError):
        return f"the answer cannot be read ({type(error).__name__})"
    return " ".join(str(error).split())[:_MOST_WORDS]


def _seconds(answer: messages.Packet) -> float:
    found = answer.values.get(messages.SECONDS, 0.0)
    return float(found) if isinstance(found, int | float) and 0 <= found < 1e9 else 0.0


@dataclass(frozen=True, kw_only=True)
class Conduct(Checked):
    """How a run is carried out, beside what it computes."""

    keep_every: Count = 10
    """Rounds between two checkpoints."""
    scores: bool = False
    """Whether to ask the sites for the scores of all people at the end."""


class ServerRun(ABC, Generic[OrderT]):
    """One run; ``go`` carries it out, or resumes it."""

    order_type: ClassVar[type[Order]]

    def __init__(
        self, transport: Transport, folder: Path, order: OrderT, conduct: Conduct
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: FileLock | None = FileLock.inside(folder)
        place = folder / TROUBLES
        self.board = Switchboard(transport, folder.name, order.rules, place)
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
        """Run to the end, or until too few sites are left; return a summary."""
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
        resumed: checkpoints.Checkpoint | None = None,
    ) -> Ledger:
        """Open the server's ledger, with the receipts of what leaves first."""
        self._ledger = checkpoints.ledger_of(self._folder / LEDGER, budget, resumed)
        checkpoints.record_once(self._ledger, opening)
        return self._ledger

    def report_progress(self, done: int, planned: int, text: str = "") -> None:
        """Let whoever looks into the folder see how far the run is."""
        values = {"round": done, "rounds": planned, "told": text}
        store.replace_text(self._folder / PROGRESS, json_text(values))

    def _write_summary(
        self, seconds: float, error: EpifalconError | None = None
    ) -> dict[str, Any]:
        ledger, listed = self._ledger, self.round_seconds
        later = listed[1:] or listed or [0.0]
        epsilon = None
        if ledger is not None:
            epsilon = checkpoints.spent_figures(self._order.mode, ledger)["epsilon"]
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
            **asdict(self.board.traffic),
            "epsilon": epsilon,
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
