"""The risks of people and days that a run has never seen.

The run's own people have the scores that its training ended with
(``FinishedRun.risks``). New people, and new days, need a forward pass of the
trained model over their places. Their tests are its input, so the model must
read the known status (``model.input``), not an embedding that only people of
the training have. With privacy that pass is a release: its receipts stand in
the run's ledger before anything leaves.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epifalcon import store
from epifalcon.epidemic.splits import without
from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import EngineState
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.preparing import StateScaling, hypergraph, state_by_fold
from epifalcon.federation.spending import spent_figures
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models import region_store
from epifalcon.models.states import FoldHistories
from epifalcon.privacy.events import Release, UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.studies.features import Features, Task, pseudo_places
from epifalcon.studies.field_newcomers import score_at_home
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.fitting import best_model
from epifalcon.studies.method_folder import FEATURES, REGION
from epifalcon.studies.methods import FALCONS, FIELD
from epifalcon.studies.newcomers import Newcomers
from epifalcon.studies.risks import Risks, Scored
from epifalcon.studies.run_folder import alone

_PARAMETER = "parameter/"


def score(
    run: FinishedRun, newcomers: Newcomers, progress: Progress = silent
) -> Scored:
    """The risks of people and days that the run has not seen.

    A forward pass with the parameters of the best round. Every test in
    ``newcomers.known`` is shown to it, so a tested person's risk also says what
    its own test said; the region state is cross-fitted as in training, so that
    no test comes back to its person by way of the region's cases. Without
    privacy the same people always get the same risks, in whichever order they
    stand. With it each call is a release with fresh noise, recorded first, and
    a ``BudgetExceededError`` where the budget does not hold it.
    """
    require_inductive(run)
    if run.method == FIELD:
        return score_at_home(run, newcomers)
    settings, traces = run.settings, newcomers.traces
    incidence = hypergraph(traces, settings)
    features = Features.load(run.place / FEATURES)
    training = without(run.known, features.held_back)
    state = _state(run, features.scaling, newcomers, incidence)
    task = Task(run.traces, run.known, settings, run.seed)
    pseudo = pseudo_places(task, training, progress, traces)
    people = np.arange(traces.people, dtype=np.int64)
    cohort = Cohort(people, incidence, newcomers.known.status, state, pseudo)
    releases = releases_of(traces.clock)
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases, len(pseudo))
    trained = best_model(run.place)
    seed, spent = run.seed, None
    if plan.mode != "off":
        seed, spent = _pay(run, plan, cohort)
    # With a ledger of its own: it lives for this one pass, which is paid for.
    engine = VectorisedEngine(cohort, settings.model, plan, seed)
    engine.restore(_with_parameters(engine.state(), trained))
    risks = Risks(engine.scores(fresh=True), newcomers.known.status, traces.names)
    return Scored(run.method, risks, spent)


def require_inductive(run: FinishedRun) -> None:
    """Raise ``SettingsError`` where the run's model cannot tell of other people."""
    told = f"{run.folder}: {run.method}"
    if run.method == FIELD:
        return
    if run.method not in FALCONS:
        raise SettingsError(
            f"{told} scores the people of its own run alone: run it on others with "
            f"epifalcon run --method {run.method} --city CITY --known KNOWN"
        )
    if run.settings.model.input != "status":
        raise SettingsError(
            f"{told} was trained with model.input={run.settings.model.input!r}, a row "
            "for each person of the training: to score new people, train with "
            "--set model.input=status"
        )
    if run.settings.macro_cases == "all":
        raise SettingsError(
            f"{told} was trained with region.macro_cases='all', everybody's cases, "
            "hidden ones too, which nobody can know of new people: train with "
            "region.macro_cases=reported or none"
        )
    if run.settings.macro_cases != "none" and run.settings.region.network.kind == "gru":
        raise SettingsError(
            f"{told} was trained with region.network.kind='gru', which is not stored "
            "with a run: to score new people, train with region.network.kind=dcrnn"
        )


def _state(
    run: FinishedRun,
    scaling: StateScaling | None,
    newcomers: Newcomers,
    incidence: Incidence,
) -> Tensor | None:
    """The region state of each new person, as the run's region model sees it."""
    if scaling is None:
        return None
    traces, folds = newcomers.traces, run.settings.region.folds
    model = region_store.load(run.place / FEATURES / REGION, traces.regions)
    fold = newcomers.folds(folds, run.seed)
    cases = run.settings.region.cases
    told = FoldHistories.of(newcomers.known, traces, fold, cases)
    own = [model.states(one) for one in told.others]
    state = state_by_fold(model.states(told.whole), own, fold, incidence, traces)
    return torch.from_numpy(scaling.apply(state))


def _with_parameters(fresh: EngineState, trained: dict[str, Tensor]) -> EngineState:
    """The state of a new engine with the parameters of a trained one."""
    tensors = {
        name: one
        for name, one in fresh.tensors.items()
        if not name.startswith(_PARAMETER)
    }
    tensors |= {
        name: one for name, one in trained.items() if name.startswith(_PARAMETER)
    }
    return replace(fresh, tensors=tensors)


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
        try:
            ledger.record(*_receipts(plan, number, cohort))
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"{error}. Room for scorings of new people is left by training with "
                "privacy.scorings"
            ) from None
        store.seal(run.folder, run.ledger)
    return seed, spent_figures(plan.mode, ledger)


def _receipts(plan: PrivacyPlan, number: int, cohort: Cohort) -> list[Release]:
    """What leaves in a scoring: places and counts once more, and the rows."""
    made = [*plan.opening(), *plan.scoring_receipts(number)]
    if cohort.state is not None:
        terms = plan.terms("region model", number)
        what = "cases by region and day, and flows"
        made.append(UnprotectedRelease(terms=terms, what=what))
    return [replace(one, terms=replace(one.terms, round=number)) for one in made]


def _digest(cohort: Cohort) -> str:
    """The fingerprint of all that a forward pass would send."""
    inc, digest = cohort.incidence, hashlib.sha256()
    arrays = [cohort.status, inc.edge_key, inc.size, inc.by_edge.index]
    if cohort.state is not None:
        arrays.append(cohort.state.numpy())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
