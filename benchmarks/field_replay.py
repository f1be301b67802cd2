"""Daily updates of Falcon Field against a new run per day: 40 days, three outbreaks.

Also reports the difference of the last day's risks to those of one run over all days,
and the AUC of both on hidden people.
"""

import json
import sys
from typing import Any

import numpy as np

from benchmarks.measuring import run_in_subprocess, timed
from epifalcon.belief_propagation.inference import ChainCohort
from epifalcon.belief_propagation.saved_state import SavedField
from epifalcon.belief_propagation.settings import (
    FieldSettings,
    TransmissionSettings,
    WindowSettings,
)
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.test_results import TestResults
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import Epidemic, make_city, run_epidemics
from epifalcon.federation.field.inference_schedule import run_in_process
from epifalcon.federation.field.settings import FalconFieldSettings, FieldTask
from epifalcon.federation.field.sliding_window import FieldWindow, NewDay
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Probabilities

_DAYS, _FIRST_DAYS, _CONVERGED_SWEEPS = 40, 7, 60
_OVERRIDES = (
    "city.people=1000",
    "city.regions=200",
    f"city.days={_DAYS}",
    "labels.test_days=[0,39]",
    "outbreak.kappa=0.6",
    "outbreak.seed_count=15",
)
_SEEDS, _WINDOWS = (200, 201, 202), (40, 28, 21, 14)


def run() -> dict[str, Any]:
    """Seconds of a daily update and of a new run, and the loss of accuracy."""
    found: dict[str, Any] = run_in_subprocess("field_replay", "hamlet")
    return found


class _World:
    """One outbreak, its tests on the days they were taken, and its truth."""

    def __init__(self, preset: str, seed: int) -> None:
        self.settings = settings = Experiment.load(preset, list(_OVERRIDES))
        self.traces = make_city(settings, seed)
        self.epidemic: Epidemic = next(run_epidemics(settings, self.traces, seed))
        self.known = self.epidemic.labels.known
        self.per_day = self.traces.clock.slots_per_day
        self.transmission = Transmission("fixed", TransmissionSettings())

    def tests(self, begin: int, end: int) -> TestResults:
        """Return the tests of the slots from ``begin`` to ``end``."""
        known, chosen = self.known, (self.known.slot >= begin) & (self.known.slot < end)
        return TestResults(
            known.people,
            known.person[chosen],
            known.positive[chosen],
            known.slot[chosen],
        )

    def batch(
        self, days: int, sweeps: int
    ) -> tuple[ChainCohort, TestResults, SavedField]:
        """Run once on the first ``days`` days."""
        end = days * self.per_day
        clock = Clock(self.traces.clock.slot_hours, days)
        by_slot = self.traces.by_slot[:end].copy()
        traces, known = Traces(by_slot, clock, self.traces.regions), self.tests(0, end)
        region = TransmissionSettings(transmission="fixed")
        field = FieldSettings(sweeps=sweeps, folds=0, region=region)
        task = FieldTask(
            settings=FalconFieldSettings(field=field),
            pathogen=self.settings.pathogen,
            rule=self.settings.outbreak,
        )
        site, schedule = run_in_process(task, traces, known, seed=0)
        state = schedule.result.state
        assert state is not None
        return (
            site.cohort,
            known,
            SavedField(schedule.graph, state.sums, state.factor, site.rates),
        )

    def replayed(self, days: int) -> FieldWindow:
        """Update by day in a window of ``days`` days."""
        initial = self.batch(min(days, _FIRST_DAYS), FieldSettings().sweeps)
        size = WindowSettings(days=days)
        window = FieldWindow.of_run(*initial, FieldSettings(), size, self.transmission)
        for day in range(window.last_day, _DAYS):
            begin, end = day * self.per_day, (day + 1) * self.per_day
            tests = self.tests(begin, end)
            before = (window.first_day - 1) * self.per_day
            here = self.traces.by_slot[begin:end].copy()
            window = window.update(NewDay(here, tests.since(before)))
        return window

    def auc(self, risk: Probabilities) -> float | None:
        """Return the AUC on people who were never tested."""
        truth = self.epidemic.labels.hidden.open("evaluating a replay")
        recall = self.settings.pathogen.extinction_recall
        return evaluate(risk[truth.person], truth.infected, recall).auc


def _run(preset: str) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    ours, peer = [], []
    for seed in _SEEDS:
        world = _World(preset, seed)
        again, _ = timed(lambda one=world: one.batch(_DAYS, FieldSettings().sweeps))
        peer.append(again)
        people, _, field = world.batch(_DAYS, _CONVERGED_SWEEPS)
        converged = people.current_risk(field.messages())
        rows[f"seed {seed}"] = row = {"batch": {"auc": world.auc(people.risk)}}
        for days in _WINDOWS:
            seconds, window = timed(lambda one=world, length=days: one.replayed(length))
            ours.append(seconds / (_DAYS - _FIRST_DAYS))
            risk, now = window.risks()
            row[f"{days} days"] = {
                "auc": world.auc(risk),
                "risk_apart": float(np.abs(risk - people.risk).mean()),
                "now_apart": float(
                    np.abs(now.without_tests - converged.without_tests).mean()
                ),
            }
    day, start = float(np.mean(ours[len(_WINDOWS) - 1 :: len(_WINDOWS)])), min(peer)
    result = {"name": "field-replay", "ours": day, "peer": start, "unit": "s"}
    return {**result, "ratio": start / day, **rows}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
