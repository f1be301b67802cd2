"""Risks of people and days that a run has not seen.

A forward pass of the trained model over their places and tests; the model must read
the known status (``model.input``), not an embedding of each person. With privacy that
pass is a release: its receipts are in the run's ledger before anything leaves.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.belief_propagation.calibration import current_given_ever, line_from
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.results import read_day_tests
from epifalcon.errors import BudgetExceededError, DataError, SettingsError
from epifalcon.experiments.explaining import load_field
from epifalcon.experiments.risks import Risks
from epifalcon.experiments.run_folder import PREDICTION, FinishedRun, tests_folder
from epifalcon.experiments.simulation import REPORTED, city_folder
from epifalcon.federation import preparing, training
from epifalcon.federation.checkpoints import spent_figures
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.preparing import Division, Household, cohort_of
from epifalcon.locks import alone
from epifalcon.methods.registry import entry
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest.visits import read_day_visits
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_model import DcrnnRegionModel, regions_sha256
from epifalcon.privacy.events import Release, UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN

_PARAMETER = "parameter/"


@dataclass(frozen=True, eq=False)
class Newcomers:
    """Where new people were, in a run's regions, and what tests told of them."""

    traces: Traces
    known: Known

    def __post_init__(self) -> None:
        self.known.require_people_of(self.traces)

    @classmethod
    def of(cls, traces: Traces, known: Known | None, like: Traces) -> "Newcomers":
        """Return people in the regions and slots of ``like``, the traces of a run.

        Regions must be the same, or be found there by their names and places.
        """
        if traces.clock.slot_minutes != like.clock.slot_minutes:
            raise DataError(
                f"slots of {traces.clock.slot_hours:g} hours, but the run learnt from "
                f"slots of {like.clock.slot_hours:g}: import with --slot-hours "
                f"{like.clock.slot_hours:g}"
            )
        if known is None:
            nobody = np.zeros(0, np.int32)
            known = Known(traces.people, nobody, np.zeros(0, np.bool_), nobody)
        return cls(_in_regions(traces, like.regions), known)

    @classmethod
    def read(cls, city: Path, known: Path | None, like: Traces) -> "Newcomers":
        """Read people of a city, import or run, and tests from ``known``."""
        reported = city / REPORTED
        place = reported if reported.is_dir() else city_folder(city)
        tests = None if known is None else Known.load(tests_folder(known))
        try:
            return cls.of(Traces.load(place), tests, like)
        except DataError as error:
            where = str(city) if known is None else f"{city} with tests of {known}"
            raise DataError(f"{where}: {error}") from None

    @classmethod
    def from_files(cls, visits: Path, tests: Path | None, like: Traces) -> "Newcomers":
        """Read (person, day, hour, region) and (person, day, result) from files."""
        traces = read_day_visits(visits, like.clock, like.regions)
        if tests is None:
            return cls.of(traces, None, like)
        told = read_day_tests(tests, like.clock)
        place = {name: at for at, name in enumerate(traces.names or ())}
        for name in told.name:
            if name not in place:
                raise DataError(f"{tests}: person {name!r} has no visit in {visits}")
        person = np.array([place[name] for name in told.name], np.int32)
        slot = told.slot.astype(np.int32)
        known = Known.from_tests(traces.people, person, told.positive, slot, traces.who)
        return cls(traces, known)

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return a fold by each tested person's own trace; -1 for others."""
        key = Streams(seed).seed_for("folds of new people").to_bytes(8)
        fold = np.full(self.traces.people, -1)
        for person in np.flatnonzero(self.known.tested):
            trace = self.traces.by_slot[:, person].tobytes()
            digest = hashlib.blake2b(trace, digest_size=8, key=key).digest()
            fold[person] = int.from_bytes(digest) % count
        return fold


@dataclass(frozen=True, eq=False)
class Scored:
    """Risks by one method, and what the run has spent on privacy so far."""

    method: str
    risks: Risks
    spent: dict[str, Any] | None
    """``spent_figures`` after a scoring; None where nothing was released."""


