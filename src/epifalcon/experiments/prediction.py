"""Prediction for people and days that were not part of a run.

A forward pass of the trained model over their traces and tests. The model must read
the known status (``model.input``), not an embedding per person. With privacy the pass
is a release: its receipts are recorded in the run's ledger first.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.belief_propagation.calibration import current_given_ever, line_from
from epifalcon.epidemic.risk_table import Risks
from epifalcon.epidemic.test_kinds import EVER, TestKind
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import BudgetExceededError, DataError, SettingsError
from epifalcon.experiments.explanation import load_field
from epifalcon.experiments.import_format import ImportFormat, notes_on_visits
from epifalcon.experiments.run_folder import PREDICTION, FinishedRun
from epifalcon.experiments.simulation import CITY, KNOWN, REPORTED, find_folder
from epifalcon.federation import preparation, training
from epifalcon.federation.checkpoints import privacy_spent
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.preparation import SiteData, ValidationSplit, cohort_of
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.locks import lock_folder
from epifalcon.methods.registry import entry
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_model import DcrnnRegionModel, regions_sha256
from epifalcon.privacy.events import UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams, derived_secret
from epifalcon.types import UNKNOWN

_PARAMETER = "parameter/"


@dataclass(frozen=True, eq=False)
class NewPeople:
    """Traces of new people, in the regions of a run, and their test results."""

    traces: Traces
    known: TestResults
    notes: tuple[str, ...] = ()
    """Sentences on rows and slots of files that are not used."""

    def __post_init__(self) -> None:
        self.known.require_people_of(self.traces)

    @classmethod
    def of(cls, traces: Traces, known: TestResults | None, like: Traces) -> "NewPeople":
        """Return people in the regions and slots of ``like``, the traces of a run.

        Regions must be the same, or match by name and location.
        """
        if traces.clock.slot_minutes != like.clock.slot_minutes:
            raise DataError(
                f"the traces have slots of {traces.clock.slot_hours:g} hours, but the "
                f"run has {like.clock.slot_hours:g} hours: import with --slot-hours "
                f"{like.clock.slot_hours:g}"
            )
        if known is None:
            nobody = np.zeros(0, np.int32)
            known = TestResults(traces.people, nobody, np.zeros(0, np.bool_), nobody)
        return cls(_in_regions(traces, like.regions), known)

    @classmethod
    def read(cls, city: Path, known: Path | None, like: Traces) -> "NewPeople":
        """Read people of a city, import or run, and tests from ``known``."""
        traces = Traces.load(find_folder(city, REPORTED, CITY))
        tests = None
        if known is not None:
            tests = TestResults.load(find_folder(known, KNOWN))
        try:
            return cls.of(traces, tests, like)
        except DataError as error:
            where = str(city) if known is None else f"{city} with tests of {known}"
            raise DataError(f"{where}: {error}") from None

    @classmethod
    def from_files(
        cls,
        visits: Path,
        tests: Path | None,
        like: Traces,
        files: ImportFormat,
        kind: TestKind = EVER,
    ) -> "NewPeople":
        """Read visits and tests like those of the import, or by number of the day.

        ``kind`` is the kind of tests if neither file nor import name one.
        """
        found = files.read_visits(visits, like.clock, like.regions)
        traces, notes = found.traces, notes_on_visits(visits, found)
        if tests is None:
            return replace(cls.of(traces, None, like), notes=notes)
        results = files.read_tests(tests, like.clock, kind)
        index = {name: row for row, name in enumerate(traces.names or ())}
        for name in results.names:
            if name not in index:
                raise DataError(f"{tests}: person {name!r} has no visit in {visits}")
        number = np.array([index[name] for name in results.names], np.int32)
        known = results.tests.renumbered(number, traces.people)
        known = replace(known, names_sha256=traces.names_sha256)
        return cls(traces, known, notes + files.notes_on_tests(tests, results))

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the fold of each tested person, a hash of the trace; -1 for others."""
        key = Streams(seed).seed_for("folds of new people").to_bytes(8)
        fold = np.full(self.traces.people, -1)
        for person in np.flatnonzero(self.known.tested):
            trace = self.traces.by_slot[:, person].tobytes()
            digest = hashlib.blake2b(trace, digest_size=8, key=key).digest()
            fold[person] = int.from_bytes(digest) % count
        return fold


@dataclass(frozen=True, eq=False)
class Scored:
    """Risks of new people, and the privacy spent by the run so far."""

    risks: Risks
    spent: dict[str, Any] | None
    """``privacy_spent`` after the scoring; None if nothing was released."""


