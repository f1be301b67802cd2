"""Outbreak at Larger size: the simulator against a plain loop over people.

Both get the same city, draws, seeds and kappa, the loop as prepared lists, and must
produce the same outbreak, person by person. ``simulate`` is the whole call, including
the draws and the computation of kappa.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import replay, simulate
from epifalcon.epidemic.sellke import SellkeDraws
from epifalcon.epidemic.settings import named_rule
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.streams import Streams
from tests.oracles.seir_loop import Story, loop_with_draws, world_of

_SAME = (
    "infection_slot",
    "infectious_slot",
    "onset_slot",
    "recovery_slot",
    "source_person",
    "source_region",
)


def run() -> dict[str, object]:
    """Seconds of one outbreak, ours and the loop's."""
    streams = Streams(0)
    city = CitySettings(people=15_738, regions=3_127, days=14, kind="area")
    traces = build_city(city, streams.numpy("city"))
    rule = named_rule("paper", SARS_COV_2)
    draws = SellkeDraws.sample(
        traces.people, SARS_COV_2, rule, traces.clock, streams.numpy("seir")
    )
    outbreak = replay(traces, SARS_COV_2, rule, draws)
    fixed = replace(rule, kappa=outbreak.kappa)
    ours = _best(lambda: replay(traces, SARS_COV_2, fixed, draws), 15)
    whole = _best(lambda: simulate(traces, SARS_COV_2, rule, streams.numpy("seir")), 15)
    world = world_of(traces, outbreak)
    _require_same(outbreak, loop_with_draws(world, draws))
    peer = _best(lambda: loop_with_draws(world, draws), 2)
    return {
        "name": "outbreak",
        "ours": ours,
        "peer": peer,
        "ratio": peer / ours,
        "unit": "s",
        "simulate": whole,
        "ratio_simulate": peer / whole,
        "people": traces.people,
        "slots": traces.slots,
        "infected_share": outbreak.infected_share,
    }


def _best(work: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _require_same(outbreak: Outbreak, story: Story) -> None:
    for name in _SAME:
        if not np.array_equal(getattr(outbreak, name), getattr(story, name)):
            raise SystemExit(f"outbreak: the loop's {name} differs from ours")