def score(
    run: FinishedRun, newcomers: Newcomers, progress: Progress = silent
) -> Scored:
    """Predict the risks of people and days that the run has not seen.

    A forward pass with the parameters of the best round. All tests of the newcomers
    are its input, so a tested person's risk includes the own test; region states are
    cross-fitted as in training. With privacy each call is a release with fresh noise,
    recorded first; ``BudgetExceededError`` if it exceeds the budget.
    """
    require_inductive(run)
    if entry(run.method).stores_state:
        return _score_at_home(run, newcomers)
    settings, traces = run.settings, newcomers.traces
    cohort = _cohort(run, newcomers, progress)
    plan = PrivacyPlan.for_run(settings, traces.clock)
    trained = training.best_model(run.place)
    seed, spent = run.seed, None
    if plan.is_private:
        seed, spent = _pay(run, plan, cohort)
    # With a ledger of its own: it lives for this one pass, which is paid for.
    engine = VectorisedEngine(cohort, settings.model, plan, seed)
    fresh = engine.state()
    tensors = {
        name: one
        for held, parameters in ((fresh.tensors, False), (trained, True))
        for name, one in held.items()
        if name.startswith(_PARAMETER) == parameters
    }
    engine.restore(replace(fresh, tensors=tensors))
    risks = Risks(engine.scores(fresh=True), newcomers.known.status, traces.names)
    return Scored(run.method, risks, spent)


def _score_at_home(run: FinishedRun, newcomers: Newcomers) -> Scored:
    """Predict the risk of each newcomer from what the run's places publish.

    Nothing leaves. Each is the only newcomer, in no sum, and adds one to each place.
    """
    field = load_field(run.place / PREDICTION)
    _require_days(newcomers.traces.clock, run.traces.clock)
    people = field.people(newcomers.traces, newcomers.known)
    received = field.messages_to_newcomers()
    people.end(received)
    now, tests = people.current_risk(received), newcomers.known
    figures = store.read(run.place / PREDICTION, PREDICTION).meta["told"]
    risk = line_from(figures)(people.risk)
    now_told = current_given_ever(now.aside, people.risk, risk)
    risks = Risks(
        risk,
        tests.status,
        newcomers.traces.names,
        now=now_told,
        now_tested=np.where(tests.tested, now.tested, now_told),
    )
    return Scored(run.method, risks, None)


def _require_days(clock: Clock, of_run: Clock) -> None:
    """Raise ``DataError`` where these are not the days that the field tells of."""
    if clock.days != of_run.days:
        raise DataError(
            f"traces of {clock.days} days, but the field tells of {of_run.days}: give "
            "the same days; later ones come with epifalcon update"
        )
    if None not in (clock.start, of_run.start) and clock.start != of_run.start:
        raise DataError(
            f"traces from {clock.start} on, but the field tells of {of_run.days} days "
            f"from {of_run.start} on: give the same days"
        )


def require_inductive(run: FinishedRun) -> None:
    """Raise ``SettingsError`` where the run's model cannot tell of other people."""
    listed, settings = entry(run.method), run.settings
    if listed.stores_state:
        return
    cases, why = settings.macro_cases, ""
    if not listed.trains_in_rounds:
        why = (
            "scores the people of its own run alone: run it on others with "
            f"epifalcon run --method {run.method} --city CITY --known KNOWN"
        )
    elif settings.model.input != "status":
        why = (
            f"was trained with model.input={settings.model.input!r}, a row for each "
            "person of the training: to score new people, train with --set "
            "model.input=status"
        )
    elif cases == "all":
        why = (
            "was trained with region.macro_cases='all', everybody's cases, hidden ones "
            "too, which nobody can know of new people: train with "
            "region.macro_cases=reported or none"
        )
    elif cases != "none" and settings.region.network.kind == "gru":
        why = (
            "was trained with region.network.kind='gru', which is not stored with a "
            "run: to score new people, train with region.network.kind=dcrnn"
        )
    if why:
        raise SettingsError(f"{run.folder}: {run.method} {why}")


