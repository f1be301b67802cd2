"""A whole run over sites: prepare, train, look, keep, finish; resumable.

What the server writes lies in the run's folder: the ledger, checkpoints of the
model, at the end the model of the best look and ``summary.json``. No person's score
comes here unless it was asked for and the site gives it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import log_loss
from torch import Tensor

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import CorruptFileError, DataError, EpifalconError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.preparing import (
    in_the_clear,
    made_in_the_clear,
)
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.door import LEDGER
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.gathering import gather, meet, tell_again
from epifalcon.federation.sites.locks import FolderLock
from epifalcon.federation.sites.remembering import (
    PREPARATION,
    TROUBLES,
    Gathered,
    Troubles,
)
from epifalcon.federation.sites.run import Order, require_federable
from epifalcon.federation.sites.switchboard import Payload, Switchboard
from epifalcon.federation.sites.transport import Transport
from epifalcon.federation.sites.wire import Parcel
from epifalcon.models.tensor_files import tensors_under, write_tensors
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.types import Floats, Mask, Probabilities

SUMMARY = "summary.json"
MODEL = "model.safetensors"
PROGRESS = "progress.json"
SCORES = "scores.csv"


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How a run is carried out, beside what it computes."""

    keep_every: int = 10
    """Rounds between two checkpoints."""
    scores: bool = False
    """Whether to ask the sites for the scores of all people at the end."""

    def __post_init__(self) -> None:
        whole(1, keep_every=self.keep_every)


@dataclass(frozen=True)
class SiteLook:
    """One look at the validation people of all sites."""

    round: int
    auc: float | None
    """None where one kind of result is missing among them."""
    loss: float | None
    """None where it stays with the sites."""
    log_loss: float | None = None
    """Of the validation people; None where ``auc`` is."""


