"""A whole run over sites: prepare, train, look, keep, finish; resumable.

What the server writes lies in the run's folder: the ledger, checkpoints of the
model, at the end the model of the best look and ``summary.json``. No person's score
comes here unless it was asked for and the site gives it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import DataError, TooFewSitesError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.preparing import (
    StateMoments,
    StateScaling,
    in_the_clear,
    made_in_the_clear,
)
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.run import LEDGER, REVEALED, Order, require_federable
from epifalcon.federation.sites.switchboard import Payload, Switchboard, Transport
from epifalcon.federation.sites.tallies import SiteTally
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.clock import Clock
from epifalcon.models.tensor_files import tensors_under, write_tensors
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, build, json_text
from epifalcon.types import Floats, Mask, Probabilities

SUMMARY = "summary.json"
MODEL = "model.safetensors"
Judge = Callable[[Probabilities, Mask], float]
"""The AUC of scores against results; ``evaluation`` lies above this layer."""


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
class _Met:
    """What a site said to ``hello``."""

    people: int
    regions: int
    regions_sha256: str
    clock: Clock


@dataclass(frozen=True)
class SiteLook:
    """One look at the validation people of all sites."""

    round: int
    auc: float | None
    """None where one kind of result is missing among them."""
    loss: float | None
    """None where it stays with the sites."""


@dataclass
class Progressed:
    """What a run has found so far."""

    looks: list[SiteLook] = field(default_factory=list)
    best: SiteLook | None = None
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """Of the best look."""
    since: int = 0
    seconds: float = 0.0
    """Of all rounds."""

    def take(self, look: SiteLook, parameters: dict[str, Tensor]) -> bool:
        """Whether ``look`` is the best so far."""
        self.looks.append(look)
        self.since += 1
        worse = self.best is not None and (
            look.auc is None
            or (self.best.auc is not None and look.auc <= self.best.auc)
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
        judge: Judge,
    ) -> None:
        require_federable(order.settings)
        folder.mkdir(parents=True, exist_ok=True)
        self.board = Switchboard(transport, folder.name, order.rules)
        self.found = Progressed()
        self.scores: dict[str, Probabilities] = {}
        self._folder, self._order, self._conduct = folder, order, conduct
        self._judge = judge
        self._forecast: dict[str, Any] | None = None
        self._first: dict[str, int] = {}

    def go(self, progress: Progress = silent) -> dict[str, Any]:
        """Train until the settings' rounds are done or looks get no better.

        Returns the summary, which is also written. With too few sites the
        model is kept as it is, and the same call goes on later.
        """
        began = perf_counter()
        resumed = checkpoints.newest(self._folder, self._order.origin)
        engine = self._prepare(resumed, progress)
        if resumed is not None:
            self._put_back(engine, resumed)
        try:
            self._train(engine, progress)
            self._finish(engine)
        except TooFewSitesError:
            self._write_report(engine, perf_counter() - began, finished=False)
            raise
        write_tensors(self._folder / MODEL, self.found.parameters)
        return self._write_report(engine, perf_counter() - began, finished=True)

    def _prepare(self, resumed: Checkpoint | None, progress: Progress) -> SitesEngine:
        order, board, settings = self._order, self.board, self._order.settings
        told = {
            "settings": as_plain(settings),
            "rules": as_plain(order.rules),
            "seed": order.seed,
        }
        hello = {site: Payload(told=told) for site in board.present}
        met = board.ask(("hello", 0), hello, _read_hello)
        clock, regions = _agreed(met)
        first = _numbers(met, resumed)
        board.keep_only(first)
        tally = self._count(first, clock, regions)
        around, width = self._around(tally, clock, progress)
        number = 0 if resumed is None else resumed.engine.round
        told_now = Payload(around.tensors, {"round": number})
        ready = board.ask(
            ("prepare", 0), dict.fromkeys(board.attending, told_now), _nothing
        )
        board.keep_only(ready)
        copies = settings.pseudo.pseudo_copies
        plan = PrivacyPlan.of(
            settings.privacy,
            settings.model,
            releases_of(clock),
            copies if tallies.needs_pseudo_traces(settings) else 0,
        )
        ledger = self._ledger(plan, resumed, has_states=width > 0)
        people = {site: one.people for site, one in met.items()}
        census = Census(people, width)
        return SitesEngine(board, census, settings.model, plan, order.seed, ledger)

    def _count(self, first: Mapping[str, int], clock: Clock, regions: int) -> SiteTally:
        settings, board = self._order.settings, self.board
        self._first = dict(first)
        calls = {site: Payload(told={"first": one}) for site, one in first.items()}
        read = partial(
            _read_tally, regions=regions, clock=clock, folds=settings.region.folds
        )
        counted = board.ask(("count", 0), calls, read)
        board.keep_only(counted)
        return tallies.total([counted[site] for site in sorted(counted)])

    def _around(
        self, tally: SiteTally, clock: Clock, progress: Progress
    ) -> tuple[Payload, int]:
        """What every site is told of the city, and the width of region states."""
        settings, board = self._order.settings, self.board
        public = SiteTally(mobility=tally.mobility, reported=tally.reported)
        tensors = {f"tally/{name}": one for name, one in tallies.pack(public).items()}
        if not tallies.needs_region_model(settings):
            return Payload(tensors), 0
        states, self._forecast = tallies.fit_region_states(
            tally, clock, settings, self._order.seed, progress
        )
        told = Payload({"states": torch.from_numpy(states)})
        calls = dict.fromkeys(board.attending, told)
        moments = board.ask(("states", 0), calls, _read_moments)
        board.keep_only(moments)
        whole_city = moments[min(moments)]
        for site in sorted(moments)[1:]:
            whole_city = whole_city + moments[site]
        scaling = StateScaling.of_moments(whole_city)
        tensors["centre"] = torch.from_numpy(scaling.centre)
        tensors["factor"] = torch.from_numpy(scaling.factor)
        return Payload(tensors), int(states.shape[-1])

    def _ledger(
        self, plan: PrivacyPlan, resumed: Checkpoint | None, has_states: bool
    ) -> Ledger:
        path, settings = self._folder / LEDGER, self._order.settings
        made = made_in_the_clear(plan, has_states, settings.pseudo)
        made.append(in_the_clear(plan, "uploads", REVEALED[self._order.rules.uploads]))
        ledger = checkpoints.ledger_of(path, plan.budget, resumed)
        checkpoints.record_once(ledger, made)
        return ledger

    def _train(self, engine: SitesEngine, progress: Progress) -> None:
        settings, found = self._order.settings, self.found
        last, stopping = settings.model.rounds, settings.stopping
        while engine.round < last and found.since < stopping.patience:
            began = perf_counter()
            loss = engine.step()
            found.seconds += perf_counter() - began
            due = engine.round % stopping.check_every == 0 or engine.round == last
            words = ""
            if due and self._looks():
                words = self._look(engine, loss)
            progress("rounds", engine.round, last, words)
            if engine.round % self._conduct.keep_every == 0:
                self._keep(engine)

    def _looks(self) -> bool:
        """Whether validation people are looked at: not where tests are promised."""
        return self._order.settings.privacy.mode != "local"

    def _look(self, engine: SitesEngine, loss: float) -> str:
        fresh = engine.plan.mode == "off"
        if fresh:
            engine.score()
        scores, infected = engine.look(fresh)
        auc = None
        if infected.any() and not infected.all():
            auc = self._judge(scores, infected)
        look = SiteLook(engine.round, auc, None if math.isnan(loss) else loss)
        if self.found.take(look, engine.parameters):
            engine.best(engine.round)
        return "" if auc is None else f"AUC {auc:.3f}"

    def _keep(self, engine: SitesEngine) -> None:
        """A checkpoint: first at every site, then here."""
        engine.call("keep", _nothing)
        found = self.found
        remembered = {
            "looks": [[one.round, one.auc, one.loss] for one in found.looks],
            "since": found.since,
            "seconds": found.seconds,
            "best": None if found.best is None else found.best.round,
            "first": self._first,
        }
        tensors = {f"best/{name}": one for name, one in found.parameters.items()}
        made = Checkpoint(engine.state(), tensors, remembered)
        checkpoints.save(self._folder, made, self._order.origin)

    def _put_back(self, engine: SitesEngine, resumed: Checkpoint) -> None:
        engine.restore(resumed.engine)
        told, found = resumed.remembered, self.found
        found.looks = [SiteLook(*one) for one in told["looks"]]
        found.since, found.seconds = told["since"], told["seconds"]
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
        answers = engine.call("finish", _read_scores, Payload(tensors, told))
        if self._conduct.scores:
            self.scores = {
                site: one for site, one in answers.items() if one is not None
            }

    def _write_report(
        self, engine: SitesEngine, seconds: float, finished: bool
    ) -> dict[str, Any]:
        found, traffic = self.found, self.board.traffic
        rounds = max(engine.round, 1)
        summary = {
            "run": self.board.run,
            "finished": finished,
            "rounds": engine.round,
            "best_round": None if found.best is None else found.best.round,
            "validation_auc": None if found.best is None else found.best.auc,
            "looks": [[one.round, one.auc, one.loss] for one in found.looks],
            "seconds": seconds,
            "seconds_per_round": found.seconds / rounds,
            "bytes_sent": traffic.sent,
            "bytes_received": traffic.received,
            "epsilon": _epsilon(engine),
            "ledger_head": engine.ledger.head,
            "forecast": self._forecast,
            "sites": self.board.report(),
        }
        store.replace_text(self._folder / SUMMARY, json_text(summary, indent=2))
        return summary


def _epsilon(engine: SitesEngine) -> dict[str, float | None]:
    spent = engine.ledger.spent().epsilon()
    protected = engine.plan.mode != "off"
    return {
        unit: value if protected and math.isfinite(value) else None
        for unit, value in spent.items()
    }


def _read_hello(site: str, answer: Parcel) -> _Met:
    del site
    people, regions = answer.value("people"), answer.value("regions")
    if not (isinstance(people, int) and isinstance(regions, int)):
        raise DataError("people and regions must be whole numbers")
    if people < 1 or regions < 1:
        raise DataError(f"{people} people in {regions} regions")
    clock = build(Clock, answer.value("clock"), "clock")
    return _Met(people, regions, str(answer.value("regions_sha256")), clock)


def _agreed(met: Mapping[str, _Met]) -> tuple[Clock, int]:
    """Clock and number of regions, which must be the same everywhere."""
    first = met[min(met)]
    for site, one in sorted(met.items()):
        for name in ("clock", "regions", "regions_sha256"):
            if getattr(one, name) != getattr(first, name):
                raise DataError(
                    f"{site} has another city than {min(met)}: their "
                    f"{name.removesuffix('_sha256')} differ"
                )
    return first.clock, first.regions


def _numbers(met: Mapping[str, _Met], resumed: Checkpoint | None) -> dict[str, int]:
    """The number of each site's first person, which a run never changes."""
    if resumed is not None:
        told = resumed.remembered["first"]
        return {site: int(told[site]) for site in sorted(met) if site in told}
    first, numbers = 0, {}
    for site in sorted(met):
        numbers[site] = first
        first += met[site].people
    return numbers


def _read_tally(
    site: str, answer: Parcel, *, regions: int, clock: Clock, folds: int
) -> SiteTally:
    del site
    return tallies.unpack(dict(answer.tensors), regions, clock, folds)


def _read_moments(site: str, answer: Parcel) -> StateMoments:
    del site
    total, squared = (answer.tensor(name).numpy() for name in ("total", "squared"))
    people = answer.value("people")
    if not isinstance(people, int) or total.shape != squared.shape:
        raise DataError("sums of region states are not whole")
    if not (np.isfinite(total).all() and np.isfinite(squared).all()):
        raise DataError("sums of region states hold NaN or infinity")
    return StateMoments(people, total, squared)


def _read_scores(site: str, answer: Parcel) -> Floats | None:
    del site
    if "scores" not in answer.tensors:
        return None
    found: Floats = answer.tensor("scores").double().numpy()
    return found


def _nothing(site: str, answer: Parcel) -> None:
    """An answer that says no more than that all is well."""
