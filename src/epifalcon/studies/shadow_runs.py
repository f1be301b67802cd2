"""Shadow runs: train one method many times, each time on half of the tests.

Each run has its own seed and half of the tests; other people count as untested.
``attacks.membership`` infers membership and results from the scores of these runs.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.attacks import membership
from epifalcon.attacks.membership import Shadows
from epifalcon.checks import whole
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.checkpoints import require_same
from epifalcon.federation.network.site_files import digest
from epifalcon.federation.preparation import SiteData
from epifalcon.methods.base import Context
from epifalcon.methods.registry import entry, method_class
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.types import Mask, PersonIds

_KIND = "shadow-run"
_NAME = "shadow runs"
_SHARE = 0.5
"""Share of the tested people drawn for each run."""


@dataclass(frozen=True, eq=False)
class ShadowRuns:
    """The scores of tested people in all runs."""

    person: PersonIds
    """(people,) ids of the tested people, ascending."""
    infected: Mask
    """(people,) True for a positive test result."""
    shadows: Shadows
    """(runs, people) scores, and the people whose tests each run used."""


def run_shadows(
    folder: Path,
    traces: Traces,
    known: TestResults,
    method: str,
    settings: Any = None,  # noqa: ANN401
    *,
    runs: int = 16,
    context: Context | None = None,
    seed: int = 0,
) -> ShadowRuns:
    """Train ``method`` on half of the tests, ``runs`` times; store runs in ``folder``.

    Stored runs are loaded, so that a call can be resumed; runs of other data, settings
    or seed raise ``DataError``. ``seed`` determines all random draws;
    ``context.progress`` is called for each run.
    """
    whole(4, runs=runs)
    context = Context() if context is None else context
    known.require_people_of(traces)
    if entry(method).is_ceiling:
        raise SettingsError(f"{method} uses the ground truth: nothing to attack")
    person = np.flatnonzero(known.tested).astype(np.int32)
    if len(person) < 4:
        raise DataError(f"{len(person)} people were tested: too few to attack")
    estimator = method_class(method)
    own = estimator.settings_type() if settings is None else settings
    rates = map(as_plain, (traces.clock, context.pathogen, context.rule))
    identity = {
        "method": method,
        "settings": as_plain(own),
        "share": _SHARE,
        "data_sha256": digest(*rates, arrays=SiteData(traces, known).arrays),
    }
    score, included = [], []
    for number in range(runs):
        context.progress(_NAME, number, runs)
        rng = Streams(seed).numpy(f"shadow half {number}")
        count = min(max(1, round(_SHARE * len(person))), len(person) - 1)
        inside = np.zeros(known.people, np.bool_)
        inside[rng.choice(person, count, replace=False)] = True
        run_seed = Streams(seed).seed_for(f"shadow run {number}")
        origin = store.Origin.now(identity, run_seed)
        place = folder / f"run-{number:03d}"
        if not place.is_dir():
            quiet = replace(context, progress=silent, folder=None)
            fitted = estimator(settings, seed=run_seed)
            fitted.fit(traces, known.of_people(inside), quiet)
            risk = fitted.predict_proba()
            arrays = {"risk": risk[person], "included": inside[person]}
            with store.new_directory(place) as scratch:
                store.write(scratch, _KIND, arrays, meta={}, origin=origin)
        require_same(place, origin, exact=False)
        stored = store.read(place, _KIND).arrays
        if not np.array_equal(stored.get("included", ()), inside[person]):
            raise CorruptFileError(f"{place}: holds a run on other people's tests")
        score.append(np.array(stored["risk"]))
        included.append(inside[person])
    context.progress(_NAME, runs, runs)
    infected = known.status[person] == 1
    return ShadowRuns(person, infected, Shadows(np.stack(score), np.stack(included)))


def inferences(
    run: FinishedRun,
    settings: Any,  # noqa: ANN401
    runs: int,
    progress: Progress,
) -> list[Attack]:
    """Evaluate attacks that infer from risks who was tested, and the result."""
    if not runs:
        return []
    experiment = run.experiment
    context = Context(
        pathogen=experiment.believed_pathogen,
        rule=experiment.believed_rule,
        test_errors=experiment.labels.test_errors,
        progress=progress,
    )
    shadow_runs = run_shadows(
        run.place / "shadows",
        run.traces,
        run.known,
        run.method,
        settings,
        runs=runs,
        context=context,
        seed=run.seed,
    )
    inferred = membership.infer(shadow_runs.shadows, shadow_runs.infected)
    without = "the same without the own test: what others' tests reveal"
    attacks = []
    for name, what, summary in (
        ("membership from risks", "whose test was used", inferred.membership),
        ("result from risks", "a tested person's result", inferred.result),
        ("result from others' risks", without, inferred.result_without),
    ):
        auc = summary.auc
        attack = ranking(name, what, Interval(auc.mean, auc.low, auc.high))
        attacks.append(replace(attack, tpr_at_1_percent=summary.tpr.mean))
    return attacks


def ranking(name: str, what: str, auc: Interval) -> Attack:
    """Return an attack that ranks people; its error is 1 - AUC."""

    def wrong(value: float | None) -> float | None:
        return None if value is None else float(np.clip(1 - value, 0, 1))

    error, low, high = wrong(auc.estimate), wrong(auc.high), wrong(auc.low)
    return Attack(
        name=name, title=name, what=what, error=error, low=low, high=high, random=0.5
    )
