"""Random numbers of one person: a splitmix64 stream keyed by (seed, person).

Every person owns a stream, so a city does not depend on the number of threads
nor on how people are grouped into blocks, and a city of more people begins
with the same people. Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

State = NDArray[np.uint64]
"""The state (1,) of one stream."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_SHIFT_3 = np.uint64(31)
_TO_53_BITS = np.uint64(11)
_UNIT = 1.0 / 9007199254740992.0


@njit(cache=True)
def mix(word: np.uint64) -> np.uint64:
    """A one-to-one scrambling of 64 bits."""
    word = (word ^ (word >> _SHIFT_1)) * _MULTIPLY_1
    word = (word ^ (word >> _SHIFT_2)) * _MULTIPLY_2
    return word ^ (word >> _SHIFT_3)


@njit(cache=True)
def start(state: State, seed: np.uint64, person: int) -> None:
    """Put the stream of ``person`` at its beginning."""
    state[0] = mix(seed ^ mix((np.uint64(person) + np.uint64(1)) * _GOLDEN))


@njit(cache=True)
def uniform(state: State) -> float:
    """A number in [0, 1) of 53 random bits."""
    state[0] += _GOLDEN
    return float(mix(state[0]) >> _TO_53_BITS) * _UNIT


@njit(cache=True)
def normal(state: State) -> float:
    """A standard normal number (Box and Muller, one of the pair)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(state)))
    return radius * math.cos(2.0 * math.pi * uniform(state))
