"""One run at a site, independent of the method: admission and handling of calls.

Calls are handled one at a time. The last call and its answer are cached, so a duplicate
call gets the same answer and is executed only once; a call for an earlier round is
refused. Receipts are written to the site's own ledger before an answer is sent. The
server receives the kind of an error but not its message.

A run begins with ``hello``: its settings must be allowed by the site's policy, covered
by its privacy budget, and equal to those of earlier calls of the run. All other calls
are refused until a hello has been accepted. A refused hello does not end such a run.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from epifalcon import store
from epifalcon.checks import present
from epifalcon.epidemic.risk_table import Risks
from epifalcon.errors import BudgetExceededError, DataError, SettingsError, WriteError
from epifalcon.federation import messages
from epifalcon.federation.messages import PROTOCOL, Record
from epifalcon.federation.network.site_files import (
    REPLAYED,
    PolicyError,
    RunRequirements,
    SiteFiles,
    SiteSettings,
    digest,
)
from epifalcon.federation.preparation import SiteData, require_places
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.settings import SiteRules
from epifalcon.locks import FileLock
from epifalcon.mobility.clock import Clock
from epifalcon.models.region_model import regions_sha256
from epifalcon.privacy.replay_log import ReplayError, ReplayLog
from epifalcon.settings import as_plain, build
from epifalcon.types import Plain

LEDGER = "ledger.jsonl"
REQUESTS = "requests.jsonl"
RISKS = "risks.csv"
Handler = Callable[[Any, int], Record]
"""Function that takes a request and the round number and returns the answer."""
_MOST_FAILURES = 8
_log = logging.getLogger(__name__)
_PUBLIC_TEXTS: dict[type[Exception], str] = {
    ReplayError: REPLAYED,
    BudgetExceededError: "its privacy budget is spent",
    SettingsError: "it does not allow these settings",
    DataError: "the call does not match its data",
    WriteError: "it cannot write, or another of its processes works on this run",
}


@dataclass(frozen=True, kw_only=True)
class RunRequest(ABC):
    """Settings, rules and seed of a run, as sent to sites; one subclass per method."""

    method: ClassVar[str]
    settings: Any
    rules: SiteRules
    seed: int

    @property
    @abstractmethod
    def requirements(self) -> RunRequirements:
        """Requirements of the run, which a site compares with its policy."""

    @property
    def mode(self) -> str:
        """Privacy mode of the run."""
        return self.requirements.mode

    @property
    def is_private(self) -> bool:
        """Return True if noise is added; repeated requests must then be identical."""
        return self.mode != "off"

    @abstractmethod
    def squared_mu(self, clock: Clock) -> float | None:
        """Return mu^2 per person of the whole run; None without a guarantee."""

    @property
    def identity(self) -> Plain:
        """Values that must not change when a run is resumed."""
        settings, rows = as_plain(self.settings), self.rules.sends_rows
        return {"settings": settings, "rows": rows, "seed": self.seed}

    @property
    def hello(self) -> messages.Hello:
        """Message that invites a site to the run."""
        settings, rules = as_plain(self.settings), as_plain(self.rules)
        return messages.Hello(self.method, settings, rules, self.seed)

    @property
    def origin(self) -> store.Origin:
        """Settings, rules and seed, stored with checkpoints as their provenance."""
        plain = {"settings": as_plain(self.settings), "rules": as_plain(self.rules)}
        return store.Origin.now(plain, self.seed)


RequestT = TypeVar("RequestT", bound=RunRequest)


def public_error_text(error: Exception) -> str:
    """Return the text for the server: the kind of error, without its message."""
    if isinstance(error, PolicyError):
        return f"it does not allow these settings: policy.{error.key}"
    for kind, words in _PUBLIC_TEXTS.items():
        if isinstance(error, kind):
            return words
    return "it failed; see its own log"


class CallHandler:
    """Dispatches calls to ``handlers``, one at a time; a duplicate is not executed."""

    def __init__(
        self, run: str, site: str, handlers: dict[type[Record], Handler] | None = None
    ) -> None:
        self.run, self.site = run, site
        self.handlers = handlers or {}
        self.failed: list[Exception] = []
        """First errors, without the calls that caused them; never sent."""
        self.reports_seconds = True
        """If True, answers include the computing time, which depends on the data."""
        self._turn = threading.Lock()
        self._last_call = self._last_answer = b""
        self._newest = 0

    def answer(self, call: bytes) -> bytes:
        """Return the answer to a call; errors become answers too."""
        with self._turn:
            if call == self._last_call and call:
                return self._last_answer
            try:
                packet = messages.unpack(call)
            except DataError as error:
                header = messages.MessageHeader(self.run, self.site, -1, "unreadable")
                return self._failure(header, error, "the call cannot be read")
            began = perf_counter()
            try:
                record = self._handle(packet)
                seconds = perf_counter() - began if self.reports_seconds else None
                made = record.encode(packet.header, seconds)
                made = replace(made, values={**made.values, **self.more_values()})
                answer = messages.pack(made)
            except Exception as error:
                return self._failure(packet.header, error, public_error_text(error))
            self._newest = packet.header.round
            self._last_call, self._last_answer = call, answer
            return answer

    def more_values(self) -> Plain:
        """Return values to add to each answer."""
        return {}

    def _handle(self, packet: messages.Packet) -> Record:
        header = packet.header
        header.require(replace(header, run=self.run, site=self.site, protocol=PROTOCOL))
        if header.round < self._newest:
            raise DataError(f"round {header.round} is over")
        by_phase = {request.phase: request for request in self.handlers}
        for name in (header.phase, header.phase.split(" ", 1)[0]):
            if name in by_phase:
                request = by_phase[name]
                return self.handlers[request](request.decode(packet), header.round)
        raise DataError(f"phase {header.phase!r} is unknown or too early")

    def _failure(
        self, header: messages.MessageHeader, error: Exception, words: str
    ) -> bytes:
        if len(self.failed) < _MOST_FAILURES:
            # The frames of a traceback hold the call, which may be large.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            self.failed.append(error)
        _log.warning("%s: %s", header.phase[:40], type(error).__name__)
        return messages.pack(messages.Packet(header, {}, {messages.ERROR: words}))


@dataclass(frozen=True, eq=False)
class Admitted(Generic[RequestT]):
    """A run that the site accepted, with the site's settings and data."""

    request: RequestT
    site: SiteSettings
    data: SiteData
    replay_log: ReplayLog


