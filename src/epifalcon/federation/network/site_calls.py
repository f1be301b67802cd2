"""Server side of one run over sites, independent of the method.

Every answer is validated before use: header, types, shapes, values, norms. An invalid
answer is rejected and reported, and its site is excluded for the rest of the round, as
is a site that did not answer in time. With fewer sites than required the run ends and
can be resumed.

Sites answer a repeated round only if its requests are identical. So the server records
which sites were missing at which step, and excludes them there again. With noise it
also records digests of the answers: a site that answers a repeated call differently is
named, because the requests to the other sites would differ, and they refuse those.

The server writes to the run's folder: the ledger, progress, and at the end
``summary.json`` and, if requested and allowed, the scores of all people.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon import store
from epifalcon.checks import Checked, Count
from epifalcon.errors import (
    CorruptFileError,
    DataError,
    EpifalconError,
    TooFewSitesError,
)
from epifalcon.federation import checkpoints, messages
from epifalcon.federation.network.site_files import REPLAYED, digest
from epifalcon.federation.network.site_session import LEDGER, RunRequest
from epifalcon.federation.settings import SiteRules
from epifalcon.locks import FileLock
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.events import Release
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.replay_log import ReplayError, ReplayLog, open_journal
from epifalcon.progress import Progress, silent
from epifalcon.settings import build, json_text
from epifalcon.types import Plain, Probabilities

R = TypeVar("R", bound=messages.Record)
S = TypeVar("S")
T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=RunRequest)
SUMMARY = "summary.json"
PROGRESS = "progress.json"
SCORES = "scores.csv"
FAILURES, COUNTERS = "failures.jsonl", "site-counters.json"
ANSWERS = "answers.jsonl"
PREPARATION = "preparation"
_MESSAGE = "message.safetensors"
_MOST_PEOPLE, _MOST_REGIONS, _MOST_SLOTS = 10**9, 10**7, 10**5
"""Upper bounds on a site's reported sizes; they prevent excessive memory use."""
_MAX_TEXT = 300
_BEFORE = frozenset({"hello", "count", "states", "prepare"})
"""Phases before the rounds; their failures are not stored."""
_VARYING = (messages.SECONDS, messages.COUNTER)
"""Values that differ between two answers to the same call."""