@dataclass
class Progressed:
    """What a run has found so far."""

    looks: list[SiteLook] = field(default_factory=list)
    best: SiteLook | None = None
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """Of the best look."""
    since: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each round."""

    def take(self, look: SiteLook, parameters: dict[str, Tensor]) -> bool:
        """Whether ``look`` is the best so far."""
        self.looks.append(look)
        self.since += 1
        worse = self.best is not None and (
            look.log_loss is None
            or (self.best.log_loss is not None and look.log_loss >= self.best.log_loss)
        )
        if worse:
            return False
        self.best, self.since = look, 0
        self.parameters = {name: one.clone() for name, one in parameters.items()}
        return True


class SitesRun:
    """One run; ``go`` carries it out, from its newest checkpoint if there is one."""

    def __init__(
        self,
        transport: Transport,
        folder: Path,
        order: Order,
        conduct: Conduct,
    ) -> None:
        require_federable(order.settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: FolderLock | None = FolderLock(folder)
        known = Troubles(folder / TROUBLES)
        self.board = Switchboard(transport, folder.name, order.rules, known)
        self.found = Progressed()
        self.scores: dict[str, Probabilities] = {}
        self._folder, self._order, self._conduct = folder, order, conduct
        self._forecast: dict[str, Any] | None = None
        self._engine: SitesEngine | None = None
        self._people: Mapping[str, int] = {}

    def go(self, progress: Progress = silent) -> dict[str, Any]:
        """Train until the settings' rounds are done or looks get no better.

        Returns the summary, which is also written. With too few sites the
        model is kept as it is, and the same call goes on later.
        """
        began = perf_counter()
        self._lock = self._lock or FolderLock(self._folder)
        try:
            resumed = checkpoints.newest(self._folder, self._order.origin)
            self._engine = self._prepare(resumed, progress)
            if resumed is not None:
                self._put_back(self._engine, resumed)
            self._train(self._engine, progress)
            self._finish(self._engine)
            write_tensors(self._folder / MODEL, self.found.parameters)
            if self.scores:
                store.replace_text(self._folder / SCORES, score_table(self.scores))
            return self._write_report(perf_counter() - began)
        except EpifalconError as error:
            # Also of a run that never began: why must be told.
            self._write_report(perf_counter() - began, error)
            raise
        finally:
            self._lock.release()
            self._lock = None

    def _prepare(self, resumed: Checkpoint | None, progress: Progress) -> SitesEngine:
        order, board, settings = self._order, self.board, self._order.settings
        around = Gathered.load(self._folder, order.origin)
        if resumed is not None and around is None:
            raise CorruptFileError(f"{self._folder / PREPARATION}: is missing")
        met = meet(board, order.told, around)
        if again := around is not None:
            tell_again(board, order, met, around)
        else:
            around = gather(board, order, met, progress)
        self._forecast = around.forecast
        number = 0 if resumed is None else resumed.engine.round
        call = Payload(around.tensors, {"round": number})
        ready = board.ask(
            ("prepare", 0), dict.fromkeys(board.attending, call), _nothing
        )
        board.keep_only(ready)
        if not again:
            around.of(ready).save(self._folder, order.origin)
        copies = settings.pseudo.pseudo_copies
        plan = PrivacyPlan.of(
            settings.privacy,
            settings.model,
            releases_of(met.clock),
            copies if tallies.needs_pseudo_traces(settings) else 0,
        )
        ledger = self._ledger(plan, resumed, has_states=around.state_width > 0)
        self._people = met.people
        size = met.regions, met.clock.slots // settings.model.window_slots
        census = Census(met.people, around.state_width, size)
        return SitesEngine(board, census, settings.model, plan, order.seed, ledger)

    def _ledger(
        self, plan: PrivacyPlan, resumed: Checkpoint | None, has_states: bool
    ) -> Ledger:
        path, settings = self._folder / LEDGER, self._order.settings
        follows_cases = tallies.needs_reported(settings)
        made = made_in_the_clear(plan, has_states, follows_cases)
        made += self._order.looks(plan)
        made.append(in_the_clear(plan, "uploads", self._order.revealed))
        ledger = checkpoints.ledger_of(path, plan.budget, resumed)
        checkpoints.record_once(ledger, made)
        return ledger

    def _train(self, engine: SitesEngine, progress: Progress) -> None:
        settings, found = self._order.settings, self.found
        last, stopping = settings.model.rounds, settings.stopping
        while engine.round < last and found.since < stopping.patience:
            began = perf_counter()
            loss = engine.step()
            found.seconds.append(perf_counter() - began)
            due = engine.round % stopping.check_every == 0 or engine.round == last
            words = ""
            if due and self._looks():
                words = self._look(engine, loss)
            progress("rounds", engine.round, last, words)
            self._tell(engine.round, last, words)
            if engine.round % self._conduct.keep_every == 0:
                self._keep(engine)

    def _tell(self, done: int, last: int, words: str) -> None:
        """Let whoever looks into the folder see how far the run is."""
        told = {"round": done, "rounds": last, "told": words}
        store.replace_text(self._folder / PROGRESS, json_text(told))

    def _looks(self) -> bool:
        """Whether validation people are looked at: not where tests are promised."""
        return self._order.settings.privacy.mode != "local"

    def _look(self, engine: SitesEngine, loss: float) -> str:
        fresh = engine.plan.mode == "off"
        if fresh:
            engine.score()
        scores, infected = engine.look(fresh)
        auc = area_under_curve(scores, infected)
        known = None if math.isnan(loss) else loss
        held_out = None if auc is None else float(log_loss(infected, scores))
        look = SiteLook(engine.round, auc, known, held_out)
        if self.found.take(look, engine.parameters):
            engine.best(engine.round)
        return "" if auc is None else f"AUC {auc:.3f}"

    def _keep(self, engine: SitesEngine) -> None:
        """A checkpoint: first at every site, then here.

        None while a site is missing: its people could not go back to it.
        """
        board, found = self.board, self.found
        if board.attending == board.present:
            engine.call("keep", _nothing)
        if board.attending != board.present:
            return
        remembered = {
            "looks": [list(astuple(one)) for one in found.looks],
            "since": found.since,
            "seconds": found.seconds,
            "best": None if found.best is None else found.best.round,
            "present": self.board.present,
        }
        tensors = {f"best/{name}": one for name, one in found.parameters.items()}
        made = Checkpoint(engine.state(), tensors, remembered)
        checkpoints.save(self._folder, made, self._order.origin)

    def _put_back(self, engine: SitesEngine, resumed: Checkpoint) -> None:
        engine.restore(resumed.engine)
        self.board.keep_only(resumed.remembered["present"])
        told, found = resumed.remembered, self.found
        found.looks = [SiteLook(*one) for one in told["looks"]]
        found.since, found.seconds = told["since"], list(told["seconds"])
        best = [one for one in found.looks if one.round == told["best"]]
        found.best = best[-1] if best else None
        found.parameters = tensors_under(resumed.tensors, "best/")

    def _finish(self, engine: SitesEngine) -> None:
        """Let every site write its scores; ask for them where that is wished."""
        found = self.found
        fresh = engine.plan.mode == "off"
        if found.best is None:
            found.parameters = engine.parameters
            if fresh:
                engine.score()
        tensors = {f"parameter/{name}": one for name, one in found.parameters.items()}
        told = {"fresh": fresh, "scores": self._conduct.scores}
        answers = engine.call("finish", self._read_scores, Payload(tensors, told))
        if self._conduct.scores:
            self.scores = {
                site: one for site, one in answers.items() if one is not None
            }

    def _read_scores(self, site: str, answer: Parcel) -> Floats | None:
        if "scores" not in answer.tensors:
            return None
        found: Floats = answer.tensor("scores").numpy()
        if found.dtype != np.float64 or found.shape != (self._people[site],):
            raise DataError(f"scores of {found.shape} for {self._people[site]} people")
        if not ((found >= 0) & (found <= 1)).all():
            raise DataError("a score outside 0 to 1")
        return found

    def _write_report(
        self, seconds: float, error: EpifalconError | None = None
    ) -> dict[str, Any]:
        found, traffic, engine = self.found, self.board.traffic, self._engine
        later = found.seconds[1:] or found.seconds or [0.0]
        summary = {
            "run": self.board.run,
            "finished": error is None,
            "error": None if error is None else str(error),
            "error_kind": None if error is None else type(error).__name__,
            "rounds": 0 if engine is None else engine.round,
            "best_round": None if found.best is None else found.best.round,
            "validation_auc": None if found.best is None else found.best.auc,
            "looks": [list(astuple(one)) for one in found.looks],
            "seconds": seconds,
            # The first round also counts people and makes what all others use.
            "seconds_per_round": sum(later) / len(later),
            "round_seconds": found.seconds,
            "calls": traffic.calls,
            "call_seconds": traffic.seconds,
            "site_seconds": traffic.site_seconds,
            "bytes_sent": traffic.sent,
            "bytes_received": traffic.received,
            "epsilon": None if engine is None else _epsilon(engine),
            "ledger_head": None if engine is None else engine.ledger.head,
            "forecast": self._forecast,
            "sites": self.board.report(),
        }
        if engine is not None or not self._ended_before():
            store.replace_text(self._folder / SUMMARY, json_text(summary, indent=2))
        return summary

    def _ended_before(self) -> bool:
        """Whether the folder holds the summary of a run that came to its end."""
        try:
            return bool(json.loads((self._folder / SUMMARY).read_text())["finished"])
        except (OSError, ValueError, KeyError):
            return False


def area_under_curve(scores: Probabilities, infected: Mask) -> float | None:
    """The AUC by ranks, ties half; None where one kind of result is missing."""
    positive = int(infected.sum())
    pairs = positive * (len(infected) - positive)
    if not pairs:
        return None
    above = rankdata(scores)[infected].sum() - positive * (positive + 1) / 2
    return float(above / pairs)


def _epsilon(engine: SitesEngine) -> dict[str, float | None]:
    spent = engine.ledger.spent().epsilon()
    protected = engine.plan.mode != "off"
    return {
        unit: value if protected and math.isfinite(value) else None
        for unit, value in spent.items()
    }


def _nothing(site: str, answer: Parcel) -> None:
    """An answer that says no more than that all is well."""


def score_table(scores: Mapping[str, Probabilities]) -> str:
    """A table of sites, people's positions and probabilities."""
    lines = [
        f"{site},{person},{score!r}"
        for site, some in sorted(scores.items())
        for person, score in enumerate(some.tolist())
    ]
    return "\n".join(["site,person,probability", *lines]) + "\n"
