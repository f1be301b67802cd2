"""The server's run of Falcon over sites: prepare, train, checkpoint, finish; resumable.

Sites answer a repeated round only upon equal requests, so the server stores what it
sent before the rounds, checkpoints of the model, and at the end the model of the best
look. No person's score comes here unless requested and given by the site.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation import checkpoints, messages, preparing
from epifalcon.federation.checkpoints import Checkpoint, require_same
from epifalcon.federation.early_stopping import EarlyStopping, Look
from epifalcon.federation.engine import RoundReport, train
from epifalcon.federation.messages import Record
from epifalcon.federation.preparing import SiteTally, StateMoments, StateScaling
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.sites.server_run import Conduct, ServerRun
from epifalcon.federation.sites.switchboard import (
    Switchboard,
    Transport,
    Trouble,
    accepted,
)
from epifalcon.mobility.clock import Clock
from epifalcon.models.tensor_files import tensors_under, write_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import build
from epifalcon.types import Floats, Plain

MODEL = "model.safetensors"
PREPARATION = "preparation"
_MESSAGE = "message.safetensors"
_MOST_PEOPLE, _MOST_REGIONS, _MOST_SLOTS = 10**9, 10**7, 10**5
"""More than any city has: a site that says more would only cost memory."""
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True)
class Met:
    """The sites of a run and what all of them have in common."""

    people: Mapping[str, int]
    """How many each site has, by name."""
    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    clock: Clock
    regions: int


@dataclass(frozen=True, eq=False)
class Gathered(Record):
    """What every site is sent before the rounds; stored to send the same again."""

    first: Plain
    """The number of each site's first person, which a run never changes."""
    tally: dict[str, Tensor] = field(default_factory=dict)
    """Sums that all sites learn."""
    states: NDArray[np.float32] | None = None
    """Region states, (1 + folds, regions, days, width); None without region model."""
    centre: NDArray[np.float32] | None = None
    factor: NDArray[np.float32] | None = None
    forecast: Plain | None = None
    """How the region model's forecasts were evaluated."""

    @property
    def state_width(self) -> int:
        """Width of region states; 0 without region model."""
        return 0 if self.states is None else int(self.states.shape[-1])

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write it into the run's folder, completely or not at all."""
        meta = {"forecast": self.forecast}
        sent = replace(self, forecast=None)
        message = messages.pack(
            sent.encode(messages.Heading(folder.name, "", 0, PREPARATION))
        )
        with store.new_directory(folder / PREPARATION) as scratch:
            (scratch / _MESSAGE).write_bytes(message)
            store.write_manifest(scratch, PREPARATION, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, origin: store.Origin) -> "Gathered | None":
        """Read what ``save`` wrote for the same settings and seed; None without."""
        place = folder / PREPARATION
        if not place.exists():
            return None
        manifest = require_same(place, origin, exact=False)
        found = cls.decode(messages.unpack((place / _MESSAGE).read_bytes()))
        return replace(found, forecast=manifest["meta"]["forecast"])


def meet(board: Switchboard, hello: messages.Hello, known: Gathered | None) -> Met:
    """Say hello to all sites and number their people.

    ``known`` is what was sent before an interruption, if any: sites that were not
    there then are left out.
    """
    met = board.ask(
        0, dict.fromkeys(board.present, hello), messages.SiteFacts, _check_facts
    )
    # The city that most sites have; of equally many, that of the first by name.
    cities = [met[site].city for site in sorted(met)]
    city = max(cities, key=lambda one: (cities.count(one), -cities.index(one)))
    for site in [site for site, one in met.items() if one.city != city]:
        odd = [n for n, one in met.pop(site).city.items() if one != city[n]]
        why = f"it has another city: its {odd[0].removesuffix('_sha256')} differ"
        board.refuse(Trouble(site, 0, "hello", "refused", why))
    first, total = {}, 0
    for site in sorted(met):
        first[site] = total
        total += met[site].people
    if known is not None:
        first = {site: known.first[site] for site in first if site in known.first}
    board.keep_only(first)
    people = {site: met[site].people for site in first}
    clock = build(Clock, city["clock"], "clock")
    return Met(people, first, clock, city["regions"])


def gather(
    board: Switchboard, order: FalconOrder, met: Met, progress: Progress = silent
) -> Gathered:
    """Add up what sites count, fit the region model, and scale its states."""
    settings = order.settings
    tally = _count(board, order, met)
    public = SiteTally(mobility=tally.mobility, reported=tally.reported)
    sums = preparing.pack_tally(public)
    if not settings.uses_region_model:
        return Gathered(met.first, sums)
    fitted = preparing.fit_region_states(
        tally, met.clock, settings, order.seed, progress
    )
    scaling = StateScaling.of(_spread(board, met, fitted.states), settings)
    return Gathered(
        met.first, sums, fitted.states, scaling.centre, scaling.factor, fitted.forecast
    )


