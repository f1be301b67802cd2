"""Falcon Field at a million people, 14 days of 12 slots and 20,000 areas.

Each size runs in a separate process: city, outbreak, tests of 40 % of the people,
and five sweeps. ``ours`` and ``peer`` are CPU nanoseconds per visit (person and
slot) of a sweep at the largest and at the smallest size: a ratio of 1 is a cost
linear in visits.
"""

import json
import sys
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import THREADS, peak_mb, run_in_subprocess
from benchmarks.million import AREAS, DAYS, PEOPLE, StageTimer
from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.federation.field.inference_schedule import run_in_process
from epifalcon.federation.field.settings import FalconFieldSettings, FieldTask
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.streams import Streams

SHARES = (0.125, 1.0)
"""Sizes as shares of the number of people."""
_SETTINGS = FieldSettings(
    sweeps=5, folds=0, region=TransmissionSettings(transmission="regional")
)


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds of five sweeps and peak memory at each size."""
    rows = [
        run_in_subprocess("field_million", str(round(share * people)))
        for share in SHARES
    ]
    small, large = (row["cpu_ns_per_visit"] for row in (rows[0], rows[-1]))
    return {
        "name": "field-million",
        "ours": large,
        "peer": small,
        "ratio": small / large,
        "unit": "CPU ns per visit",
        "seconds_of_five_sweeps": rows[-1]["seconds_of_five_sweeps"],
        "peak_mb": rows[-1]["peak_mb"],
        "sizes": rows,
    }


def measure(people: int) -> dict[str, Any]:
    """The stages at one size; compiled code is loaded beforehand."""
    torch.set_num_threads(THREADS)
    _infer(500, 50, StageTimer(500))
    timer = StageTimer(people)
    found = _infer(people, AREAS, timer)
    return {
        "people": people,
        "areas": AREAS,
        **found,
        **timer.found,
        "peak_mb": peak_mb(),
    }


def _infer(people: int, areas: int, timer: StageTimer) -> dict[str, Any]:
    settings = CitySettings(people=people, regions=areas, days=DAYS)
    traces = timer.stage("city", lambda: build_city(settings, Streams(0).numpy("city")))
    rule = OutbreakSettings(seed_share=0.02)
    rng = Streams(0).numpy("outbreak")
    truth = timer.stage("outbreak", lambda: simulate(traces, SARS_COV_2, rule, rng))
    known = draw_labels(truth, LabelSettings(), Streams(0).numpy("labels")).known
    began, busy = perf_counter(), process_time()
    task = FieldTask(settings=FalconFieldSettings(field=_SETTINGS), rule=rule)
    site, _ = run_in_process(task, traces, known, seed=0)
    # One more pass than sweeps: in the last one people only receive.
    passes = (_SETTINGS.sweeps + 1) * traces.by_slot.size
    return {
        "visits": int(traces.by_slot.size),
        "seconds_of_five_sweeps": perf_counter() - began,
        "cpu_ns_per_visit": 1e9 * (process_time() - busy) / passes,
        "mean_risk": float(np.mean(site.risk)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=2))
