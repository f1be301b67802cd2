"""A training round at a million people, 14 days of 12 slots and 20,000 areas.

Each size runs in a process of its own, with the same engine as everywhere: city,
hypergraph, engine, rounds without privacy (the first one merges edges), then
rounds with everything on (noise on every upload, two pseudo copies, region
states, clipped and noised gradients). ``ours`` and ``peer`` are nanoseconds per
visit (person and slot) of a bare round at the largest and at the smallest size:
a ratio of 1 is a cost linear in visits. PyG's layers would need over a hundred
GB for the messages of one propagation.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measuring import THREADS, best, in_a_process_of_its_own, peak_mb, timed
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
"""Sizes beside which the whole is told."""


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds and peak memory of every stage at each size."""
    rows = [
        in_a_process_of_its_own("million", str(round(share * people)))
        for share in SHARES
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
    told = Teller(people)
    settings = CitySettings(people=people, regions=AREAS, days=DAYS)
    traces = told.stage("city", lambda: build_city(settings, Streams(0).numpy("city")))
    inc = told.stage("incidence", lambda: Incidence.of(traces))
    _rounds(told, "round", lambda: bare_engine(traces, inc, FalconSettings()))
    bare = told.found["peak_mb"]
    _rounds(told, "round_all", lambda: full_engine(traces, inc, COPIES))
    visits = people * traces.slots
    return {
        "people": people,
        "areas": AREAS,
        "slots": traces.slots,
        "pairs": inc.pairs,
        "edges": inc.edges,
        "ns_per_visit": 1e9 * told.found["round_s"] / visits,
        **told.found,
        "peak_mb_without_privacy": bare,
    }


class Teller:
    """Times stages, tells of each on stderr, and remembers the peak of memory."""

    def __init__(self, people: int) -> None:
        self.people = people
        self.found: dict[str, float] = {}

    def stage(self, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """What the work makes; its seconds are kept under the name."""
        seconds, made = timed(work)
        self.tell(name, seconds)
        return made

    def tell(self, name: str, seconds: float) -> None:
        """Keep the seconds of a stage and say them."""
        self.found[f"{name}_s"] = seconds
        self.found["peak_mb"] = peak_mb()
        told = f"{name} {seconds:.2f} s, peak {peak_mb():,.0f} MB"
        print(f"{self.people:,} people: {told}", file=sys.stderr, flush=True)


def _rounds(told: Teller, name: str, make: Callable[[], VectorisedEngine]) -> None:
    """An engine, its first round and the best of some later ones."""
    engine = told.stage(f"{name}_engine", make)
    told.stage(f"{name}_first", engine.step)
    took = best({"round": (engine.step, _ROUNDS)})["round"]
    told.tell(name, took.wall)


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
