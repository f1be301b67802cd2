"""A site's side of a run: every call answered once, whatever is sent how often.

Calls are dealt with one at a time. The last call and its answer are kept, so that a
call that comes twice is answered twice and done once; one with the same heading that
says something else is another call, and a call for an earlier round is refused.
Receipts are in the site's own ledger before an answer leaves. What went wrong is
told to the server in words that hold no data.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from epifalcon.errors import (
    BudgetExceededError,
    DataError,
    SettingsError,
    WriteError,
)
from epifalcon.federation.checkpoints import record_once
from epifalcon.federation.messages import (
    Broadcast,
    Closing,
    GradientUpload,
)
from epifalcon.federation.sites.files import PolicyError
from epifalcon.federation.sites.rounds import CohortRounds, Sent
from epifalcon.federation.sites.switchboard import BUSY, ERROR, Payload
from epifalcon.federation.sites.trail import REPLAYED, Noted, ReplayError, Trail
from epifalcon.federation.sites.wire import Heading, Parcel, pack, unpack
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats, Mask, PersonIds, Probabilities

_WORDS: dict[type[Exception], str] = {
    ReplayError: REPLAYED,
    BudgetExceededError: "its budget of privacy is spent",
    SettingsError: "it does not allow these settings",
    DataError: "the call does not fit what it holds",
    WriteError: "it cannot write, or another of its processes is at work on this run",
}
_UNREADABLE = "the call cannot be read"


def in_words(error: Exception) -> str:
    """What may be told to a server of an error: its kind, and nothing of its text.

    Of a policy, which line of it.
    """
    if isinstance(error, PolicyError):
        return f"it does not allow these settings: policy.{error.key}"
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    return "it failed; its own notes tell why"


class Answering:
    """Answers calls for one run: one at a time, each once."""

    def __init__(self, run: str, site: str) -> None:
        self.run, self.site = run, site
        self.failed: list[tuple[Heading, Exception]] = []
        """What went wrong, for the site's own eyes."""
        self.tells_seconds = True
        """Whether an answer says how long it took, which depends on people's data."""
        self._lock = threading.Lock()
        self._last: tuple[Heading, bytes, bytes] | None = None
        """Of the last good call: its heading, the call, and the answer."""
        self._newest = 0
        self._phases: dict[str, Callable[[Parcel], Payload]] = {}

    def on(self, phase: str, handler: Callable[[Parcel], Payload]) -> None:
        """Answer calls of ``phase`` by ``handler``; a word before a space suffices."""
        self._phases[phase] = handler

    def forget(self) -> None:
        """Answer nothing any more, nor what was answered before."""
        self._phases.clear()
        self._last = None

    def answer(self, call: bytes) -> bytes:
        """The answer to a call; never raises."""
        with self._lock:
            try:
                parcel = unpack(call)
            except DataError as error:
                heading = Heading(self.run, self.site, -1, "unreadable")
                self.failed.append((heading, error))
                return pack(Parcel(heading, {}, {ERROR: _UNREADABLE}))
            heading, last = parcel.heading, self._last
            if last is not None and last[0] == heading and last[1] == call:
                return last[2]
            answer, good = self._answer(parcel)
            if good:
                self._last = heading, call, answer
            return answer

    def _answer(self, call: Parcel) -> tuple[bytes, bool]:
        """The answer, and whether all went well."""
        heading = call.heading
        began = perf_counter()
        try:
            heading.require(Heading(self.run, self.site, heading.round, heading.phase))
            if heading.round < self._newest:
                raise DataError(f"round {heading.round} is over")
            made = self._handler(heading.phase)(call)
        except Exception as error:
            # Whatever it is: of an error its kind leaves, and no traceback.
            self.failed.append((heading, error))
            return pack(Parcel(heading, {}, {ERROR: in_words(error)})), False
        self._newest = heading.round
        told = dict(made.told)
        if self.tells_seconds:
            told[BUSY] = perf_counter() - began
        return pack(Parcel(heading, made.tensors, told)), True

    def _handler(self, phase: str) -> Callable[[Parcel], Payload]:
        for name in (phase, phase.split(" ", 1)[0]):
            if name in self._phases:
                return self._phases[name]
        raise DataError(f"no phase {phase!r} is known here")


@dataclass(frozen=True, eq=False)
class Watched:
    """The validation people of a site and what is known of them."""

    people: PersonIds = field(default_factory=lambda: np.zeros(0, np.int32))
    """Positions in the cohort."""
    infected: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