def _cohort(run: FinishedRun, newcomers: Newcomers, progress: Progress) -> Cohort:
    """Return the new people as they enter a forward pass of the run's model."""
    settings, traces = run.settings, newcomers.traces
    task = training.Task(run.traces, run.known, settings, run.seed)
    around = training.surrounding(task, None, progress)
    home = Household(traces, newcomers.known)
    fold = newcomers.folds(settings.region.folds, run.seed)
    division = Division(np.zeros(0, np.int32), newcomers.known, fold)
    if settings.uses_region_model:
        features = preparing.RegionFeatures.load(run.place / preparing.FEATURES)
        model = DcrnnRegionModel.load(
            run.place / preparing.FEATURES / training.REGION, traces.regions
        )
        cases = settings.region.cases
        tally = preparing.count_tally(home, division, settings)
        states = [
            model.states(one) for one in preparing.histories(tally, traces.clock, cases)
        ]
        around = replace(around, states=np.stack(states), scaling=features.scaling)
    rng = RunSeeds(run.seed).pseudo(0)
    return cohort_of(home, division, settings, around, rng, progress)


def _pay(
    run: FinishedRun, plan: PrivacyPlan, cohort: Cohort
) -> tuple[int, dict[str, Any]]:
    """Enter a scoring into the run's ledger; its seed, and what is spent by then.

    The seed is made from the ledger and from all that is scored, so that no
    noise ever covers two values, not even in two copies of a run's folder.
    """
    with alone(run.folder):
        ledger = Ledger.open(run.ledger, budget=plan.budget)
        seed = Streams(run.seed).seed_for(f"scoring {ledger.head} {_digest(cohort)}")
        number = 1 + max((one.terms.round for one in ledger.releases), default=-1)
        # Places and counts once more, and the rows.
        made = [*plan.opening(), *plan.scoring_receipts(number)]
        if cohort.state is not None:
            terms = plan.terms("region model", number)
            what = "cases by region and day, and flows"
            made.append(UnprotectedRelease(terms=terms, what=what))
        try:
            ledger.record(*(_in_round(one, number) for one in made))
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"{error}. Room for scorings of new people is left by training with "
                "privacy.scorings"
            ) from None
        store.seal(run.folder, run.ledger)
    return seed, spent_figures(plan.mode, ledger)


def _in_round(release: Release, number: int) -> Release:
    return replace(release, terms=replace(release.terms, round=number))


def _digest(cohort: Cohort) -> str:
    """The fingerprint of all that a forward pass would send."""
    inc, digest = cohort.incidence, hashlib.sha256()
    arrays = [cohort.status, inc.edge_key, inc.size, inc.by_edge.index]
    if cohort.state is not None:
        arrays.append(cohort.state.numpy())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _in_regions(traces: Traces, regions: Regions) -> Traces:
    """Return the same places under the numbers that they have among ``regions``."""
    by_slot = traces.by_slot
    if regions_sha256(traces.regions) != regions_sha256(regions):
        number = _numbers(traces.regions, regions)
        visited = np.zeros(len(number) + 1, np.bool_)
        for row in by_slot:
            visited[row] = True
        strange = np.flatnonzero(visited[:-1] & (number == UNKNOWN))
        if len(strange):
            raise DataError(
                f"people were in {len(strange):,} of its {len(traces.regions):,} "
                f"regions, such as {traces.regions.name(int(strange[0]))!r}, which are "
                f"none of the run's {len(regions):,} regions or lie elsewhere: a model "
                "of one city cannot tell of another"
            )
        # -1, not observed, finds the entry at the end.
        by_slot = np.append(number, np.int32(UNKNOWN))[by_slot]
    return Traces(by_slot, traces.clock, regions, traces.names)


def _numbers(own: Regions, among: Regions) -> NDArray[np.int32]:
    """Return the number of each region among others, by name and place; -1 for none."""
    if own.names is None or among.names is None:
        return np.full(len(own), UNKNOWN, np.int32)
    place = {name: number for number, name in enumerate(among.names)}
    number = np.array([place.get(name, UNKNOWN) for name in own.names], np.int32)
    here, there = own.lonlat, among.lonlat
    if here is None or there is None:
        here, there = own.centre_km, among.centre_km
    same = np.isclose(here, there[number], rtol=0, atol=1e-9, equal_nan=True)
    return np.where(same.all(axis=1), number, np.int32(UNKNOWN))