def _spread(board: Switchboard, met: Met, states: NDArray[np.float32]) -> StateMoments:
    """Send region states; sum up what they are for the people of all sites."""
    requests = dict.fromkeys(board.attending, messages.States(states))
    check = partial(_read_moments, people=met.people, states=states)
    moments = board.ask(0, requests, StateMoments, check)
    board.keep_only(moments)
    listed = [moments[site] for site in sorted(moments)]
    return sum(listed[1:], listed[0])


def _count(board: Switchboard, order: FalconOrder, met: Met) -> SiteTally:
    requests = {site: messages.Count(one) for site, one in met.first.items()}
    check = partial(_read_tally, settings=order.settings, met=met)
    counted = board.ask(0, requests, messages.Counted, check)
    board.keep_only(counted)
    listed = [counted[site] for site in sorted(counted)]
    return sum(listed[1:], listed[0])


def _check_facts(_site: str, answer: messages.SiteFacts) -> messages.SiteFacts:
    people, regions = answer.people, answer.regions
    if not (1 <= people <= _MOST_PEOPLE and 1 <= regions <= _MOST_REGIONS):
        raise DataError("numbers of people or regions are out of range")
    if (slots := build(Clock, answer.clock, "clock").slots) > _MOST_SLOTS:
        raise DataError(f"{slots} slots")
    return answer


def _read_tally(
    site: str, answer: messages.Counted, *, settings: PredictionSettings, met: Met
) -> SiteTally:
    folds = settings.region.folds
    found = preparing.unpack_tally(answer.tally, met.regions, met.clock, folds)
    preparing.require_counted(found, settings, met.people[site], met.clock)
    return found


def _read_moments(
    site: str,
    answer: StateMoments,
    *,
    people: Mapping[str, int],
    states: NDArray[np.float32],
) -> StateMoments:
    total, squared = answer.total, answer.squared
    width, count = states.shape[-1], people[site]
    if answer.people != count:
        raise DataError(f"sums of region states not of its {count:,} people")
    for one in (total, squared):
        if one.shape != (width,):
            raise DataError(f"sums of region states of shape {one.shape}")
    largest = float(np.abs(states).max()) if states.size else 0.0
    # A person's state is a mean of states; NaN is not within any bound.
    most = count * largest * _ROUNDING
    within = (np.abs(total) <= most).all() and (squared >= 0).all()
    if not (within and (squared <= most * largest * _ROUNDING).all()):
        raise DataError("sums of region states that its people cannot have")
    return answer


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
        self._forecast: Plain | None = None
        self._engine: SitesEngine | None = None
        self._people: Mapping[str, int] = {}

    def carry_out(self, progress: Progress) -> None:
        """Train until the settings' rounds are done or looks get no better."""
        resumed = checkpoints.newest(self._folder, self._order.origin)
        self._engine = self._prepare(resumed, progress)
        if resumed is not None:
            self._engine.restore(resumed.engine)
            self.board.keep_only(resumed.remembered["present"])
            self.stopping.restore(resumed.remembered)
            self.round_seconds = list(resumed.remembered["seconds"])
            self.parameters = tensors_under(resumed.tensors, "best/")
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
            # Bring sites that were restarted to where ``gather`` left them.
            _count(board, order, met)
            if around.states is not None:
                _spread(board, met, around.states)
        else:
            around = gather(board, order, met, progress)
        self._forecast = around.forecast
        number = 0 if resumed is None else resumed.engine.round
        request = messages.Prepare(number, around.tally, around.centre, around.factor)
        requests = dict.fromkeys(board.attending, request)
        ready = board.ask(0, requests, messages.Done, accepted)
        board.keep_only(ready)
        if not again:
            first = {site: around.first[site] for site in ready}
            replace(around, first=first).save(self._folder, order.origin)
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
            engine.best_round = engine.round
        return look.told

    def _keep(self, engine: SitesEngine) -> None:
        """A checkpoint: first at every site, then here.

        None while a site is missing: its people could not go back to it.
        """
        board = self.board
        if board.attending == board.present:
            engine.call(messages.Keep(), messages.Done, accepted)
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

    def _finish(self, engine: SitesEngine) -> None:
        """Let every site write its scores; ask for them where that is wished."""
        fresh = not engine.plan.is_private
        if self.stopping.best is None:
            self.parameters = engine.parameters
            if fresh:
                engine.score()
        request = messages.Finish(
            parameters=self.parameters, fresh=fresh, scores=self._conduct.scores
        )
        answers = engine.call(request, messages.Scores, self._read_scores)
        self.scores = {site: one for site, one in answers.items() if one is not None}

    def _read_scores(self, site: str, answer: messages.Scores) -> Floats | None:
        return answer.require(self._people[site])
