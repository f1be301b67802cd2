"""The server's run of Falcon over sites: prepare, train, checkpoint, finish; resumable.

Sites answer a repeated round only upon equal requests, so the server stores what it
sent before the rounds, checkpoints of the model, and at the end the model of the best
look. No person's score comes here unless requested and given by the site.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation import checkpoints, preparing
from epifalcon.federation.checkpoints import Checkpoint, require_same, verified
from epifalcon.federation.early_stopping import EarlyStopping, Look
from epifalcon.federation.engine import RoundReport, train
from epifalcon.federation.messages import (
    Count,
    Counted,
    Done,
    Finish,
    Hello,
    Keep,
    Prepare,
    Scores,
    SiteFacts,
    States,
    StateSums,
)
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
from epifalcon.models.tensor_files import read_tensors, tensors_under, write_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import build
from epifalcon.types import Floats

PREPARATION = "preparation"
_TENSORS = "tensors.safetensors"
_MOST_PEOPLE, _MOST_REGIONS, _MOST_SLOTS = 10**9, 10**7, 10**5
"""More than any city has: a site that says more would only cost memory."""
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True)
class _City:
    """What all sites of a run must have in common."""

    clock: Clock
    regions: int
    regions_sha256: str


@dataclass(frozen=True)
class _Hello:
    """What a site said to ``hello``."""

    people: int
    city: _City


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
class Gathered:
    """What every site is sent before the rounds; stored to send the same again."""

    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    prepare: Prepare
    states: NDArray[np.float32] | None = None
    """Region states, (1 + folds, regions, days, width); None without region model."""
    forecast: dict[str, Any] | None = None
    """How the region model's forecasts were judged."""

    @property
    def state_width(self) -> int:
        """Of region states; 0 without region model."""
        return 0 if self.states is None else int(self.states.shape[-1])

    def of(self, sites: Iterable[str]) -> "Gathered":
        """The same for those sites alone."""
        return replace(self, first={site: self.first[site] for site in sites})

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write it into the run's folder, completely or not at all."""
        named = {f"tally/{name}": one for name, one in self.prepare.tally.items()}
        arrays = {
            "states": self.states,
            "centre": self.prepare.centre,
            "factor": self.prepare.factor,
        }
        named |= {
            name: torch.from_numpy(one)
            for name, one in arrays.items()
            if one is not None
        }
        meta = {"first": self.first, "forecast": self.forecast}
        with store.new_directory(folder / PREPARATION) as scratch:
            write_tensors(scratch / _TENSORS, named)
            store.write_manifest(scratch, PREPARATION, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, origin: store.Origin) -> "Gathered | None":
        """Read what ``save`` wrote for the same settings and seed; None without."""
        place = folder / PREPARATION
        if not place.exists():
            return None
        manifest = verified(place)
        require_same(place, manifest, origin, exact=False)
        tensors, meta = read_tensors(place / _TENSORS), manifest["meta"]
        arrays = {name: one.numpy() for name, one in tensors.items()}
        prepare = Prepare(
            0,
            tensors_under(tensors, "tally/"),
            arrays.get("centre"),
            arrays.get("factor"),
        )
        states = arrays.get("states")
        return cls(dict(meta["first"]), prepare, states, meta["forecast"])


def meet(board: Switchboard, hello: Hello, known: Gathered | None) -> Met:
    """Say hello to all sites and number their people.

    ``known`` is what was sent before an interruption, if any: sites that were not
    there then are left out.
    """
    met = board.ask(0, dict.fromkeys(board.present, hello), SiteFacts, _read_hello)
    city = _common(met)
    for site in [site for site, one in met.items() if one.city != city]:
        why = _differing(met.pop(site), city)
        board.refuse(Trouble(site, 0, "hello", "refused", why))
    first = _numbers(met, known)
    board.keep_only(first)
    people = {site: met[site].people for site in first}
    return Met(people, first, city.clock, city.regions)


def gather(
    board: Switchboard, order: FalconOrder, met: Met, progress: Progress = silent
) -> Gathered:
    """Add up what sites count, fit the region model, and scale its states."""
    settings = order.settings
    tally = _count(board, order, met)
    public = SiteTally(mobility=tally.mobility, reported=tally.reported)
    prepare = Prepare(0, preparing.pack_tally(public))
    if not settings.uses_region_model:
        return Gathered(met.first, prepare)
    fitted = preparing.fit_region_states(
        tally, met.clock, settings, order.seed, progress
    )
    scaling = StateScaling.of(_spread(board, met, fitted.states), settings)
    prepare = replace(prepare, centre=scaling.centre, factor=scaling.factor)
    return Gathered(met.first, prepare, fitted.states, fitted.forecast)


def tell_again(
    board: Switchboard, order: FalconOrder, met: Met, known: Gathered
) -> None:
    """Bring sites that have started again to where ``gather`` left them."""
    _count(board, order, met)
    if known.states is not None:
        _spread(board, met, known.states)


def _spread(board: Switchboard, met: Met, states: NDArray[np.float32]) -> StateMoments:
    """Send region states; sum up what they are for the people of all sites."""
    requests = dict.fromkeys(board.attending, States(states))
    check = partial(_read_moments, people=met.people, states=states)
    moments = board.ask(0, requests, StateSums, check)
    board.keep_only(moments)
    listed = [moments[site] for site in sorted(moments)]
    return sum(listed[1:], listed[0])


def _count(board: Switchboard, order: FalconOrder, met: Met) -> SiteTally:
    requests = {site: Count(one) for site, one in met.first.items()}
    check = partial(_read_tally, settings=order.settings, met=met)
    counted = board.ask(0, requests, Counted, check)
    board.keep_only(counted)
    return preparing.total([counted[site] for site in sorted(counted)])


def _read_hello(site: str, answer: SiteFacts) -> _Hello:
    del site
    people, regions = answer.people, answer.regions
    if not (1 <= people <= _MOST_PEOPLE and 1 <= regions <= _MOST_REGIONS):
        raise DataError("numbers of people or regions are out of range")
    clock = build(Clock, answer.clock, "clock")
    if clock.slots > _MOST_SLOTS:
        raise DataError(f"{clock.slots} slots")
    return _Hello(people, _City(clock, regions, answer.regions_sha256[:64]))


def _common(met: Mapping[str, _Hello]) -> _City:
    """The city that most sites have; of equally many, that of the first by name."""
    cities = [met[site].city for site in sorted(met)]
    return max(cities, key=lambda city: (cities.count(city), -cities.index(city)))


def _differing(said: _Hello, city: _City) -> str:
    names = ("clock", "regions", "regions_sha256")
    other = [one for one in names if getattr(said.city, one) != getattr(city, one)]
    return f"it has another city: its {other[0].removesuffix('_sha256')} differ"


def _numbers(met: Mapping[str, _Hello], known: Gathered | None) -> dict[str, int]:
    if known is not None:
        return {site: known.first[site] for site in sorted(met) if site in known.first}
    first, numbers = 0, {}
    for site in sorted(met):
        numbers[site] = first
        first += met[site].people
    return numbers


def _read_tally(
    site: str, answer: Counted, *, settings: PredictionSettings, met: Met
) -> SiteTally:
    folds = settings.region.folds
    found = preparing.unpack_tally(answer.tally, met.regions, met.clock, folds)
    preparing.require_counted(found, settings, met.people[site], met.clock)
    return found


def _read_moments(
    site: str,
    answer: StateSums,
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
    return StateMoments(count, total, squared)


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
