"""A small run end to end, against numbers kept in JSON.

A wanted change of results renews them with ``make golden`` and owes a line
under "Changed results" in CHANGELOG.md.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from epifalcon.epidemic.cases import reported_cases
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.statistics import measure
from epifalcon.mobility.subsample import ReportingSettings, report
from epifalcon.streams import Streams

GOLDEN = Path(__file__).with_name("hamlet.json")


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def golden_numbers():
    """What a run of hamlet gives; whole arrays by their hash."""
    experiment = Experiment.load("hamlet")
    traces = make_city(experiment, seed=7)
    thinned = report(
        traces,
        ReportingSettings(trace_share=0.5, last_days=7),
        Streams(7).numpy("reporting"),
    )
    first, second = run_epidemics(experiment, traces, seed=7, runs=2)
    known = first.labels.known
    cases = reported_cases(known, traces)
    flows = count_flows(traces)
    return {
        "traces": digest(traces.by_slot),
        "reported traces": digest(thinned.by_slot),
        "infection slots": digest(first.outbreak.infection_slot),
        "sources": digest(first.outbreak.source_person),
        "tested": digest(known.person),
        "positive": int(known.positive.sum()),
        "infected share": [
            first.outbreak.infected_share,
            second.outbreak.infected_share,
        ],
        "reported cases": round(float(cases.by_region_and_day.sum()), 6),
        "moves": int(sum(flows.moves(day).sum() for day in range(flows.days))),
        "statistics": {item.name: item.value for item in measure(traces).statistics},
    }


def test_a_small_run_gives_the_numbers_it_gave():
    expected = json.loads(GOLDEN.read_text())
    found = golden_numbers()
    statistics = expected.pop("statistics")
    assert found.pop("statistics") == pytest.approx(statistics, rel=1e-9)
    assert found == expected