def score(
    run: FinishedRun, new_people: NewPeople, progress: Progress = silent
) -> Scored:
    """Predict the risks of people and days that were not part of the run.

    A forward pass with the parameters of the best round. All tests of the new people
    are inputs, so the risk of a tested person includes the own test; region states are
    cross-fitted as in training. With privacy each call is a release with fresh noise,
    recorded first; ``BudgetExceededError`` if it exceeds the budget.
    """
    require_inductive(run)
    scored = _score(run, new_people, progress)
    mark = run.simulated_on_real_people
    return replace(scored, risks=replace(scored.risks, simulated_on_real_people=mark))


def _score(run: FinishedRun, new_people: NewPeople, progress: Progress) -> Scored:
    if entry(run.method).stores_state:
        return _score_locally(run, new_people)
    settings, traces = run.settings, new_people.traces
    cohort = _cohort(run, new_people, progress)
    plan = PrivacyPlan.for_run(settings, traces.clock)
    trained = training.best_model(run.place)
    seeds, spent = RunSeeds(run.seed), None
    if plan.is_private:
        seeds, spent = _record_scoring(run, plan, cohort)
    # The engine has its own, temporary ledger: the pass is already recorded.
    engine = VectorisedEngine(
        cohort, settings.model, plan, seeds.seed, secret=seeds.secret
    )
    fresh = engine.state()
    people = {k: v for k, v in fresh.tensors.items() if not k.startswith(_PARAMETER)}
    learnt = {k: v for k, v in trained.items() if k.startswith(_PARAMETER)}
    engine.restore(replace(fresh, tensors=people | learnt))
    status, coverage = new_people.known.status, TraceCoverage.of(traces)
    risks = Risks(engine.scores(fresh=True), status, traces.names, coverage=coverage)
    return Scored(risks, spent)


def _score_locally(run: FinishedRun, new_people: NewPeople) -> Scored:
    """Predict the risk of each new person from the published field of the run.

    Nothing is uploaded. Each is scored as the only new person: one more per edge.
    """
    field = load_field(run.place / PREDICTION)
    traces = _on_days(new_people.traces, run.traces)
    people = field.people(traces, new_people.known)
    received = field.messages_to_new_people()
    people.end(received)
    now, tests = people.current_risk(received), new_people.known
    diagnostics = store.read(run.place / PREDICTION, PREDICTION).meta["told"]
    risk = line_from(diagnostics)(people.risk)
    now_recalibrated = current_given_ever(now.without_tests, people.risk, risk)
    risks = Risks(
        risk,
        tests.status,
        new_people.traces.names,
        now=now_recalibrated,
        now_tested=np.where(tests.tested, now.tested, now_recalibrated),
        coverage=TraceCoverage.of(new_people.traces, field.graph.present),
    )
    return Scored(risks, None)


def _on_days(traces: Traces, of_run: Traces) -> Traces:
    """Return the traces on the days of the run, which can have more for later tests."""
    if of_run.observed_days <= traces.clock.days < of_run.clock.days:
        traces = traces.with_days(of_run.clock.days)
    _require_days(traces.clock, of_run.clock)
    return traces


def _require_days(clock: Clock, of_run: Clock) -> None:
    """Raise ``DataError`` unless these are the days that the field covers."""
    if clock.days != of_run.days:
        raise DataError(
            f"the traces cover {clock.days} days, but the run covers {of_run.days}: "
            "select the same days, or add later days with epifalcon update"
        )
    if None not in (clock.start, of_run.start) and clock.start != of_run.start:
        raise DataError(
            f"the traces start on {clock.start}, but the run starts on "
            f"{of_run.start}: select the same {of_run.days} days"
        )


def require_inductive(run: FinishedRun) -> None:
    """Raise ``SettingsError`` if the run's model cannot score other people."""
    listed, settings = entry(run.method), run.settings
    if listed.stores_state:
        return
    cases, why = settings.macro_cases, ""
    if not listed.trains_in_rounds:
        why = (
            "scores only the people of its own run: run it on others with "
            f"epifalcon run --method {run.method} --city CITY --known KNOWN"
        )
    elif settings.model.input != "status":
        why = (
            f"was trained with model.input={settings.model.input!r}, one embedding per "
            "training person: to score new people, train with --set model.input=status"
        )
    elif cases == "all":
        why = (
            "was trained with region.macro_cases='all', which includes the cases of "
            "hidden people; these are unknown for new people: train with "
            "region.macro_cases=reported or none"
        )
    elif cases != "none" and settings.region.network.kind == "gru":
        why = (
            "was trained with region.network.kind='gru', which is not stored with a "
            "run: to score new people, train with region.network.kind=dcrnn"
        )
    if why:
        raise SettingsError(f"{run.folder}: {run.method} {why}")


