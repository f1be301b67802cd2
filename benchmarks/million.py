"""A training round at a million people, 14 days of 12 slots and 20,000 areas.

Each size runs in a separate process with the default engine: city, hypergraph,
engine, rounds without privacy (the first one merges edges), then rounds with all
components (noise on every upload, two pseudo copies, region states, clipped and
noised gradients). ``ours`` and ``peer`` are nanoseconds per visit (person and slot)
of a round without privacy at the largest and at the smallest size: a ratio of 1 is a
cost linear in visits. PyG's layers would need over a hundred GB for the messages of
one propagation.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measuring import THREADS, best, peak_mb, run_in_subprocess, timed
from benchmarks.rounds import bare_engine, full_engine
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.mobility.traces import Traces
from epifalcon.models.settings import FalconSettings
from epifalcon.streams import Streams

PEOPLE = 1_000_000
AREAS = 20_000
DAYS = 14
COPIES = 2
_ROUNDS = 3
SHARES = (0.1, 0.3, 1.0)
"""Sizes as shares of the number of people."""


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds and peak memory of every stage at each size."""
    rows = [
        run_in_subprocess("million", str(round(share * people))) for share in SHARES
    ]
    small, large = (row["ns_per_visit"] for row in (rows[0], rows[-1]))
    return {
        "name": "million",
        "ours": large,
        "peer": small,
        "ratio": small / large,
        "unit": "ns per visit",
        "seconds_of_a_round": rows[-1]["round_s"],
        "seconds_of_a_round_with_everything": rows[-1]["round_all_s"],
        "peak_mb": rows[-1]["peak_mb"],
        "sizes": rows,
    }


def measure(people: int) -> dict[str, Any]:
    """The stages at one size; compiled code is loaded beforehand."""
    torch.set_num_threads(THREADS)
    _compile()
    timer = StageTimer(people)
    settings = CitySettings(people=people, regions=AREAS, days=DAYS)
    traces = timer.stage("city", lambda: build_city(settings, Streams(0).numpy("city")))
    inc = timer.stage("incidence", lambda: Incidence.of(traces))
    _rounds(timer, "round", lambda: bare_engine(traces, inc, FalconSettings()))
    bare = timer.found["peak_mb"]
    _rounds(timer, "round_all", lambda: full_engine(traces, inc, COPIES))
    visits = people * traces.slots
    return {
        "people": people,
        "areas": AREAS,
        "slots": traces.slots,
        "pairs": inc.pairs,
        "edges": inc.edges,
        "ns_per_visit": 1e9 * timer.found["round_s"] / visits,
        **timer.found,
        "peak_mb_without_privacy": bare,
    }


class StageTimer:
    """Measure time and peak memory of stages, and print them on stderr."""

    def __init__(self, people: int) -> None:
        self.people = people
        self.found: dict[str, float] = {}

    def stage(self, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Return the result of ``work``; record its seconds under ``name``."""
        seconds, result = timed(work)
        self.record(name, seconds)
        return result

    def record(self, name: str, seconds: float) -> None:
        """Record and print the seconds of a stage."""
        self.found[f"{name}_s"] = seconds
        self.found["peak_mb"] = peak_mb()
        text = f"{name} {seconds:.2f} s, peak {peak_mb():,.0f} MB"
        print(f"{self.people:,} people: {text}", file=sys.stderr, flush=True)


def _rounds(timer: StageTimer, name: str, make: Callable[[], VectorisedEngine]) -> None:
    """An engine, its first round and the best of some later ones."""
    engine = timer.stage(f"{name}_engine", make)
    timer.stage(f"{name}_first", engine.step)
    took = best({"round": (engine.step, _ROUNDS)})["round"]
    timer.record(name, took.wall)


def _compile() -> None:
    settings = CitySettings(people=500, regions=50, days=DAYS)
    traces: Traces = build_city(settings, Streams(0).numpy("city"))
    inc = Incidence.of(traces)
    for engine in (
        bare_engine(traces, inc, FalconSettings()),
        full_engine(traces, inc, COPIES),
    ):
        engine.step()


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=2))
