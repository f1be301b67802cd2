"""Jumps between regions, stays in them, and the exponents of both."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.spatial import cKDTree

from epifalcon.mobility.validity.sample import Sample
from epifalcon.types import UNKNOWN, Counts, Floats

LEAST_JUMPS = 50
_SHORTEST_JUMP_KM = 1.0
_LONGEST_STAY_HOURS = 17.0
_EXPONENTS = (0.0, 6.0)


@dataclass(frozen=True, eq=False)
class Moves:
    """Every jump's length and every completed stay's length in the sample.

    ``jump_km`` are distances between consecutive slots spent in different
    regions, both observed (empty if places are unknown); ``stay_slots`` and
    ``away`` the length of each stay that began and ended under observation,
    and whether it was away from home; ``commute_km`` one per commuter.
    """

    jump_km: Floats
    stay_slots: Counts
    away: np.ndarray
    commute_km: Floats
    shortest_km: float


def measure_moves(sample: Sample) -> Moves:
    """Find all jumps and stays; arrays over the whole sample."""
    here, there = sample.by_person[:, :-1], sample.by_person[:, 1:]
    changed = here != there
    jumped = changed & (here != UNKNOWN) & (there != UNKNOWN)
    stay_slots, away = _stays(sample, changed)
    jump_km, commute_km = np.empty(0), np.empty(0)
    if sample.regions.placed:
        jump_km = sample.regions.distance_km(here[jumped], there[jumped])
        working = sample.work != UNKNOWN
        commute_km = sample.regions.distance_km(
            sample.home[working], sample.work[working]
        )
    shortest = max(_SHORTEST_JUMP_KM, _spacing_km(sample))
    return Moves(jump_km, stay_slots, away, commute_km, shortest)


def jump_exponent(moves: Moves) -> float:
    """Exponent of a power law between the shortest and the longest jump.

    Maximum likelihood over the jumps of at least ``shortest_km``: 1 km, or the
    usual distance of neighbouring regions where that is more.
    """
    jump = moves.jump_km[moves.jump_km >= moves.shortest_km]
    if len(jump) < LEAST_JUMPS:
        return float("nan")
    high = float(jump.max()) / moves.shortest_km
    if high <= 1.0:
        return float("nan")
    mean_log = float(np.log(jump / moves.shortest_km).mean())

    def loss(exponent: float) -> float:
        power = 1.0 - exponent
        if abs(power) < 1e-9:
            return float(np.log(np.log(high))) + exponent * mean_log
        mass = np.expm1(power * np.log(high)) / power
        return float(np.log(mass)) + exponent * mean_log

    return float(minimize_scalar(loss, bounds=_EXPONENTS, method="bounded").x)


def stay_exponent(moves: Moves, slot_hours: float) -> float:
    """Exponent of a power law of stays away from home, up to 17 hours.

    Maximum likelihood for whole numbers of slots. Song et al. (2010) cut off
    at 17 hours too.
    """
    most = int(_LONGEST_STAY_HOURS / slot_hours)
    stays = moves.stay_slots[moves.away & (moves.stay_slots <= most)]
    if len(stays) < LEAST_JUMPS or most < 3:
        return float("nan")
    log_length = np.log(np.arange(1, most + 1))
    mean_log = float(np.log(stays).mean())

    def loss(exponent: float) -> float:
        return float(np.log(np.exp(-exponent * log_length).sum())) + exponent * mean_log

    return float(minimize_scalar(loss, bounds=_EXPONENTS, method="bounded").x)


def _stays(sample: Sample, changed: np.ndarray) -> tuple[Counts, np.ndarray]:
    people, slots = sample.by_person.shape
    begins = np.ones((people, slots), dtype=bool)
    begins[:, 1:] = changed
    start = np.flatnonzero(begins)
    length = np.diff(np.append(start, people * slots))
    place = sample.by_person.ravel()[start]
    person, slot = np.divmod(start, slots)
    known = place != UNKNOWN
    before = np.append(False, known[:-1]) & (slot > 0)
    after = np.append(known[1:], False) & (slot + length < slots)
    whole = known & before & after
    return length[whole], (place != sample.home[person])[whole]


def _spacing_km(sample: Sample) -> float:
    """The usual distance of a region to its nearest neighbour."""
    centre = sample.regions.centre_km
    if not sample.regions.placed or len(centre) < 2:
        return 0.0
    near, _ = cKDTree(centre).query(centre[:: max(1, len(centre) // 2000)], k=2)
    return float(np.median(np.asarray(near)[:, 1]))
