"""The cost of city and outbreak from 15,738 to a million people.

14 days of 12 slots on 20,000 areas; each size runs in a separate process.
``ours`` and ``peer`` are nanoseconds per visit (person and slot) at the largest
and at the smallest size: a ratio of 1 is a cost linear in visits.
"""

import json
import resource
import subprocess
import sys
import time

from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.streams import Streams

SIZES = (15_738, 100_000, 1_000_000)
AREAS = 20_000
# The paper's share of seeds: 300 of 15,738.
RULE = OutbreakSettings(seed_share=0.019)


def run(sizes: tuple[int, ...] = SIZES) -> dict[str, object]:
    """Seconds and peak memory at each size, and the growth of the cost per visit."""
    rows = [_run_in_subprocess(people) for people in sizes]
    small, large = rows[0]["ns_per_visit"], rows[-1]["ns_per_visit"]
    return {
        "name": "scale",
        "ours": large,
        "peer": small,
        "ratio": small / large,
        "unit": "ns per visit",
        "sizes": rows,
    }


def measure(people: int) -> dict[str, float]:
    """Build the city and run one outbreak; compiled code is loaded beforehand."""
    _city_and_outbreak(64, 64)
    begin = time.perf_counter()
    city_done, infected = _city_and_outbreak(people, AREAS)
    done = time.perf_counter()
    visits = people * 14 * 12
    return {
        "people": people,
        "city_seconds": city_done - begin,
        "outbreak_seconds": done - city_done,
        "ns_per_visit": (done - begin) / visits * 1e9,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "infected_share": infected,
    }


def _city_and_outbreak(people: int, areas: int) -> tuple[float, float]:
    streams = Streams(0)
    settings = CitySettings(people=people, regions=areas)
    traces = build_city(settings, streams.numpy("city"))
    city_done = time.perf_counter()
    outbreak = simulate(traces, SARS_COV_2, RULE, streams.numpy("outbreak"))
    return city_done, outbreak.infected_share


def _run_in_subprocess(people: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", str(people)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
