"""Falcon Field at a city's size: one sweep, and a whole inference with its choice.

The peer is a sweep of HBP, which takes the same chains through the same slots but
needs the server in every slot, twice; both come to rest in the same risks. Beside
the sweep stand the seconds of 15 sweeps with transmission by region, and of a run
with folds and choice of the law.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import (
    THREADS,
    best,
    compared,
    in_a_process_of_its_own,
    peak_mb,
    timed,
)
from epifalcon.baselines.falcon_field import FalconField
from epifalcon.baselines.field import Field
from epifalcon.baselines.method import Scene
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City, Places, told_by
from epifalcon.models.field.tables import Manner
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics

_REPEATS = 6
_DAMPING = 0.9, 0.3


def run(preset: str = "larger-sars") -> dict[str, Any]:
    """Milliseconds of a sweep, ours and HBP's, and seconds of an inference."""
    found: dict[str, Any] = in_a_process_of_its_own("field", preset)
    return found


def _run(preset: str) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    settings = Experiment.load(preset)
    traces = make_city(settings, seed=0)
    known = next(run_epidemics(settings, traces, seed=0)).labels.known
    scene = Scene(traces, 0, settings.pathogen, settings.outbreak)
    rates = rates_of(traces, scene.pathogen, scene.rule)
    cohort = Cohort.of(traces, known, rates, scene.test_errors)
    present = cohort.crowd().astype(np.float64)
    force = force_of_infection(traces, scene.pathogen, scene.rule)
    city = City(traces.clock, force, scene.rule.chance, present)
    told = told_by(city, Places.empty(present), city.even)
    manner = Manner(1.0, np.ones(traces.slots), 16.0)
    theirs = Field(scene, traces, known)
    took = best(
        {
            "ours": (lambda: cohort.sweep(told, manner, tally=True), _REPEATS),
            "peer": (lambda: theirs.sweep(*_DAMPING), _REPEATS),
        }
    )
    wishes = FieldWishes()
    region = replace(wishes.field.region, law="apart")
    once = replace(wishes, field=replace(wishes.field, folds=0, region=region))
    seconds, _ = timed(lambda: FalconField(scene, once).fit(known))
    whole, _ = timed(lambda: FalconField(scene).fit(known))
    return {
        **compared("field", preset, took["ours"], took["peer"]),
        "ns_per_visit_cpu": 1e9 * took["ours"].busy / traces.by_slot.size,
        "sweeps": wishes.field.sweeps,
        "seconds_with_coupling": seconds,
        "seconds_with_folds_and_choice": whole,
        "peak_mb": peak_mb(),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
