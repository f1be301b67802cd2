"""Belief propagation at a million people, 14 days of 12 slots and 20,000 areas.

Each size runs in a process of its own: city, outbreak, tests of 40 % of the people,
the field of messages, and sweeps. ``ours`` and ``peer`` are CPU nanoseconds per
visit (person and slot) of a sweep at the largest and at the smallest size: a ratio
of 1 is a cost linear in visits. Wall times stand beside them; on a busy machine
they tell more of the others. Messages from person to person would be a table for
each pair that ever met.
"""

import json
import sys
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import (
    THREADS,
    best,
    in_a_process_of_its_own,
    peak_mb,
)
from benchmarks.million import AREAS, DAYS, PEOPLE, Teller
from epifalcon.baselines.field import Field
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.streams import Streams

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Sizes beside which the whole is told."""
_SWEEPS = 3
_DAMPING = 0.9, 0.3


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds of a sweep and peak memory at each size."""
    rows = [
        in_a_process_of_its_own("hbp_million", str(round(share * people)))
        for share in SHARES
    ]
    small, large = (row["cpu_ns_per_visit"] for row in (rows[0], rows[-1]))
    return {
        "name": "hbp-million",
        "ours": large,
        "peer": small,
        "ratio": small / large,
        "unit": "CPU ns per visit",
        "seconds_of_a_sweep": rows[-1]["sweep_s"],
        "cpu_seconds_of_a_sweep": rows[-1]["sweep_cpu_s"],
        "peak_mb": rows[-1]["peak_mb"],
        "sizes": rows,
    }


def measure(people: int) -> dict[str, Any]:
    """The stages at one size; compiled code is loaded beforehand."""
    torch.set_num_threads(THREADS)
    _field(500, 50, Teller(500)).sweep(*_DAMPING)
    told = Teller(people)
    field = _field(people, AREAS, told)
    took = best({"sweep": (lambda: field.sweep(*_DAMPING), _SWEEPS)})["sweep"]
    told.tell("sweep", took.wall)
    visits = people * DAYS * 12
    return {
        "people": people,
        "areas": AREAS,
        "visits": visits,
        "cpu_ns_per_visit": 1e9 * took.busy / visits,
        "ns_per_visit": 1e9 * took.wall / visits,
        "sweep_cpu_s": took.busy,
        **told.found,
        "mean_risk": float(np.mean(field.risk)),
        "peak_mb": peak_mb(),
    }


def _field(people: int, areas: int, told: Teller) -> Field:
    settings = CitySettings(people=people, regions=areas, days=DAYS)
    traces = told.stage("city", lambda: build_city(settings, Streams(0).numpy("city")))
    rule = OutbreakSettings(seed_share=0.02)
    rng = Streams(0).numpy("outbreak")
    truth = told.stage("outbreak", lambda: simulate(traces, SARS_COV_2, rule, rng))
    known = draw_labels(truth, LabelSettings(), Streams(0).numpy("labels")).known
    scene = Scene(traces, 0, SARS_COV_2, rule)
    made: Field = told.stage("field", lambda: Field(scene, traces, known))
    return made


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=2))
