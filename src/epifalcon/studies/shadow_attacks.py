"""Attacks on risks by shadow runs of a finished run's method, judged: for audits."""

from dataclasses import replace
from typing import Any

from epifalcon.baselines.method import Scene
from epifalcon.evaluation.attacks import membership
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.progress import Progress
from epifalcon.studies.diagnosing import ranking
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.privacy_card import Attack
from epifalcon.studies.shadow_runs import Attacked, ShadowSettings, run_shadows

_SHADOWS = "shadows"


def inferences(
    run: FinishedRun,
    settings: Any,  # noqa: ANN401
    runs: int,
    progress: Progress,
) -> list[Attack]:
    """What the risks that people are told give away of who was tested, and how.

    ``settings`` are those of the run's method; none are tried without ``runs``.
    """
    if not runs:
        return []
    experiment = run.experiment
    scene = Scene(
        traces=run.traces,
        seed=run.seed,
        pathogen=experiment.believed_pathogen,
        rule=experiment.believed_rule,
        test_errors=experiment.labels.test_errors,
        progress=progress,
    )
    made = run_shadows(
        run.place / _SHADOWS,
        scene,
        run.known,
        Attacked(run.method, settings),
        ShadowSettings(runs=runs),
    )
    found = membership.infer(made.shadows, made.infected)
    return [
        _inferred(
            "membership from risks", "whose test was learnt from", found.membership
        ),
        _inferred("result from risks", "a tested person's result", found.result),
        _inferred(
            "result from others' risks",
            "the same where the own test was left out: what others' tests tell",
            found.result_without,
        ),
    ]


def _inferred(name: str, what: str, found: membership.Figures) -> Attack:
    auc, tpr = found.auc, found.tpr
    made = ranking(name, what, Interval(auc.mean, auc.low, auc.high, auc.level))
    return replace(made, tpr_at_1_percent=tpr.mean)
