"""Falcon Field rehearsed on one machine: a real server, real sites, one comparison.

Both runs deal tested people into folds by seed and person, as sites must; the method
in one process (``baselines.falcon_field``) deals them evenly instead.
"""

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from epifalcon.checks import whole
from epifalcon.federation.field.course import Course, Gathered, Setting
from epifalcon.federation.field.home import FieldHome
from epifalcon.federation.field.task import METHOD, FieldOrder, FieldTask
from epifalcon.federation.nvflare.falcon_field import CLASSES, job_of
from epifalcon.federation.plan import RunSeeds
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.coordinating import Conduct
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.rehearsing import (
    RUN,
    Dealt,
    Rehearsed,
    deal_out,
    federated,
    scores_in,
)
from epifalcon.types import Probabilities


@dataclass(frozen=True, kw_only=True)
class FieldRehearsal:
    """What is to be rehearsed."""

    experiment: Experiment
    seed: int = 0
    sites: int = 4
    rules: SiteRules = field(default_factory=SiteRules)
    most_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        whole(1, sites=self.sites)

    @property
    def order(self) -> FieldOrder:
        """What the server asks of its sites."""
        return order_of(self.experiment, self.rules, self.seed)


def order_of(experiment: Experiment, rules: SiteRules, seed: int) -> FieldOrder:
    """What an experiment asks of sites: the disease as methods are told of it."""
    task = FieldTask.of(
        experiment.settings_of(METHOD),
        experiment.believed_pathogen,
        experiment.believed_rule,
        experiment.labels.test_errors,
    )
    return FieldOrder(settings=task, rules=rules, seed=seed)


def rehearse_field(
    wanted: FieldRehearsal, folder: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Carry it out in ``folder``, which must be empty; the figures of both runs."""
    order = wanted.order
    dealt = deal_out(wanted.experiment, wanted.seed, wanted.sites, progress)
    conduct = as_plain(Conduct(scores=True))
    job = job_of(RUN, as_plain(order), conduct, wanted.sites)
    rehearsed = Rehearsed(job, CLASSES, wanted.seed, wanted.most_seconds)
    summary, place = federated(rehearsed, dealt, folder, progress)
    scores = scores_in(place, dealt)
    alone, seconds = _in_process(order, dealt, progress)
    rounds = max(summary["rounds"], 1)
    return {
        "method": METHOD,
        "sites": wanted.sites,
        "rounds": summary["rounds"],
        "people": dealt.people,
        "mode": order.settings.mode,
        "law": summary["law"],
        "uploads": "sums",
        "seconds_per_round": summary["seconds_per_round"],
        "in_process_seconds_per_round": seconds / rounds,
        "bytes_per_round": (summary["bytes_sent"] + summary["bytes_received"]) / rounds,
        "site_share": summary["site_seconds"] / max(summary["call_seconds"], 1e-9),
        "max_difference_to_in_process": float(np.abs(scores - alone).max()),
        **dealt.judged(wanted.experiment, scores, alone),
        "epsilon": summary["epsilon"],
        "troubles": summary["sites"]["troubles"],
    }


def _in_process(
    order: FieldOrder, dealt: Dealt, progress: Progress
) -> tuple[Probabilities, float]:
    """Risks by the same run without any message, and its seconds."""
    task, seed = order.settings, order.seed
    noise = RunSeeds(seed).noise
    together = Gathered([FieldHome(home, task, seed, noise) for home in dealt.homes])
    traces = dealt.homes[0].traces
    setting = Setting(dealt.people, traces.clock, traces.regions)
    began = perf_counter()
    Course(
        together,
        task,
        setting,
        lambda done, planned: progress("in one process", done, planned),
    ).go()
    return together.risk, perf_counter() - began
