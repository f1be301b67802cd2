"""A run of Falcon over sites: prepare, train, look, checkpoint, finish; resumable.

Beside what every run leaves, the server's folder holds checkpoints of the model and at
the end the model of the best look. No person's score comes here unless it was asked
for and the site gives it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from epifalcon.errors import CorruptFileError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.early_stopping import EarlyStopping, Look
from epifalcon.federation.engine import RoundReport, train
from epifalcon.federation.messages import Done, Finish, Keep, Scores
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.gathering import (
    PREPARATION,
    Gathered,
    gather,
    meet,
    tell_again,
)
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.sites.server_run import Conduct, ServerRun
from epifalcon.federation.sites.switchboard import Transport, accepted
from epifalcon.models.tensor_files import tensors_under, write_tensors
from epifalcon.progress import Progress
from epifalcon.types import Floats

MODEL = "model.safetensors"


class SitesRun(ServerRun[FalconOrder]):
    """One run of Falcon, resumed from its newest checkpoint if there is one."""

    order_type = FalconOrder

    def __init__(
        self, transport: Transport, folder: Path, order: FalconOrder, conduct: Conduct
    ) -> None:
        super().__init__(transport, folder, order, conduct)
        settings = order.settings
        self.stopping = EarlyStopping(settings.stopping, settings.privacy)
        self.parameters: dict[str, Tensor] = {}
        """Of the best look."""
        self._forecast: dict[str, Any] | None = None
        self._engine: SitesEngine | None = None
        self._people: Mapping[str, int] = {}

    def carry_out(self, progress: Progress) -> None:
        """Train until the settings' rounds are done or looks get no better."""
        resumed = checkpoints.newest(self._folder, self._order.origin)
        self._engine = self._prepare(resumed, progress)
        if resumed is not None:
            self._put_back(self._engine, resumed)
        self._train(self._engine, progress)
        self._finish(self._engine)
        write_tensors(self._folder / MODEL, self.parameters)

    def figures(self) -> dict[str, Any]:
        """Rounds, looks at validation people, and the region model's forecasts."""
        best = self.stopping.best
        return {
            "rounds": 0 if self._engine is None else self._engine.round,
            "best_round": None if best is None else best.round,
            "validation_auc": None if best is None else best.auc,
            "looks": self.stopping.as_plain()["looks"],
            "forecast": self._forecast,
        }

    def _prepare(self, resumed: Checkpoint | None, progress: Progress) -> SitesEngine:
        order, board, settings = self._order, self.board, self._order.settings
        around = Gathered.load(self._folder, order.origin)
        if resumed is not None and around is None:
            raise CorruptFileError(f"{self._folder / PREPARATION}: is missing")
        met = meet(board, order.hello, around)
        if again := around is not None:
            tell_again(board, order, met, around)
        else:
            around = gather(board, order, met, progress)
        self._forecast = around.forecast
        number = 0 if resumed is None else resumed.engine.round
        request = replace(around.prepare, round=number)
        requests = dict.fromkeys(board.attending, request)
        ready = board.ask(0, requests, Done, accepted)
        board.keep_only(ready)
        if not again:
            around.of(ready).save(self._folder, order.origin)
        plan = order.plan(met.clock)
        opening = order.unprotected(plan, validation=True)
        ledger = self.open_ledger(plan.budget, opening, resumed)
        self._people = met.people
        size = met.regions, met.clock.slots // settings.model.window_slots
        census = Census(met.people, around.state_width, size)
        return SitesEngine(board, census, settings.model, plan, order.seed, ledger)

    def _train(self, engine: SitesEngine, progress: Progress) -> None:
        last = engine.settings.rounds

        def watch(report: RoundReport) -> bool:
            self.round_seconds.append(report.seconds)
            text = ""
            if self.stopping.due(engine.round, last) and not self._order.hides_tests:
                text = self._look(engine, report.loss)
            progress("rounds", engine.round, last, text)
            self.report_progress(engine.round, last, text)
            if engine.round % self._conduct.keep_every == 0:
                self._keep(engine)
            return self.stopping.ended

        if not self.stopping.ended:
            train(engine, watch=watch)

    def _look(self, engine: SitesEngine, loss: float) -> str:
        fresh = not engine.plan.is_private
        if fresh:
            engine.score()
        scores, infected = engine.look(fresh)
        look = Look.at(engine.round, loss, scores, infected)
        if self.stopping.take(look):
            self.parameters = {n: one.clone() for n, one in engine.parameters.items()}
            engine.best(engine.round)
        return look.told

    def _keep(self, engine: SitesEngine) -> None:
        """A checkpoint: first at every site, then here.

        None while a site is missing: its people could not go back to it.
        """
        board = self.board
        if board.attending == board.present:
            engine.call(Keep(), Done, accepted)
        if board.attending != board.present:
            return
        remembered = {
            **self.stopping.as_plain(),
            "seconds": self.round_seconds,
            "present": self.board.present,
        }
        tensors = {f"best/{name}": one for name, one in self.parameters.items()}
        made = Checkpoint(engine.state(), tensors, remembered)
        checkpoints.save(self._folder, made, self._order.origin)

    def _put_back(self, engine: SitesEngine, resumed: Checkpoint) -> None:
        engine.restore(resumed.engine)
        self.board.keep_only(resumed.remembered["present"])
        self.stopping.restore(resumed.remembered)
        self.round_seconds = list(resumed.remembered["seconds"])
        self.parameters = tensors_under(resumed.tensors, "best/")

    def _finish(self, engine: SitesEngine) -> None:
        """Let every site write its scores; ask for them where that is wished."""
        fresh = not engine.plan.is_private
        if self.stopping.best is None:
            self.parameters = engine.parameters
            if fresh:
                engine.score()
        request = Finish(
            parameters=self.parameters, fresh=fresh, scores=self._conduct.scores
        )
        answers = engine.call(request, Scores, self._read_scores)
        self.scores = {site: one for site, one in answers.items() if one is not None}

    def _read_scores(self, site: str, answer: Scores) -> Floats | None:
        return answer.require(self._people[site])