class SiteRounds:
    """Answers the calls of the rounds for one cohort, and keeps its best scores."""

    best: Probabilities | None
    """(people,) of the look that the server found best."""
    best_round: int | None
    held: Floats | None
    """(people,) running mean of the log odds that people received, with memory."""

    def __init__(
        self,
        answering: Answering,
        rounds: CohortRounds,
        ledger: Ledger,
        watched: Watched | None = None,
        memory: float = 0.0,
        trail: Trail | None = None,
    ) -> None:
        self.held, self._memory = None, memory
        self.rounds, self.ledger = rounds, ledger
        self.trail = trail or Trail(Noted(), "")
        self.best, self.best_round = None, None
        self._watched = watched or Watched()
        self._looked: tuple[int, Probabilities] | None = None
        for phase, handler in (
            ("announce", self._announce),
            ("settle", self._settle),
            ("begin", self._begin),
            ("begin scoring", self._begin_scoring),
            ("reply", self._go_on),
            ("look", self._look),
        ):
            answering.on(phase, self._closing(handler))

    def _closing(
        self, handler: Callable[[Parcel], Payload]
    ) -> Callable[[Parcel], Payload]:
        """First close the round and keep the look that a call tells of."""

        def handle(call: Parcel) -> Payload:
            self.close(call)
            return handler(call)

        return handle

    def close(self, call: Parcel) -> None:
        """Take new parameters, the close of a round, the verdict on a look, if told."""
        if parameters := _parameters(call):
            self.rounds.take_model(parameters)
        if "closing" in call.told:
            number, scale = call.told["closing"]
            closing = Closing(int(number), float(scale))
            came = tensors_under(dict(call.tensors), "closing/")
            self.rounds.close(closing, came.get("rows"))
            if self._protected:
                self.trail.close(closing.round, closing.scale, came)
            self._listen()
        looked = self._looked
        if looked is not None and call.told.get("best") == looked[0]:
            self.best_round, self.best = looked

    def scores(self, fresh: bool) -> Probabilities:
        """Of the site's people: what they hold, or by the last pass or round."""
        if self.held is not None:
            return np.asarray(expit(self.held))
        return self.rounds.scores(fresh)

    @property
    def _protected(self) -> bool:
        """Whether noise is promised: without, nothing is lost by a second answer."""
        return self.rounds.plan.mode != "off"

    def _listen(self) -> None:
        """Add what people received in this round to what they hold."""
        if self._memory == 0 or not self._protected:
            return
        now = logit(np.clip(self.rounds.scores(fresh=False), 1e-9, 1 - 1e-9))
        if self.held is not None:
            now = self._memory * self.held + (1 - self._memory) * now
        self.held = now

    def _announce(self, call: Parcel) -> Payload:
        del call
        if self._protected:
            self.trail.announce()
        record_once(self.ledger, self.rounds.plan.opening())
        upload, more = self.rounds.announce()
        told = {
            "keys": torch.from_numpy(np.array(upload.keys)),
            "counts": torch.from_numpy(np.array(upload.counts, np.float64)),
        }
        return Payload({**told, **more})

    def _settle(self, call: Parcel) -> Payload:
        counts, shared = call.tensor("counts"), call.tensor("shared")
        self.rounds.settle(counts.double().numpy(), shared.numpy().astype(np.bool_))
        if self._protected:
            self.trail.settle({"counts": counts, "shared": shared})
        return Payload()

    def _begin(self, call: Parcel) -> Payload:
        number, parameters = call.heading.round, _parameters(call)
        if self._protected:
            self.trail.begin(number, parameters, training=True)
        self.ledger.record(*self.rounds.plan.round_receipts(number))
        return Payload(self.rounds.begin(Broadcast(number, parameters)))

    def _begin_scoring(self, call: Parcel) -> Payload:
        number, parameters = call.heading.round, _parameters(call)
        if self._protected:
            self.trail.begin(number, parameters, training=False)
            self.ledger.record(*self.rounds.plan.scoring_receipts(number))
        return Payload(self.rounds.begin_scoring(Broadcast(number, parameters)))

    def _go_on(self, call: Parcel) -> Payload:
        rows = call.tensor("rows")
        if self._protected:
            # By what waits here, whatever the call says that it replies to.
            self.trail.reply(*self.rounds.waiting, {"rows": rows})
        sent, gradients = self.rounds.go_on(rows)
        return Payload(sent) if gradients is None else self._ending(sent, gradients)

    def _ending(self, sent: Sent, made: GradientUpload) -> Payload:
        gradients = {f"gradient/{name}": one for name, one in made.gradients.items()}
        tensors = {**sent, **gradients}
        if made.weight is None:
            return Payload(tensors)
        return Payload(tensors, {"weight": made.weight, "loss": self.rounds.loss})

    def _look(self, call: Parcel) -> Payload:
        """Scores and results of the validation people, by score and without names."""
        scores = self.scores(fresh=bool(call.told.get("fresh")))
        self._looked = call.heading.round, scores
        mine = scores[self._watched.people]
        order = np.argsort(mine, kind="stable")
        return Payload(
            {
                "scores": torch.from_numpy(mine[order]),
                "infected": torch.from_numpy(
                    self._watched.infected[order].astype(np.uint8)
                ),
            }
        )


def _parameters(call: Parcel) -> dict[str, Tensor]:
    return tensors_under(dict(call.tensors), "parameter/")
