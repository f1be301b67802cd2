"""Shadow runs: train one method many times, each time on half of the tests.

Each run has its own seed and half of the tests; other people count as untested.
``attacks.membership`` infers membership and results from the scores of these runs.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.attacks import membership
from epifalcon.attacks.membership import Shadows
from epifalcon.checks import whole
from epifalcon.errors import DataError
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.checkpoints import require_same
from epifalcon.federation.network.site_files import digest
from epifalcon.federation.preparation import SiteData
from epifalcon.methods.base import Context
from epifalcon.methods.registry import method_class
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack
from epifalcon.settings import as_plain
from epifalcon.streams import Streams, derived_secret

_KIND = "shadow-run"
_NAME = "shadow runs"
_SHARE = 0.5
"""Share of the tested people drawn for each run."""


def run_shadows(
    run: FinishedRun,
    settings: Any,  # noqa: ANN401
    runs: int,
    context: Context,
) -> Shadows:
    """Train the method of ``run`` on half of the tests, ``runs`` times.

    Returns the scores of tested people. Stored runs are loaded, so that a call can be
    resumed; runs of other data, settings or seed raise ``DataError``.
    """
    whole(4, runs=runs)
    traces, known, seed = run.traces, run.known, run.seed
    person = np.flatnonzero(known.tested).astype(np.int32)
    if len(person) < 4:
        raise DataError(f"{len(person)} people were tested: too few to attack")
    estimator = method_class(run.method)
    rates = map(as_plain, (traces.clock, context.pathogen, context.rule))
    identity = {
        "method": run.method,
        "settings": as_plain(settings),
        "share": _SHARE,
        "data_sha256": digest(*rates, arrays=SiteData(traces, known).arrays),
    }
    score, included = [], []
    for number in range(runs):
        context.progress(_NAME, number, runs)
        rng = Streams(seed).numpy(f"shadow half {number}")
        chosen = rng.choice(person, round(_SHARE * len(person)), replace=False)
        inside = np.isin(np.arange(known.people), chosen)
        run_seed = Streams(seed).seed_for(f"shadow run {number}")
        origin = store.Origin.now(identity, run_seed)
        place = run.place / "shadows" / f"run-{number:03d}"
        if not place.is_dir():
            secret = context.secret
            if secret is not None:
                secret = derived_secret(secret, f"shadow run {number}")
            quiet = replace(context, progress=silent, folder=None, secret=secret)
            fitted = estimator(settings, seed=run_seed)
            fitted.fit(traces, known.of_people(inside), quiet)
            risk = fitted.predict_proba()
            arrays = {"risk": risk[person], "included": inside[person]}
            with store.new_directory(place) as scratch:
                store.write(scratch, _KIND, arrays, meta={}, origin=origin)
        require_same(place, origin, exact=False)
        score.append(np.array(store.read(place, _KIND).arrays["risk"]))
        included.append(inside[person])
    context.progress(_NAME, runs, runs)
    return Shadows(np.stack(score), np.stack(included))


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
        tested_because=experiment.labels.tested_because,
        progress=progress,
        secret=run.secret,
        insecure_seed=run.insecure_seed,
    )
    shadows = run_shadows(run, settings, runs, context)
    inferred = membership.infer(shadows, run.known.status[run.known.tested] == 1)
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
    error, low, high = (
        None if value is None else float(np.clip(1 - value, 0, 1))
        for value in (auc.estimate, auc.high, auc.low)
    )
    return Attack(
        name=name, title=name, what=what, error=error, low=low, high=high, random=0.5
    )
