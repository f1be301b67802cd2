"""The synthetic city against people in a plain Python loop, and how it grows."""

import json
import resource
import subprocess
import sys
import time

import numpy as np

from epifalcon.mobility.synthetic import CitySettings, build_city
from tests.oracles.city_loop import live, prepare

PEER_PEOPLE = 150
REPEATS = 3
LARGER = CitySettings(people=15_738, regions=3_127)
SIZES = (15_738, 100_000, 300_000, 1_000_000)


def run() -> dict[str, object]:
    """Seconds to build a city of the Larger size, ours and the plain loop.

    The loop makes the same city bit for bit. Its people are timed on 150 of
    15,738 and scaled; its preparation, which is also ours, is timed whole.
    """
    build_city(CitySettings(people=64, regions=64), np.random.default_rng(0))
    ours = min(_seconds_of_ours() for _ in range(REPEATS))
    begin = time.perf_counter()
    prepared = prepare(LARGER, np.random.default_rng(0))
    ready = time.perf_counter()
    for number in range(PEER_PEOPLE):
        live(prepared, number, LARGER)
    done = time.perf_counter()
    peer = ready - begin + (done - ready) * LARGER.people / PEER_PEOPLE
    return {
        "name": "city",
        "ours": ours,
        "peer": peer,
        "ratio": peer / ours,
        "unit": "s",
        "note": f"plain loop timed on {PEER_PEOPLE} people and scaled",
    }


def _seconds_of_ours() -> float:
    begin = time.perf_counter()
    build_city(LARGER, np.random.default_rng(0))
    return time.perf_counter() - begin


def scale(sizes: tuple[int, ...] = SIZES) -> dict[str, object]:
    """Seconds and peak memory of 14 days by number of people, 20,000 areas.

    Each size runs in a process of its own, compiled code loaded beforehand.
    """
    rows = []
    for people in sizes:
        made = subprocess.run(
            [sys.executable, "-m", "benchmarks.city", str(people)],
            check=True,
            capture_output=True,
            text=True,
        )
        rows.append(json.loads(made.stdout))
    return {"name": "city-scale", "sizes": rows}


def _one_size(people: int) -> dict[str, float]:
    build_city(CitySettings(people=64, regions=64), np.random.default_rng(0))
    settings = CitySettings(people=people, regions=20_000)
    begin = time.perf_counter()
    busy = time.process_time()
    traces = build_city(settings, np.random.default_rng(0))
    return {
        "people": people,
        "person_slots": traces.by_slot.size,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - busy,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(_one_size(int(sys.argv[1]))))
