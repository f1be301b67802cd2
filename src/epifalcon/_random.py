"""Random streams for compiled code: splitmix64, keyed by seed and stream number.

Every person has a separate stream, so results do not depend on the number of
threads or on how people are grouped into blocks. Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014.
"""

import math

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import njit

State = NDArray[np.uint64]
"""State (1,) of one stream."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit()
def mix(word: np.uint64) -> np.uint64:
    """Mix 64 bits bijectively."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit()
def combine(key: np.uint64, word: np.uint64) -> np.uint64:
    """Derive a new key from a key and a word."""
    return mix((key ^ word) + GOLDEN)


@njit()
def start(state: State, seed: np.uint64, number: int) -> None:
    """Set ``state`` to the beginning of stream ``number``."""
    state[0] = mix(seed ^ mix((np.uint64(number) + np.uint64(1)) * GOLDEN))


@njit()
def uniform(state: State) -> float:
    """Draw a number in [0, 1) with 53 random bits."""
    state[0] += GOLDEN
    return float(mix(state[0]) >> np.uint64(11)) * 2.0**-53


@njit()
def normal(state: State) -> float:
    """Draw a standard normal number (Box-Muller, one of the pair)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(state)))
    return radius * math.cos(2.0 * math.pi * uniform(state))


@njit(nogil=True, error_model="numpy")
def fill_normals(
    key: np.uint64, first: int, scale: NDArray[np.floating], out: NDArray[np.floating]
) -> None:
    """Fill ``out`` with Gaussians; row i has standard deviation ``scale[i]``.

    Row i depends only on ``key`` and ``first + i``. Uses Box-Muller on splitmix64
    words, with series for logarithm, sine and cosine, so that the loop compiles to
    vector instructions: 1 ns per number, compared with 10 ns for NumPy's Philox.
    Errors are below 1e-6, and no value exceeds 6.8 standard deviations.
    """
    rows, width = out.shape
    half = (width + 1) // 2
    east, north = np.empty(half, np.float32), np.empty(half, np.float32)
    one, two, middle = np.float32(1), np.float32(2), np.float32(0.5)
    for row in range(rows):
        base = key + np.uint64(first + row) * np.uint64(half) * GOLDEN
        for pair in range(half):
            word = mix(base + np.uint64(pair) * GOLDEN)
            high, low = np.uint32(word >> np.uint64(32)), np.uint32(word)
            # -log of a uniform number: exponent by its bits, mantissa by atanh.
            unit = np.float32((np.float32(high) + middle) * np.float32(2.0**-32))
            bits = unit.view(np.int32)
            power = np.float32((bits >> np.int32(23)) - np.int32(127))
            mantissa = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000))
            m = mantissa.view(np.float32)
            s = (m - one) / (m + one)
            q = s * s
            series = np.float32(1 / 9) + q * np.float32(1 / 11)
            series = np.float32(1 / 5) + q * (np.float32(1 / 7) + q * series)
            series = one + q * (np.float32(1 / 3) + q * series)
            radius = np.sqrt(np.abs(power * np.float32(math.log(2)) + two * s * series))
            # An angle within an eighth of a turn of the diagonal, and two signs; the
            # sqrt(2) of the diagonal is the factor missing in the radius.
            share = np.float32(low & np.uint32(0x3FFFFFFF)) * np.float32(2.0**-30)
            a = (share - middle) * np.float32(math.pi / 2)
            b = a * a
            sine = np.float32(1 / 120) + b * np.float32(-1 / 5040)
            sine = a * (one + b * (np.float32(-1 / 6) + b * sine))
            cosine = np.float32(-1 / 720) + b * np.float32(1 / 40320)
            cosine = one + b * (
                np.float32(-1 / 2) + b * (np.float32(1 / 24) + b * cosine)
            )
            sign = one - two * np.float32(low >> np.uint32(31))
            east[pair] = radius * (cosine - sine) * sign
            sign = one - two * np.float32((low >> np.uint32(30)) & np.uint32(1))
            north[pair] = radius * (cosine + sine) * sign
        for column in range(half):
            out[row, column] = scale[row] * east[column]
        for column in range(half, width):
            out[row, column] = scale[row] * north[column - half]