class Transport(Protocol):
    """Interface for sending calls to sites and receiving their answers."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites, as authenticated by the network."""

    def call(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its call; return answers and failure reasons by site.

        Calls run in parallel and wait at most ``seconds``. Answers are keyed by the
        site name that the network authenticates, not by the name in the message.
        """


class InMemoryTransport:
    """Transport by function calls in this process, sequentially."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._answers = dict(answers)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return tuple(self._answers)

    def call(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Call each site; there are no failures and no time limit."""
        del seconds
        return {site: self._answers[site](call) for site, call in calls.items()}, {}


@dataclass(frozen=True)
class SiteFailure:
    """A failed call to one site."""

    site: str
    round: int
    phase: str
    kind: Literal["silent", "refused", "failed"]
    why: str


@dataclass
class Traffic:
    """Number, size and duration of all calls so far."""

    calls: int = 0
    call_seconds: float = 0.0
    """Total time from encoding the calls to decoding the last answer."""
    site_seconds: float = 0.0
    """Total computing time of the slowest site per call, as reported by the sites."""
    bytes_sent: int = 0
    bytes_received: int = 0


class SiteCalls:
    """Calls to the sites of one run; ``present`` lists the remaining sites, sorted.

    Failures that affect later calls are stored in ``path`` before those calls are sent.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        rules: SiteRules,
        path: Path | None = None,
        counters: Path | None = None,
        answers: ReplayLog | None = None,
    ) -> None:
        """Store failures in ``path``, and the sites' counters in ``counters``.

        With ``answers``, repeated calls must have the same answers as before.
        """
        self.run, self.rules = run, rules
        self.present = sorted(transport.sites)
        self._counters, self._answers = counters, answers or ReplayLog()
        self._path, self._stored = path, list[SiteFailure]()
        if path is not None:
            _, self._stored = open_journal(path, partial(build, SiteFailure))
        self._absent = {(item.site, item.phase, item.round) for item in self._stored}
        self.failures = list(self._stored)
        self.traffic = Traffic()
        self._transport = transport
        self._excluded: set[str] = set()
        self._missed: Counter[str] = Counter()
        self._lost: list[SiteFailure] = []
        """Failures of this round that were not stored before."""
        self._require_enough()

    @property
    def attending(self) -> list[str]:
        """Sites that are not excluded from the current round."""
        return [site for site in self.present if site not in self._excluded]

    @property
    def lost(self) -> list[str]:
        """Sites that were removed from the run or from its last round, sorted."""
        return sorted(set(self._transport.sites) - set(self.attending))

    def new_round(self) -> None:
        """Readmit excluded sites; remove those that missed too many rounds."""
        for site in self.present:
            missed = self._missed[site] + 1 if site in self._excluded else 0
            self._missed[site] = missed
        most = self.rules.most_missed
        self.present = [site for site in self.present if self._missed[site] < most]
        self._excluded.clear()
        self._lost.clear()
        self._require_enough()

    def keep_only(self, sites: Iterable[str]) -> None:
        """Remove all sites except ``sites`` from the run."""
        remaining = set(sites)
        self.present = [site for site in self.present if site in remaining]
        self._require_enough()

    def call(
        self,
        number: int,
        requests: Mapping[str, messages.Record],
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        """Send each site its request of round ``number``; return accepted answers.

        ``check`` converts an answer, or rejects it by raising ``DataError``.
        """
        if not requests:
            return {}
        began, before = perf_counter(), len(self.failures)
        step = next(iter(requests.values())).full_phase
        absent = {site for site in requests if (site, step, number) in self._absent}
        self._excluded |= absent
        headers, calls = {}, {}
        for site, request in requests.items():
            if site not in absent:
                header = messages.MessageHeader(self.run, site, number, step)
                headers[site] = header
                calls[site] = messages.pack(request.encode(header))
        answers, failures = self._transport.call(calls, self.rules.answer_seconds)
        accepted: dict[str, T] = {}
        busy, counters = [0.0], dict[str, str]()
        for site in calls:
            if site not in answers:
                why = failures.get(site, "no answer")
                self._exclude(SiteFailure(site, number, step, "silent", why))
                continue
            try:
                packet = self._accept(answers[site], headers[site])
                if messages.COUNTER in packet.values:
                    counters[site] = str(packet.values[messages.COUNTER])[:_MAX_TEXT]
                found, release = check(site, answer.decode(packet)), _release(packet)
                self._refuse_other(*release)
                busy.append(_seconds(packet))
            except Exception as error:
                # Any error caused by a site's answer is a failure of that site.
                self._exclude(SiteFailure(site, number, step, "refused", _why(error)))
                continue
            # Outside of the above: an error of the disk is no failure of the site.
            self._answers.require(*release)
            accepted[site] = found
        self.traffic.site_seconds += max(busy)
        self.traffic.bytes_sent += sum(map(len, calls.values()))
        self.traffic.bytes_received += sum(map(len, answers.values()))
        self.traffic.calls += 1
        self.traffic.call_seconds += perf_counter() - began
        self._store_counters(counters)
        self._continue_after(self.failures[before:])
        return accepted

    def counters(self) -> dict[str, str]:
        """Return the newest counter of each site, over all runs of this server."""
        if self._counters is None or not self._counters.is_file():
            return {}
        try:
            found: dict[str, str] = json.loads(self._counters.read_text())
        except (OSError, ValueError) as error:
            why = f"{self._counters}: cannot be read: {error}"
            raise CorruptFileError(why) from None
        return found

    def _store_counters(self, new: Mapping[str, str]) -> None:
        if self._counters is None or not new:
            return
        with FileLock(self._counters.with_suffix(".lock"), wait=True):
            known = self.counters()
            newest = {
                site: max(known.get(site, ""), counter, key=_number)
                for site, counter in new.items()
            }
            if newest.items() - known.items():
                text = json_text({**known, **newest}, indent=1)
                with store.writing(self._counters):
                    store.replace_text(self._counters, text)

    def total(
        self,
        requests: Mapping[str, messages.Record],
        answer: type[R],
        check: Callable[[str, R], S],
    ) -> S:
        """Send requests before the first round; return the sum of the answers.

        Sites without an accepted answer are removed from the run.
        """
        found = self.call(0, requests, answer, check)
        self.keep_only(found)
        return reduce(add, [found[site] for site in sorted(found)])

    def refuse(self, failure: SiteFailure) -> None:
        """Exclude a site whose answer is inconsistent with those of other sites."""
        self._exclude(failure)
        self._continue_after([failure])

    def report(self) -> dict[str, Any]:
        """Return the remaining and lost sites, failure counts and all failures."""
        kinds = Counter((item.site, item.kind) for item in self.failures)
        counts: dict[str, dict[str, int]] = {}
        for (site, kind), count in sorted(kinds.items()):
            counts.setdefault(site, {})[kind] = count
        return {
            "sites": list(self.present),
            "lost": self.lost,
            "counts": counts,
            "troubles": [asdict(item) for item in self.failures],
        }

    def _accept(self, answer: bytes, header: messages.MessageHeader) -> messages.Packet:
        packet = messages.unpack(answer)
        packet.header.require(header)
        if messages.ERROR in packet.values:
            # Untrusted text: truncate it to one short line.
            text = " ".join(str(packet.values[messages.ERROR]).split())[:200]
            raise DataError(f"the site reports: {text}")
        return packet

    def _refuse_other(self, number: int, phase: str, found: str) -> None:
        try:
            self._answers.refuse_other(number, phase, found)
        except ReplayError:
            why = "its answer differs from that before the run was resumed"
            raise DataError(why) from None

    def _continue_after(self, new: list[SiteFailure]) -> None:
        """Require enough sites, then store the new failures."""
        try:
            self._require_enough()
        except TooFewSitesError:
            # Failures that end a run are not stored: no later call depends on them,
            # and the site may answer after a resume. Failures of a repeated round are
            # discarded if the other sites refuse to repeat it without the lost site.
            if any(REPLAYED in item.why for item in new) and self._lost:
                self._store([item for item in self._stored if item not in self._lost])
            raise
        if stored := [item for item in new if item.phase not in _BEFORE]:
            self._lost += stored
            self._store([*self._stored, *stored])

    def _store(self, failures: list[SiteFailure]) -> None:
        """Store the failures that a resumed run repeats by not calling those sites."""
        self._stored = failures
        if self._path is not None:
            lines = [f"{json.dumps(asdict(item))}\n" for item in failures]
            with store.writing(self._path):
                store.replace_text(self._path, "".join(lines))

    def _exclude(self, failure: SiteFailure) -> None:
        self._excluded.add(failure.site)
        self.failures.append(failure)

    def _require_enough(self) -> None:
        count, least = len(self.attending), max(self.rules.least_sites, 1)
        if count >= least:
            return
        # Sites refuse to repeat a round because another one failed: name that one too.
        effects = [item for item in self.failures if REPLAYED in item.why]
        causes = [item for item in self.failures if item not in effects]
        last = "".join(
            f"; {item.site} in round {item.round}, {item.phase}: {item.why}"
            for item in [*causes[-3:], *effects[-1:]]
        )
        raise TooFewSitesError(f"{count} sites take part, {least} are needed{last}")


def _release(answer: messages.Packet) -> tuple[int, str, str]:
    """Return round, site with phase, and digest of an answer; none of its scores."""
    header = answer.header
    if header.phase == messages.Finish.phase:
        # They may be requested later.
        return 0, f"{header.site} {header.phase}", digest()
    values = {n: one for n, one in answer.values.items() if n not in _VARYING}
    number = 0 if header.phase == messages.PresenceRequest.phase else header.round
    found = digest(values, tensors=answer.tensors)
    return number, f"{header.site} {header.phase}", found


def _number(counter: str) -> int:
    text = counter.partition(".")[0]
    return int(text) if text.isdecimal() else -1


def accepted(_site: str, answer: R) -> R:
    """Return the answer unchanged: the ``check`` that accepts all answers."""
    return answer


def given(answers: Mapping[str, T | None]) -> dict[str, T]:
    """Return only the answers that are not None."""
    return {site: value for site, value in answers.items() if value is not None}


def _why(error: Exception) -> str:
    """Return an error's message as one line, or only the type of a foreign error."""
    if not isinstance(error, EpifalconError):
        return f"the answer cannot be read ({type(error).__name__})"
    return " ".join(str(error).split())[:_MAX_TEXT]


def _seconds(answer: messages.Packet) -> float:
    value = answer.values.get(messages.SECONDS, 0.0)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


@dataclass(frozen=True)
class SiteRoster:
    """Sites of a run with their numbers of people, and the city's clock and regions."""

    people: Mapping[str, int]
    """Number of people per site, by site name."""
    first: Mapping[str, int]
    """Index of each site's first person in the city; constant during a run."""
    clock: Clock
    regions: int


class SharedData(messages.Record):
    """Data sent to every site before the rounds, stored to resend it unchanged.

    Falcon Field stores only the person indices.
    """

    first: Plain
    """Index of each site's first person in the city; constant during a run."""
    tally: dict[str, Tensor] = field(default_factory=dict)
    """Sums over all sites, sent to every site."""
    states: NDArray[np.float32] | None = None
    """Region states, (1 + folds, regions, days, width); None without region model."""
    centre: NDArray[np.float32] | None = None
    factor: NDArray[np.float32] | None = None
    forecast: Plain | None = None
    """Accuracy of the region model's forecasts, as JSON values."""

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record to the run's folder atomically."""
        meta = {"forecast": self.forecast}
        header = messages.MessageHeader(folder.name, "", 0, PREPARATION)
        message = messages.pack(replace(self, forecast=None).encode(header))
        with store.new_directory(folder / PREPARATION) as scratch:
            (scratch / _MESSAGE).write_bytes(message)
            store.write_manifest(scratch, PREPARATION, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, origin: store.Origin) -> "SharedData | None":
        """Read a record saved with equal settings and seed; None if missing."""
        path = folder / PREPARATION
        if not path.exists():
            return None
        manifest = checkpoints.require_same(path, origin, exact=False)
        stored = cls.decode(messages.unpack((path / _MESSAGE).read_bytes()))
        return replace(stored, forecast=manifest["meta"]["forecast"])


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """Settings of a run that do not affect its results."""

    checkpoint_every: Count = 10
    """Rounds between two checkpoints."""
    scores: bool = False
    """If True, request the scores of all people from the sites at the end."""


class ServerRun(ABC, Generic[RequestT]):
    """Base class of a run at the server; ``run`` executes or resumes it."""

    request_type: ClassVar[type[RunRequest]]

    def __init__(
        self,
        transport: Transport,
        folder: Path,
        run_request: RequestT,
        options: RunOptions,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: FileLock | None = FileLock.inside(folder)
        paths = folder / FAILURES, folder.parent / COUNTERS
        answers = ReplayLog(folder / ANSWERS) if run_request.is_private else None
        rules = run_request.rules
        self.calls = SiteCalls(transport, folder.name, rules, *paths, answers)
        self.scores: dict[str, Probabilities] = {}
        self.round_seconds: list[float] = []
        self._folder, self._request, self._options = folder, run_request, options
        self._ledger: Ledger | None = None
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Set the method's state before its first call."""

    @abstractmethod
    def execute(self, progress: Progress) -> None:
        """Run the method; store the sites' scores, if requested, in ``scores``."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Return the method's entries of the summary, also for an unfinished run."""

    def run(self, progress: Progress = silent) -> dict[str, Any]:
        """Run to the end; write the summary, also after an error, and return it."""
        began = perf_counter()
        self._lock = self._lock or FileLock.inside(self._folder)
        try:
            self.execute(progress)
            if self.scores:
                lines = [
                    f"{site},{person},{score!r}\n"
                    for site, scores in sorted(self.scores.items())
                    for person, score in enumerate(scores.tolist())
                ]
                text = "site,person,probability\n" + "".join(lines)
                store.replace_text(self._folder / SCORES, text)
            return self._write_summary(perf_counter() - began)
        except EpifalconError as error:
            # Write the error also for a run that failed before its first call.
            self._write_summary(perf_counter() - began, error)
            raise
        finally:
            self._lock.release()
            self._lock = None

    def invite(self, known: SharedData | None) -> SiteRoster:
        """Invite all sites and assign person indices, or reuse those of ``known``."""
        calls = self.calls
        hello, counters = self._request.hello, calls.counters()
        requests = {
            site: replace(hello, counter=counters.get(site)) for site in calls.present
        }
        facts = calls.call(0, requests, messages.SiteFacts, _check_facts)
        # Use the city of most sites; ties go to the first site by name.
        cities = [facts[site].city for site in sorted(facts)]
        city = max(cities, key=lambda item: (cities.count(item), -cities.index(item)))
        for site in [site for site, fact in facts.items() if fact.city != city]:
            odd = [n for n, value in facts.pop(site).city.items() if value != city[n]]
            what = "days" if odd[0] == "clock" else "regions"
            same = ", ".join(name for name in sorted(facts) if facts[name].city == city)
            why = f"it has other {what} than {same}"[:_MAX_TEXT]
            calls.refuse(SiteFailure(site, 0, "hello", "refused", why))
        first, total = {}, 0
        for site in sorted(facts):
            first[site] = total
            total += facts[site].people
        if known is not None:
            first = {site: known.first[site] for site in first if site in known.first}
        calls.keep_only(first)
        people = {site: facts[site].people for site in first}
        return SiteRoster(people, first, city["clock"], city["regions"])

    def open_ledger(
        self,
        budget: Budget,
        opening: Sequence[Release],
        resumed: checkpoints.Checkpoint | None = None,
    ) -> Ledger:
        """Open the server's ledger and record missing ``opening`` releases."""
        self._ledger = checkpoints.ledger_of(self._folder / LEDGER, budget, resumed)
        checkpoints.record_once(self._ledger, opening)
        return self._ledger

    def report_progress(self, done: int, planned: int, text: str = "") -> None:
        """Write completed and planned rounds and ``text`` to ``progress.json``."""
        values = {"round": done, "rounds": planned, "text": text}
        store.replace_text(self._folder / PROGRESS, json_text(values))

    def _write_summary(
        self, seconds: float, error: EpifalconError | None = None
    ) -> dict[str, Any]:
        ledger, listed = self._ledger, self.round_seconds
        later = listed[1:] or listed or [0.0]
        epsilon = None
        if ledger is not None:
            epsilon = checkpoints.privacy_spent(self._request.mode, ledger)["epsilon"]
        summary = {
            "run": self.calls.run,
            "method": self._request.method,
            "finished": error is None,
            "error": None if error is None else str(error),
            "error_kind": None if error is None else type(error).__name__,
            **self.figures(),
            "seconds": seconds,
            # Excludes the first round, which includes one-time set-up.
            "seconds_per_round": sum(later) / len(later),
            "round_seconds": listed,
            **asdict(self.calls.traffic),
            "epsilon": epsilon,
            "ledger_head": None if ledger is None else ledger.head,
            "sites": self.calls.report(),
        }
        if ledger is not None or not self._ended_before():
            store.replace_text(self._folder / SUMMARY, json_text(summary, indent=2))
        return summary

    def _ended_before(self) -> bool:
        """Return True if the folder contains the summary of a completed run."""
        try:
            return bool(json.loads((self._folder / SUMMARY).read_text())["finished"])
        except (OSError, ValueError, KeyError):
            return False


def _check_facts(_site: str, answer: messages.SiteFacts) -> messages.SiteFacts:
    people, regions = answer.people, answer.regions
    if not (1 <= people <= _MOST_PEOPLE and 1 <= regions <= _MOST_REGIONS):
        raise DataError(f"people={people} or regions={regions} is out of range")
    if answer.clock.slots > _MOST_SLOTS:
        raise DataError(f"{answer.clock.slots} slots, expected at most {_MOST_SLOTS}")
    return answer
