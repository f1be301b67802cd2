"""One run at a site, independent of the method: admission and handling of calls.

Calls are handled one at a time. The last call and its answer are cached, so a duplicate
call gets the same answer and is executed only once; a call for an earlier round is
refused. Receipts are written to the site's own ledger before an answer is sent. The
server receives the kind of an error but not its message.

A run begins with ``hello``: its settings must be allowed by the site's policy, covered
by its privacy budget, and equal to those of earlier calls of the run. All other calls
are refused until a hello has been accepted, and after one has been refused.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from epifalcon import store
from epifalcon.checks import present
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
    WriteError,
)
from epifalcon.federation import messages
from epifalcon.federation.messages import Record
from epifalcon.federation.network.site_files import (
    PROMISES,
    REPLAYED,
    PolicyError,
    ReplayError,
    ReplayLog,
    RunRequirements,
    SiteFiles,
    SiteSettings,
    admit,
    digest,
)
from epifalcon.federation.preparation import SiteData
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.settings import SiteRules
from epifalcon.locks import FileLock
from epifalcon.mobility.clock import Clock
from epifalcon.models.region_model import regions_sha256
from epifalcon.settings import as_plain, build
from epifalcon.types import Floats, Plain

LEDGER = "ledger.jsonl"
NOTED = "told.jsonl"
RISKS = "risks.csv"
Handler = Callable[[Any, int], Record]
"""Function of a request and the round number that returns the answer."""
_log = logging.getLogger(__name__)
_WORDS: dict[type[Exception], str] = {
    ReplayError: REPLAYED,
    BudgetExceededError: "its budget of privacy is spent",
    SettingsError: "it does not allow these settings",
    DataError: "the call does not fit what it holds",
    WriteError: "it cannot write, or another of its processes is at work on this run",
}
_UNREADABLE = "the call cannot be read"


@dataclass(frozen=True, kw_only=True)
class RunRequest(ABC):
    """A run as the server requests it from its sites; one subclass per method."""

    method: ClassVar[str]
    settings: Any
    rules: SiteRules
    seed: int

    @property
    @abstractmethod
    def wanted(self) -> RunRequirements:
        """What the run requires of a site's policy."""

    @property
    def mode(self) -> str:
        """The privacy mode."""
        return self.wanted.mode

    @property
    def is_private(self) -> bool:
        """Whether noise is added; then no release is repeated with other values."""
        return self.mode != "off"

    @abstractmethod
    def squared_mu(self, clock: Clock) -> float | None:
        """Return mu^2 per person of the whole run; None if it has no guarantee."""

    @property
    def identity(self) -> Plain:
        """Values that must not change when a run is resumed."""
        return {
            "settings": as_plain(self.settings),
            "rows": self.rules.sends_rows,
            "seed": self.seed,
        }

    @property
    def hello(self) -> messages.Hello:
        """The request that begins the run."""
        return messages.Hello(
            self.method, as_plain(self.settings), as_plain(self.rules), self.seed
        )

    @property
    def origin(self) -> store.Origin:
        """Provenance of checkpoints."""
        plain = {"settings": as_plain(self.settings), "rules": as_plain(self.rules)}
        return store.Origin.now(plain, self.seed)


OrderT = TypeVar("OrderT", bound=RunRequest)


def in_words(error: Exception) -> str:
    """Return the text sent to the server: the kind of error, and the policy key."""
    if isinstance(error, PolicyError):
        return f"it does not allow these settings: policy.{error.key}"
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    return "it failed; its own log says why"


class CallHandler:
    """Answers calls with ``handlers``, one at a time, and executes each only once."""

    def __init__(
        self, run: str, site: str, handlers: dict[type[Record], Handler] | None = None
    ) -> None:
        self.run, self.site = run, site
        self.handlers = handlers or {}
        self.failed: list[tuple[messages.MessageHeader, Exception]] = []
        """All errors with the heading of their call; never sent."""
        self.reports_seconds = True
        """Whether answers include the computing time, which depends on the data."""
        self._turn = threading.Lock()
        self._last_call = self._last_answer = b""
        self._newest = 0

    def forget_last(self) -> None:
        """Clear the cached call, so that a duplicate is executed again."""
        self._last_call = self._last_answer = b""

    def answer(self, call: bytes) -> bytes:
        """Return the answer to a call; never raise."""
        with self._turn:
            if call == self._last_call and call:
                return self._last_answer
            try:
                packet = messages.unpack(call)
            except DataError as error:
                heading = messages.MessageHeader(self.run, self.site, -1, "unreadable")
                return self._failure(heading, error, _UNREADABLE)
            began = perf_counter()
            try:
                record = self._handle(packet)
                seconds = perf_counter() - began if self.reports_seconds else None
                answer = messages.pack(record.encode(packet.heading, seconds))
            except Exception as error:
                return self._failure(packet.heading, error, in_words(error))
            self._newest = packet.heading.round
            self._last_call, self._last_answer = call, answer
            return answer

    def _handle(self, packet: messages.Packet) -> Record:
        heading = packet.heading
        heading.require(
            messages.MessageHeader(self.run, self.site, heading.round, heading.phase)
        )
        if heading.round < self._newest:
            raise DataError(f"round {heading.round} is over")
        by_phase = {request.phase: request for request in self.handlers}
        for name in (heading.phase, heading.phase.split(" ", 1)[0]):
            if name in by_phase:
                request = by_phase[name]
                return self.handlers[request](request.decode(packet), heading.round)
        raise DataError(f"phase {heading.phase!r} is unknown or too early")

    def _failure(
        self, heading: messages.MessageHeader, error: Exception, words: str
    ) -> bytes:
        self.failed.append((heading, error))
        _log.warning("%s: %s", heading.phase[:40], type(error).__name__)
        return messages.pack(messages.Packet(heading, {}, {messages.ERROR: words}))


