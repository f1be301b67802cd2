"""Kernels of a whole layer: from people to groups and back, nothing kept between.

Block by block (see ``stays.py``): rows enter small tables where stays begin and
leave where they end, groups pass on their scaled sums, and each stay gets the
difference of what was passed on. With noise, the group's Gaussian is made on the
spot from a counter: the same numbers for any number of threads, and nothing to
store.
"""

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.hypergraph.pairs import Ends
from epifalcon.hypergraph.stays import MOST_GROUPS, Members, StayArrays
from epifalcon.hypergraph.vectors import VECTOR_BYTES, collect, enter, give, pass_on

RowsOf = NDArray[np.floating]
Bound = tuple[int, int]
Flat = tuple[RowsOf, RowsOf]
"""x and out, as one row of values each."""
Tables = tuple[RowsOf, RowsOf, RowsOf, RowsOf, RowsOf, RowsOf]
"""Of a block: who is there once, enters, what is passed on, its sum; weight, noise."""
Where = tuple[int, int, int, int, int, int]
"""Block, width, column, first group, groups, step of the noise."""
MeetingArrays = tuple[Ends, Members, RowsOf]
"""Start, others and weights of ``Meetings``."""
GroupArrays = tuple[RowsOf, RowsOf]
"""Weight and noise scale of the groups; no scale, no noise."""

_enter_1, _enter_2 = enter
_give_1, _give_2 = give
_pass_on_1, _pass_on_2 = pass_on
_collect_1, _collect_2 = collect

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
def _draw_block(
    begin: int, end: int, draw: tuple[np.uint64, int], scale: RowsOf, noise: RowsOf
) -> None:
    """The scaled Gaussians of the groups of a block, one in each row of ``noise``."""
    key, used = draw
    drawn = np.zeros(used + used % 2, np.float32)
    for group in range(begin, end):
        normals(key, group, drawn)
        for column in range(used):
            noise[group - begin, column] = scale[group] * drawn[column]


@compiled
def _aligned(size: int, like: RowsOf) -> RowsOf:
    """Zeros that begin at a multiple of a vector, in compiled code."""
    lanes = VECTOR_BYTES // like.itemsize
    memory = np.zeros(size + lanes, like.dtype)
    first = (-(memory.ctypes.data // like.itemsize)) % lanes
    return memory[first : first + size]


@compiled
def _pass_one(stays: StayArrays, tables: Tables, where: Where, rows: Flat) -> None:
    """One vector of a block from people to groups and back.

    A function of its own: as a part of the loop over blocks it is compiled to
    something a third slower.
    """
    start, long, person, first, past = stays[1:]
    once, entered, passed, summed = tables[:4]
    number, width, column, group, places, step = where
    x, out = rows
    short = width, column, start[number], long[number]
    longer = width, column, long[number], start[number + 1]
    _enter_1((x, person, first, once), short)
    _enter_1((x, person, first, past, entered), longer)
    _pass_on_1(tables, (group, places, column, step))
    _give_1((out, person, first, passed), short)
    _give_1((out, person, first, past, summed), longer)


@compiled
def _pass_two(stays: StayArrays, tables: Tables, where: Where, rows: Flat) -> None:
    """Two vectors at once: half the work that is not about vectors."""
    start, long, person, first, past = stays[1:]
    once, entered, passed, summed = tables[:4]
    number, width, column, group, places, step = where
    x, out = rows
    short = width, column, start[number], long[number]
    longer = width, column, long[number], start[number + 1]
    _enter_2((x, person, first, once), short)
    _enter_2((x, person, first, past, entered), longer)
    _pass_on_2(tables, (group, places, column, step))
    _give_2((out, person, first, passed), short)
    _give_2((out, person, first, past, summed), longer)


@compiled
def spread_part(
    stays: StayArrays,
    groups: GroupArrays,
    bound: Bound,
    draw: tuple[np.uint64, int],
    rows: tuple[RowsOf, RowsOf],
) -> None:
    """Add to everybody what the groups of the blocks bound[0] to bound[1] pass on.

    ``rows``: x, and out, to which out[v] += sum over groups g of v of
    (weight[g] * sum of x[u] over u in g, and scale[g] times the Gaussian of g).
    Both are whole vectors wide; ``draw`` holds the noise key and the width that
    is used.
    """
    block, (weight, scale) = stays[0], groups
    width = rows[0].shape[1]
    flat = rows[0].reshape(-1), rows[1].reshape(-1)
    lanes = VECTOR_BYTES // rows[0].itemsize
    noisy = len(scale) > 0
    noise = np.zeros((MOST_GROUPS if noisy else 1, width), rows[0].dtype)
    step = width if noisy else 0
    size = 2 * lanes * (MOST_GROUPS + 1)
    once, entered = _aligned(size, flat[0]), _aligned(size, flat[0])
    passed, summed = _aligned(size, flat[0]), _aligned(size, flat[0])
    tables = once, entered, passed, summed, weight, noise.reshape(-1)
    for number in range(bound[0], bound[1]):
        begin, end = block[number], block[number + 1]
        if noisy:
            _draw_block(begin, end, draw, scale, noise)
        for column in range(0, width, 2 * lanes):
            where = number, width, column, begin, end - begin, step
            if column + lanes < width:
                _pass_two(stays, tables, where, flat)
            else:
                _pass_one(stays, tables, where, flat)


@compiled
def _add_lonely(
    bound: Bound,
    scales: tuple[RowsOf, RowsOf],
    draw: tuple[np.uint64, int, int],
    out: RowsOf,
) -> None:
    """The noise of edges with one person, times the factor of the result."""
    noise, after = scales
    key, first, used = draw
    drawn = np.zeros(used + used % 2, np.float32)
    for person in range(bound[0], bound[1]):
        if noise[person] > 0:
            normals(key, first + person, drawn)
            scale = noise[person] * after[person]
            for column in range(used):
                out[person, column] += scale * drawn[column]


@compiled
def finish_part(
    parts: NDArray[np.floating],
    bound: Bound,
    scales: tuple[RowsOf, RowsOf, RowsOf],
    meetings: MeetingArrays,
    draw: tuple[np.uint64, int, int],
    rows: tuple[RowsOf, RowsOf],
) -> bool:
    """Add the parts of each person, its meetings, and what is its own.

    ``rows``: x, and out, both whole vectors wide like the parts, which become
    zeros. ``scales``: what a person gets of its own row, the noise of edges with
    one person (empty: none), and the factor of the result. ``draw``: the noise
    key, the first item and the width that is used. Tells whether all values are
    finite.
    """
    own, noise, after = scales
    width = rows[0].shape[1]
    x, out = rows[0].reshape(-1), rows[1].reshape(-1)
    lanes = VECTOR_BYTES // x.itemsize
    odd, finite = np.zeros(2 * lanes, x.dtype), True
    arrays = (out, x, parts.reshape(-1), own, after, *meetings, odd)
    for column in range(0, width, 2 * lanes):
        where = width, column, bound[0], bound[1], len(x), len(parts)
        if column + lanes < width:
            _collect_2(arrays, where)
        else:
            _collect_1(arrays, where)
        finite = finite and not np.isnan(odd).any()
    if len(noise):
        _add_lonely(bound, (noise, after), draw, rows[1])
    return finite
