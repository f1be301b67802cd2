"""The synthetic city against a plain Python loop over people."""

import time

import numpy as np

from epifalcon.mobility.synthetic import CitySettings, build_city
from tests.oracles.city_loop import live, prepare

PEER_PEOPLE = 150
REPEATS = 3
LARGER = CitySettings(people=15_738, regions=3_127)


def run() -> dict[str, object]:
    """Seconds to build a city of the Larger size, ours and the plain loop.

    The loop produces the same city, bit for bit. It is timed on 150 of 15,738 people
    and scaled; the preparation, which both share, is timed completely.
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
