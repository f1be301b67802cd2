"""Kernels of a whole layer: from people to groups and back, nothing kept between.

Each group gathers its members' rows into one sum, which stays in registers,
scales it and adds it to the same members. With noise, the
group's Gaussian is made on the spot from a counter: the same numbers for any
number of threads, and nothing to store.
"""

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.hypergraph.pairs import Ends
from epifalcon.hypergraph.vectors import (
    VECTOR_BYTES,
    gather_one,
    gather_two,
    scatter_one,
    scatter_two,
)

RowsOf = NDArray[np.floating]
Bound = NDArray[np.int64]
Members = NDArray[np.uint32]
"""Unsigned, so that an index need not be looked at for being negative."""
GroupArrays = tuple[Ends, Members, RowsOf, RowsOf]
"""Start, members, weight and noise scale of the groups; no scale, no noise."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.float32(1)
_TWO = np.float32(2)
_HALF = np.float32(0.5)
_LOG_2 = np.float32(0.6931471805599453)
_QUARTER_TURN = np.float32(1.5707963267948966)
_TO_UNIT_32 = np.float32(2.0**-32)
_TO_UNIT_30 = np.float32(2.0**-30)
_THIRD, _FIFTH, _SEVENTH, _NINTH, _ELEVENTH = (
    np.float32(1 / odd) for odd in (3, 5, 7, 9, 11)
)
_SINE_3, _SINE_5, _SINE_7 = (np.float32(1 / f) for f in (-6, 120, -5040))
_COSINE_2, _COSINE_4, _COSINE_6, _COSINE_8 = (
    np.float32(1 / f) for f in (-2, 24, -720, 40320)
)


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: every bit depends on every bit."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@compiled
def combined(key: np.uint64, word: np.uint64) -> np.uint64:
    """The key that comes of another one and a word."""
    return mixed((key ^ word) + _GOLDEN)


@compiled
def normals(key: np.uint64, item: int, out: NDArray[np.float32]) -> None:
    """Fill ``out`` (an even number) with the standard Gaussians of one item.

    Box and Muller on two words of splitmix64, with a series each for logarithm,
    sine and cosine, so that it compiles to vector instructions. Errors stay
    under 1e-6, no value is farther out than 6.8.
    """
    half = len(out) // 2
    base = key + np.uint64(item) * np.uint64(half) * _GOLDEN
    for pair in range(half):
        word = mixed(base + np.uint64(pair) * _GOLDEN)
        high, low = np.uint32(word >> np.uint64(32)), np.uint32(word)
        # -log of a uniform number: exponent by its bits, mantissa by atanh.
        bits = np.float32((np.float32(high) + _HALF) * _TO_UNIT_32).view(np.int32)
        power = np.float32((bits >> np.int32(23)) - np.int32(127))
        mantissa = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(
            np.float32
        )
        s = (mantissa - _ONE) / (mantissa + _ONE)
        q = s * s
        series = (((_ELEVENTH * q + _NINTH) * q + _SEVENTH) * q + _FIFTH) * q + _THIRD
        logarithm = power * _LOG_2 + _TWO * s * (series * q + _ONE)
        radius = np.sqrt(np.abs(logarithm))
        # An angle within an eighth of a turn of the diagonal, and two signs; the
        # sqrt(2) of the diagonal is the one that the radius lacks.
        share = np.float32(low & np.uint32(0x3FFFFFFF)) * _TO_UNIT_30 - _HALF
        a = share * _QUARTER_TURN
        b = a * a
        sine = a * (_ONE + b * (_SINE_3 + b * (_SINE_5 + b * _SINE_7)))
        cosine = _ONE + b * (
            _COSINE_2 + b * (_COSINE_4 + b * (_COSINE_6 + b * _COSINE_8))
        )
        east = _ONE - _TWO * np.float32(low >> np.uint32(31))
        north = _ONE - _TWO * np.float32((low >> np.uint32(30)) & np.uint32(1))
        out[pair] = radius * (cosine - sine) * east
        out[half + pair] = radius * (cosine + sine) * north


@compiled
def _add(total: RowsOf, scale: float, drawn: NDArray[np.float32]) -> None:
    for place in range(len(total)):
        total[place] += scale * drawn[place]


@compiled
def spread_part(
    groups: GroupArrays,
    bound: Bound,
    draw: tuple[np.uint64, int],
    x: RowsOf,
    out: RowsOf,
) -> None:
    """Add to every member what its groups from bound[0] to bound[1] pass on.

    out[v] += sum over groups g of v of (weight[g] * sum of x[u] over u in g, and
    scale[g] times the Gaussian of g). Both are whole vectors wide; ``draw`` holds
    the noise key and the width that is used.
    """
    start, member, weight, scale = groups
    key, used = draw
    width = x.shape[1]
    lanes = VECTOR_BYTES // x.itemsize
    rows, sums = x.reshape(-1), out.reshape(-1)
    total = np.zeros(2 * lanes, x.dtype)
    one = x.dtype.type(1)
    noisy = len(scale) > 0
    drawn = np.zeros(width + lanes, np.float32)
    for group in range(bound[0], bound[1]):
        if noisy:
            normals(key, group, drawn[: used + used % 2])
        column = 0
        while column < width:
            where = width, column, start[group], start[group + 1]
            # Two vectors at once hide the time that an addition takes.
            both = column + lanes < width
            if both:
                gather_two(rows, member, total, weight[group], where)
            else:
                gather_one(rows, member, total, weight[group], where)
            taken = 2 * lanes if both else lanes
            if noisy:
                _add(total, scale[group], drawn[column:])
            if both:
                scatter_two(sums, member, total, one, where)
            else:
                scatter_one(sums, member, total, one, where)
            column += taken


@compiled
def finish_part(
    parts: NDArray[np.floating],
    bound: Bound,
    scales: tuple[RowsOf, RowsOf, RowsOf],
    draw: tuple[np.uint64, int],
    x: RowsOf,
    out: RowsOf,
) -> None:
    """Add the parts of each person, and what it gets from edges of its own.

    ``scales``: how often the person was alone, the noise of that (empty: none),
    and the factor of the result; ``draw``: the noise key and the first item.
    """
    alone, noise, factor = scales
    key, first = draw
    width = out.shape[1]
    drawn = np.zeros(width + width % 2, np.float32)
    for person in range(bound[0], bound[1]):
        for column in range(width):
            out[person, column] = alone[person] * x[person, column]
        for part in range(len(parts)):
            for column in range(width):
                out[person, column] += parts[part, person, column]
        if len(noise) and noise[person] > 0:
            normals(key, first + person, drawn)
            for column in range(width):
                out[person, column] += noise[person] * drawn[column]
        for column in range(width):
            out[person, column] *= factor[person]
