"""Falcon Field at a million people, 14 days of 12 slots and 20,000 areas.

Each size runs in a process of its own: city, outbreak, tests of 40 % of the people,
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

from benchmarks.measuring import THREADS, in_a_process_of_its_own, peak_mb
from benchmarks.million import AREAS, DAYS, PEOPLE, Teller
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.federation.field.together import Together
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import FieldSettings
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.streams import Streams

SHARES = (0.125, 1.0)
"""Sizes beside which the whole is told."""
_SETTINGS = FieldSettings(sweeps=5)


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds of five sweeps and peak memory at each size."""
    rows = [
        in_a_process_of_its_own("field_million", str(round(share * people)))
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
    _infer(500, 50, Teller(500))
    told = Teller(people)
    found = _infer(people, AREAS, told)
    return {
        "people": people,
        "areas": AREAS,
        **found,
        **told.found,
        "peak_mb": peak_mb(),
    }


def _infer(people: int, areas: int, told: Teller) -> dict[str, Any]:
    settings = CitySettings(people=people, regions=areas, days=DAYS)
    traces = told.stage("city", lambda: build_city(settings, Streams(0).numpy("city")))
    rule = OutbreakSettings(seed_share=0.02)
    rng = Streams(0).numpy("outbreak")
    truth = told.stage("outbreak", lambda: simulate(traces, SARS_COV_2, rule, rng))
    known = draw_labels(truth, LabelSettings(), Streams(0).numpy("labels")).known
    began, busy = perf_counter(), process_time()
    rates = rates_of(traces, SARS_COV_2, rule)
    together = Together([Cohort.of(traces, known, rates, TestErrors())])
    force = force_of_infection(traces, SARS_COV_2, rule)
    city = City(traces.clock, force, rule.chance, together.crowd())
    law = Transmission.of(
        "apart", _SETTINGS.region, traces.regions, lambda: count_flows(traces)
    )
    start = Start.of(known, rates, traces.slots)
    infer(together, city, start, _SETTINGS, law, lambda _: None)
    # One more pass than exchanges: in the last one people only listen.
    passes = (_SETTINGS.sweeps + 1) * traces.by_slot.size
    return {
        "visits": int(traces.by_slot.size),
        "seconds_of_five_sweeps": perf_counter() - began,
        "cpu_ns_per_visit": 1e9 * (process_time() - busy) / passes,
        "mean_risk": float(np.mean(together.risk)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=2))