def _cohort(run: FinishedRun, new_people: NewPeople, progress: Progress) -> Cohort:
    """Return the new people as input of a forward pass of the run's model."""
    settings, traces = run.settings, new_people.traces
    task = training.TrainingTask(run.traces, run.known, settings, run.seed)
    shared = training.shared_statistics(task, None, progress)
    people = SiteData(traces, new_people.known)
    fold = new_people.folds(settings.region.folds, run.seed)
    split = ValidationSplit(np.zeros(0, np.int32), new_people.known, fold)
    if settings.uses_region_model:
        features = preparation.RegionFeatures.load(run.place / preparation.FEATURES)
        model = DcrnnRegionModel.load(
            run.place / preparation.FEATURES / training.REGION, traces.regions
        )
        cases = settings.region.cases
        tally = preparation.count_tally(people, split, settings)
        states = [
            model.states(history)
            for history in preparation.histories(tally, traces.clock, cases)
        ]
        shared = replace(shared, states=np.stack(states), scaling=features.scaling)
    rng = RunSeeds(run.seed, run.secret).pseudo(0)
    return cohort_of(people, split, settings, shared, rng, progress)


def _record_scoring(
    run: FinishedRun, plan: PrivacyPlan, cohort: Cohort
) -> tuple[RunSeeds, dict[str, Any]]:
    """Record a scoring in the run's ledger; return its streams and the privacy spent.

    The streams are derived from the ledger and from everything scored, so that no noise
    covers two values, not even in two copies of a run folder.
    """
    with lock_folder(run.folder), run.guarded():
        record = SpendingRecord.of_user(run.secret)
        ledger = Ledger.open(run.ledger, budget=plan.budget, record=record)
        name = f"scoring {ledger.head} {_digest(cohort)}"
        seed = Streams(run.seed).seed_for(name)
        secret = None if run.secret is None else derived_secret(run.secret, name)
        number = 1 + max((item.terms.round for item in ledger.releases), default=-1)
        # Places and counts are released again, and the rows.
        receipts = [
            replace(one, terms=replace(one.terms, round=number))
            for one in plan.opening()
        ]
        receipts += plan.scoring_receipts(number)
        if cohort.state is not None:
            terms = plan.terms("region model", number)
            what = "cases by region and day, and flows"
            receipts.append(UnprotectedRelease(terms=terms, what=what))
        try:
            ledger.record(*receipts)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"{error}. Train with privacy.scorings to reserve budget for scoring "
                "new people"
            ) from None
        store.seal(run.data, run.ledger)
    return RunSeeds(seed, secret), privacy_spent(plan.mode, ledger)


def _digest(cohort: Cohort) -> str:
    """Return a digest of everything that a forward pass would send."""
    inc, digest = cohort.incidence, hashlib.sha256()
    arrays = [cohort.status, inc.edge_key, inc.size, inc.by_edge.index]
    if cohort.state is not None:
        arrays.append(cohort.state.numpy())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _in_regions(traces: Traces, regions: Regions) -> Traces:
    """Return the traces with regions renumbered as in ``regions``."""
    by_slot = traces.by_slot
    if regions_sha256(traces.regions) != regions_sha256(regions):
        number = _numbers(traces.regions, regions)
        visited = np.unique(by_slot[by_slot != UNKNOWN])
        unknown = visited[number[visited] == UNKNOWN]
        if len(unknown):
            example = traces.regions.title(int(unknown[0]))
            raise DataError(
                f"people were in {len(unknown):,} of its {len(traces.regions):,} "
                f"regions, such as {example!r}, which are "
                f"not among the run's {len(regions):,} regions or have another "
                "location: a model cannot predict for another city"
            )
        # -1 (not observed) indexes the last entry.
        by_slot = np.append(number, np.int32(UNKNOWN))[by_slot]
    return Traces(by_slot, traces.clock, regions, traces.names)


def _numbers(own: Regions, among: Regions) -> NDArray[np.int32]:
    """Return each region's number in ``among``, by name and location; -1 if missing."""
    if own.names is None or among.names is None:
        return np.full(len(own), UNKNOWN, np.int32)
    index = {name: number for number, name in enumerate(among.names)}
    number = np.array([index.get(name, UNKNOWN) for name in own.names], np.int32)
    here, there = own.lonlat, among.lonlat
    if here is None or there is None:
        here, there = own.centre_km, among.centre_km
    same = np.isclose(here, there[number], rtol=0, atol=1e-9, equal_nan=True)
    return np.where(same.all(axis=1), number, np.int32(UNKNOWN))
