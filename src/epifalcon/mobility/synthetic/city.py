"""Build a synthetic city: homes, work, outings, exploration and return.

Replaces the mobility data of the paper's experiments (section "Data"), which is
not public. NumPy lays out the land; then every person's days are simulated with a
random stream of their own, compiled and in parallel.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import get_num_threads
from scipy.optimize import brentq

from epifalcon.mobility.synthetic.gravity import Kernel, destinations
from epifalcon.mobility.synthetic.layout import Layout, lay_out
from epifalcon.mobility.synthetic.schedule import (
    Behaviour,
    Coverage,
    World,
    simulate_people,
)
from epifalcon.mobility.synthetic.settings import CitySettings
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent

BLOCK_PEOPLE = 256

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
    """Build the city that ``settings`` describe: its regions and everybody's traces.

    Equal settings and an equal state of ``rng`` give the same city on any number
    of threads. A city of more days or of more people begins with the days and
    people of the smaller one, and another slot length shows the same lives at
    another resolution.
    """
    progress("city", 0, settings.people)
    seed = np.uint64(rng.integers(2**63))
    layout = lay_out(settings, rng)
    world = make_world(layout, settings)
    coverage = make_coverage(settings)
    clock = settings.clock
    by_slot = np.empty((clock.slots, settings.people), dtype=np.int32)

    def simulate(first: int) -> int:
        last = min(first + BLOCK_PEOPLE, settings.people)
        simulate_people(world, coverage, seed, first, last, clock.slot_minutes, by_slot)
        return last

    with ThreadPoolExecutor(get_num_threads()) as pool:
        for last in pool.map(simulate, range(0, settings.people, BLOCK_PEOPLE)):
            progress("city", last, settings.people)
    return Traces(by_slot, clock, layout.regions)


def make_world(layout: Layout, settings: CitySettings) -> World:
    """Prepare what all people share."""
    kernels = [
        Kernel(*(float(getattr(settings, f"{name}_{part}")) for part in _KERNEL))
        for name in ("commute", "visit")
    ]
    kernels.append(Kernel(0.0, 1.0, float(settings.excursion_cutoff_km)))
    return World(
        home=np.cumsum(layout.home),
        destinations=destinations(
            layout.regions.centre_km,
            (layout.work, layout.visit, layout.visit),
            kernels,
        ),
        rate=np.asarray(_LEAVING * settings.outings / 60),
        behaviour=Behaviour(
            *(float(getattr(settings, name)) for name in Behaviour._fields)
        ),
    )


_KERNEL = ("exponent", "scale_km", "cutoff_km")


def make_coverage(settings: CitySettings) -> Coverage:
    """Solve for the centre at which the mean over people is ``observed_share``."""
    share, sigma = float(settings.observed_share), float(settings.observed_sigma)
    renewal = min(1.0, settings.slot_hours / settings.gap_hours)
    if share in (0.0, 1.0):
        return Coverage(share == 1.0, -700.0, 0.0, renewal, settings.fill_gaps)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(centre: float) -> float:
        return float(weights @ (1 / (1 + np.exp(-(centre + sigma * nodes))))) - share

    reach = 40.0 + 12.0 * sigma
    centre = float(brentq(excess, -reach, reach))
    return Coverage(False, centre, sigma, renewal, settings.fill_gaps)