class SiteSession(CallHandler, ABC, Generic[RequestT]):
    """Base class of a run at a site: admission, request digests and risks."""

    request_type: ClassVar[type[RunRequest]]

    def __init__(self, files: SiteFiles, run: str, site: str) -> None:
        super().__init__(run, site)
        self.files, self.folder = files, files.run(run)
        self.request_digest = ""
        """Digest of all recorded requests so far."""
        self._lock: FileLock | None = None
        self._admitted: Admitted[RequestT] | None = None
        self.start()
        self.handlers = {messages.Hello: self._hello}

    @abstractmethod
    def start(self) -> dict[type[Record], Handler]:
        """Reset the method's state; return the handlers by request type."""

    def close(self) -> None:
        """Release the lock, so that another process can continue the run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def admitted(self) -> Admitted[RequestT]:
        """The accepted run; raises an error before a ``hello`` was accepted."""
        return present(self._admitted, "no hello was accepted")

    def more_values(self) -> Plain:
        """Return the site's counter, which the server echoes in later hellos."""
        if self._admitted is None or not self._admitted.request.is_private:
            return {}
        return {messages.COUNTER: self.files.record.counter}

    def record_request(self, phase: str, found: str) -> None:
        """Store the digest ``found`` of a request; refuse a different one."""
        self.admitted.replay_log.require(0, phase, found)
        self.request_digest = digest(self.request_digest, phase, found)

    def seeds(self) -> RunSeeds:
        """Return the random streams, keyed by a secret except in rehearsals."""
        run = self.admitted
        known = run.site.policy.known_noise
        secret = None if known else self.files.noise_key(self.run)
        return RunSeeds(run.request.seed, secret)

    def finish(self, risks: Risks, requested: bool, found: str) -> messages.ScoresReply:
        """Write the risks of the site's people; return them if requested and allowed.

        ``found`` is the digest of all inputs of the risks. They are sent for one digest
        only, because risks of several models would reveal more.
        """
        with store.owner_only():
            risks.write(self.folder / RISKS, overwrite=True)
        if not requested:
            return messages.ScoresReply()
        run = self.admitted
        if not run.site.policy.give_scores:
            raise PolicyError("give_scores", "this site does not send its scores")
        run.replay_log.require(0, "finish", found)
        return messages.ScoresReply(risks.probability)

    def _hello(self, call: messages.Hello, _number: int) -> messages.SiteFacts:
        """Accept or refuse the run; return the site's people, regions and clock."""
        # A refused hello raises here, before anything changes.
        admitted, run_digest = self._admit(call)
        self.handlers = {messages.Hello: self._hello, **self.start()}
        self._admitted, self.request_digest = admitted, run_digest
        traces = admitted.data.traces
        people, regions, clock = traces.people, traces.regions, traces.clock
        self.reports_seconds = admitted.request.squared_mu(clock) is None
        sha256 = regions_sha256(regions)
        return messages.SiteFacts(people, len(regions), sha256, clock)

    def _admit(self, call: messages.Hello) -> tuple[Admitted[RequestT], str]:
        """Check policy, budget and earlier digests; return the run and its digest."""
        if call.method != (method := self.request_type.method):
            raise DataError(f"method {call.method!r}, expected {method!r}")
        values = {"settings": call.settings, "rules": call.rules, "seed": call.seed}
        run_request: Any = build(self.request_type, values, "request")
        site = self.files.settings()
        policy = site.policy
        policy.require(run_request.requirements)
        data = self.files.load_data(site)
        if run_request.is_private:
            require_places(data.traces)
        self._lock = self._lock or FileLock.inside(self.folder)
        if call.counter is not None:
            self.files.record.require_newest(call.counter)
        replay_log = ReplayLog()
        if self._admitted is not None:
            replay_log = self._admitted.replay_log
        elif run_request.is_private:
            replay_log = ReplayLog(self.folder / REQUESTS, self.files.record)
        # The data set of a run must not change: its noise would be reused.
        run_digest = digest(run_request.identity, digest(arrays=data.arrays))
        replay_log.refuse_other(0, "hello", run_digest)
        if (cost := run_request.squared_mu(data.traces.clock)) is not None:
            self.files.admit(self.run, cost, policy)
        replay_log.require(0, "hello", run_digest)
        return Admitted(run_request, site, data, replay_log), run_digest
