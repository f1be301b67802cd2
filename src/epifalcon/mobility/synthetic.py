"""A believable city: homes, work, outings, exploration and return.

Stands in for the mobility data of the paper's experiments (section "Data"),
which is not public. The land is laid out by NumPy; then every person lives
through the days with a random stream of their own, compiled and in parallel.
"""

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import get_num_threads, njit

from epifalcon.mobility.city import borrow as borrow_module
from epifalcon.mobility.city import coverage as coverage_module
from epifalcon.mobility.city import destinations as destinations_module
from epifalcon.mobility.city import diary as diary_module
from epifalcon.mobility.city import draws as draws_module
from epifalcon.mobility.city.borrow import borrow
from epifalcon.mobility.city.coverage import Coverage, coverage, cut_gaps, fill_gaps
from epifalcon.mobility.city.destinations import (
    Kernel,
    borrow_destinations,
    destinations,
)
from epifalcon.mobility.city.diary import (
    DAY,
    Habits,
    World,
    be_born,
    borrow_life,
    live_day,
    new_life,
    record_day,
)
from epifalcon.mobility.city.layout import Layout, lay_out
from epifalcon.mobility.city.settings import CitySettings
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats, RegionIds

__all__ = ["CitySettings", "build_city"]

BLOCK_PEOPLE = 256
_KERNELS = (
    borrow_module,
    coverage_module,
    destinations_module,
    diary_module,
    draws_module,
)

# Chance per hour of leaving home for an outing, by hour of the day: nearly none at
# night, a first peak before noon and a second one after work, later on days off.
_LEAVING = np.array(
    [
        [.01, .01, .005, .005, .01, .03, .1, .2, .25, .28, .28, .24,
         .2, .22, .25, .26, .28, .32, .36, .3, .18, .1, .05, .02],
        [.02, .01, .01, .005, .005, .01, .03, .08, .18, .28, .34, .32,
         .26, .28, .32, .32, .3, .3, .32, .26, .18, .1, .06, .04],
    ]
)  # fmt: skip


def build_city(
    settings: CitySettings, rng: np.random.Generator, progress: Progress = silent
) -> Traces:
    """Build the city that ``settings`` describe: traces of all people and its regions.

    Equal settings and an equal state of ``rng`` give the same city, bit for
    bit, on any number of threads. A city of more days or of more people begins
    with the days and people of the smaller one, and another slot length shows
    the same lives at another resolution.
    """
    progress("city", 0, settings.people)
    seed = np.uint64(rng.integers(2**63))
    layout = lay_out(settings, rng)
    world = _world(layout, settings)
    plan = coverage(
        settings.observed_share,
        settings.observed_sigma,
        min(1.0, settings.slot_hours / settings.gap_hours),
        settings.fill_gaps,
    )
    clock = settings.clock
    by_slot = np.empty((clock.slots, settings.people), dtype=np.int32)

    def live(first: int) -> int:
        last = min(first + BLOCK_PEOPLE, settings.people)
        _live(world, plan, seed, (first, last, clock.slot_minutes), by_slot)
        return last

    # Threads suffice: the compiled part lets go of the interpreter's lock.
    with ThreadPoolExecutor(get_num_threads()) as pool:
        for last in pool.map(live, range(0, settings.people, BLOCK_PEOPLE)):
            progress("city", last, settings.people)
    return Traces(by_slot, clock, layout.regions)


def _world(layout: Layout, settings: CitySettings) -> World:
    commute = Kernel(
        float(settings.commute_exponent),
        float(settings.commute_scale_km),
        float(settings.commute_cutoff_km),
    )
    visit = Kernel(
        float(settings.visit_exponent),
        float(settings.visit_scale_km),
        float(settings.visit_cutoff_km),
    )
    excursion = Kernel(0.0, 1.0, float(settings.excursion_cutoff_km))
    return World(
        home=np.cumsum(layout.home),
        goals=destinations(
            layout.regions.centre_km,
            (layout.work, layout.visit, layout.visit),
            (commute, visit, excursion),
        ),
        rate=_rates(settings),
        habits=_habits(settings),
    )


def _rates(settings: CitySettings) -> Floats:
    return np.asarray(_LEAVING * settings.outings / 60)


def _habits(settings: CitySettings) -> Habits:
    return Habits(
        commuter_share=float(settings.commuter_share),
        exploration=float(settings.exploration),
        exploration_decay=float(settings.exploration_decay),
        outing_sigma=float(settings.outing_sigma),
        chain_share=float(settings.chain_share),
        stay_exponent=float(settings.stay_exponent),
        stay_min=60.0 * settings.stay_min_hours,
        stay_max=60.0 * settings.stay_max_hours,
        traveller_share=float(settings.traveller_share),
        excursion_share=float(settings.excursion_share),
        overnight_share=float(settings.overnight_share),
        return_scale_km=float(settings.visit_scale_km),
        first_weekday=settings.first_weekday,
    )


def _compile(digest: int) -> Callable[..., int]:
    """The compiled loop over people.

    Numba keeps compiled code as long as this file stays the same; the digest of
    the files whose functions it calls makes it notice a change in those too.
    """

    @njit(cache=True, nogil=True)
    def live(
        world: World,
        plan: Coverage,
        seed: np.uint64,
        span: tuple[int, int, int],
        by_slot: RegionIds,
    ) -> int:
        """Fill the columns of people ``span[0]`` to ``span[1]``."""
        begin, end, slot_minutes = span
        per_day = DAY // slot_minutes
        days = by_slot.shape[0] // per_day
        # People are written row by row and turned over at the end: a column at a
        # time would touch a new cache line for every slot.
        rows = np.empty((end - begin, by_slot.shape[0]), np.int32)
        owner = new_life(days)
        life = borrow_life(owner)
        shared = World(
            borrow(world.home),
            borrow_destinations(world.goals),
            borrow(world.rate),
            world.habits,
        )
        for number in range(begin, end):
            row = rows[number - begin]
            person = be_born(shared, life, seed, number)
            for day in range(days):
                live_day(shared, life, person, day)
                record_day(life, slot_minutes, row[day * per_day : (day + 1) * per_day])
            cut_gaps(plan, life.state, seed, number, row)
            if plan.filled:
                fill_gaps(row)
        by_slot[:, begin:end] = rows.T
        # Named last, so that the borrowed memory lives until here.
        return digest + 0 * int(owner.size[0])

    return live


def _digest() -> int:
    digest = 0
    for module in _KERNELS:
        digest = zlib.crc32(Path(str(module.__file__)).read_bytes(), digest)
    return digest


_live = _compile(_digest())