@dataclass(frozen=True, eq=False)
class Admitted(Generic[OrderT]):
    """A run that was accepted by the site, with the site's data."""

    order: OrderT
    site: SiteSettings
    home: SiteData
    noted: ReplayLog


class SiteSession(CallHandler, ABC, Generic[OrderT]):
    """Answers all calls of one run at the site with the given files."""

    order_type: ClassVar[type[RunRequest]]

    def __init__(self, files: SiteFiles, run: str, site: str) -> None:
        super().__init__(run, site)
        self.files, self.folder = files, files.run(run)
        self.heard = ""
        """Digest of all recorded requests so far."""
        self._lock: FileLock | None = None
        self._forget()

    @abstractmethod
    def start(self) -> dict[type[Record], Handler]:
        """Reset the method's state; return the handlers of requests after ``hello``."""

    def close(self) -> None:
        """Release the lock, so that another process can continue the run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def admitted(self) -> Admitted[OrderT]:
        """The accepted run."""
        return present(self._admitted, "no hello was accepted")

    def note(self, phase: str, found: str) -> None:
        """Store the digest ``found`` of a request; refuse another for this phase."""
        self.admitted.noted.require(0, phase, found)
        self.heard = digest(self.heard, phase, found)

    def seeds(self) -> RunSeeds:
        """Return random streams; the site's secret keys them except in rehearsals."""
        run = self.admitted
        known = run.site.policy.known_noise
        secret = None if known else self.files.noise_key(self.run)
        return RunSeeds(run.order.seed, secret)

    def finish(self, risk: Floats, asked: bool, found: str) -> messages.ScoresReply:
        """Write the risks of the site's people; send them if requested and allowed.

        ``found`` is the digest of what determines the risks. They are sent for one
        digest only, because risks of several models would reveal more.
        """
        lines = [f"{person},{p:.6g}\n" for person, p in enumerate(risk.tolist())]
        text = "person,probability\n" + "".join(lines)
        store.replace_text(self.folder / RISKS, text)
        if not asked:
            return messages.ScoresReply()
        run = self.admitted
        if not run.site.policy.give_scores:
            raise PolicyError("give_scores", "this site keeps its scores")
        run.noted.require(0, "finish", found)
        return messages.ScoresReply(risk)

    def _forget(self) -> None:
        """Reset the in-memory state to that before the first call."""
        self._admitted: Admitted[OrderT] | None = None
        self.heard = ""
        self.forget_last()
        self.start()
        self.handlers = {messages.Hello: self._hello}

    def _hello(self, call: messages.Hello, _number: int) -> messages.SiteFacts:
        """Accept or refuse the run; return the site's number of people and its city."""
        try:
            admitted, run_digest = self._admit(call)
        except Exception:
            self._forget()
            raise
        self.handlers = {messages.Hello: self._hello, **self.start()}
        self._admitted, self.heard = admitted, run_digest
        traces = admitted.home.traces
        cost = admitted.order.squared_mu(traces.clock)
        self.reports_seconds = cost is None
        return messages.SiteFacts(
            traces.people,
            len(traces.regions),
            regions_sha256(traces.regions),
            traces.clock,
        )

    def _admit(self, call: messages.Hello) -> tuple[Admitted[OrderT], str]:
        """Return the run and its digest if it is allowed, affordable and unchanged."""
        if call.method != self.order_type.method:
            raise DataError("a run of another method")
        values = {"settings": call.settings, "rules": call.rules, "seed": call.seed}
        order: Any = build(self.order_type, values, "order")
        site = self.files.settings()
        policy = site.policy
        policy.require(order.wanted)
        data = self.files.household(site)
        self._lock = self._lock or FileLock.inside(self.folder)
        noted = self._notes(stored=order.is_private)
        # The data set of a run must not change: its noise would be reused.
        run_digest = digest(order.identity, digest(arrays=data.arrays))
        noted.refuse_other(0, "hello", run_digest)
        if (cost := order.squared_mu(data.traces.clock)) is not None:
            admit(self.files.folder / PROMISES, self.run, cost, policy)
        noted.require(0, "hello", run_digest)
        return Admitted(order, site, data, noted), run_digest

    def _notes(self, *, stored: bool) -> ReplayLog:
        if self._admitted is not None:
            return self._admitted.noted
        if not stored:
            return ReplayLog()
        noted = ReplayLog(self.folder / NOTED)
        if not len(noted) and (self.folder / LEDGER).exists():
            path = self.folder / NOTED
            raise CorruptFileError(f"{path}: is missing; begin a new run")
        return noted
