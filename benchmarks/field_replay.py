"""Falcon Field day by day against starting again: 40 days of a town, three outbreaks.

Beside the seconds of a day stand how far the risks of the last day are from those of
one run that knows all days at once, and how well both rank people who were hidden.
"""

import json
import sys
from typing import Any

import numpy as np

from benchmarks.measuring import in_a_process_of_its_own, timed
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

_DAYS, _BEGUN, _RESTED = 40, 7, 60
_WORDS = (
    "city.people=1000",
    "city.regions=200",
    f"city.days={_DAYS}",
    "labels.test_days=[0,39]",
    "outbreak.kappa=0.6",
    "outbreak.seed_count=15",
)
_SEEDS, _WINDOWS = (200, 201, 202), (40, 28, 21, 14)


def run() -> dict[str, Any]:
    """Seconds of a day's update and of starting again, and what is lost by it."""
    found: dict[str, Any] = in_a_process_of_its_own("field_replay", "hamlet")
    return found


class _World:
    """One outbreak, its tests on the days they were taken, and its truth."""

    def __init__(self, preset: str, seed: int) -> None:
        self.settings = settings = Experiment.load(preset, list(_WORDS))
        self.traces = make_city(settings, seed)
        self.epidemic: Epidemic = next(run_epidemics(settings, self.traces, seed))
        self.known = self.epidemic.labels.known
        self.per_day = self.traces.clock.slots_per_day
        self.law = Transmission("one", TransmissionSettings())

    def tests(self, begin: int, end: int) -> TestResults:
        """Those of some slots."""
        known, kept = self.known, (self.known.slot >= begin) & (self.known.slot < end)
        return TestResults(
            known.people, known.person[kept], known.positive[kept], known.slot[kept]
        )

    def batch(
        self, days: int, sweeps: int
    ) -> tuple[ChainCohort, TestResults, SavedField]:
        """One run on the first days."""
        end = days * self.per_day
        clock = Clock(self.traces.clock.slot_hours, days)
        by_slot = self.traces.by_slot[:end].copy()
        traces, known = Traces(by_slot, clock, self.traces.regions), self.tests(0, end)
        region = TransmissionSettings(law="one")
        field = FieldSettings(sweeps=sweeps, folds=0, region=region)
        task = FieldTask(
            wishes=FalconFieldSettings(field=field),
            pathogen=self.settings.pathogen,
            rule=self.settings.outbreak,
            test_errors=self.settings.labels.test_errors,
        )
        home, course = run_in_process(task, traces, known, seed=0)
        state, errors = course.found.state, task.test_errors
        assert state is not None
        return (
            home.cohort,
            known,
            SavedField(course.graph, state.sums, state.factor, home.rates, errors),
        )

    def replayed(self, days: int) -> FieldWindow:
        """Day after day, in a window of ``days`` days."""
        begun = self.batch(min(days, _BEGUN), FieldSettings().sweeps)
        size = WindowSettings(days=days)
        window = FieldWindow.of_run(*begun, FieldSettings(), size, self.law)
        for day in range(window.last_day, _DAYS):
            begin, end = day * self.per_day, (day + 1) * self.per_day
            told, before = self.tests(begin, end), (window.first_day - 1) * self.per_day
            here = self.traces.by_slot[begin:end].copy()
            slot = told.slot - np.int32(before)
            window = window.update(NewDay(here, told.person, told.positive, slot))
        return window

    def auc(self, risk: Probabilities) -> float | None:
        """On people who were never tested."""
        truth = self.epidemic.labels.hidden.open("judging a replay")
        recall = self.settings.pathogen.extinction_recall
        return evaluate(risk[truth.person], truth.infected, recall).auc


def _run(preset: str) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    ours, peer = [], []
    for seed in _SEEDS:
        world = _World(preset, seed)
        again, _ = timed(lambda one=world: one.batch(_DAYS, FieldSettings().sweeps))
        peer.append(again)
        people, _, field = world.batch(_DAYS, _RESTED)
        rested = people.current_risk(field.messages())
        rows[f"seed {seed}"] = row = {"batch": {"auc": world.auc(people.risk)}}
        for days in _WINDOWS:
            seconds, window = timed(lambda one=world, length=days: one.replayed(length))
            ours.append(seconds / (_DAYS - _BEGUN))
            risk, now = window.risks()
            row[f"{days} days"] = {
                "auc": world.auc(risk),
                "risk_apart": float(np.abs(risk - people.risk).mean()),
                "now_apart": float(np.abs(now.aside - rested.aside).mean()),
            }
    day, start = float(np.mean(ours[len(_WINDOWS) - 1 :: len(_WINDOWS)])), min(peer)
    told = {"name": "field-replay", "ours": day, "peer": start, "unit": "s"}
    return {**told, "ratio": start / day, **rows}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
