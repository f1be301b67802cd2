"""Sums of rows that stay in vector registers.

Numba's own loops keep a running sum in memory, which takes twice as long as the
functions here, which spell out the vectors for the compiler. A vector has 64
bytes; where the processor has shorter ones the compiler splits it.

Rows lie one after the other in a flat array, ``width`` values each, a whole
number of vectors. ``gather_one(rows, member, total, factor, (width, column,
first, past))`` sets ``total`` to ``factor`` times the sum of one vector, from
``column`` on, of the rows ``member[first:past]``; ``scatter_one`` adds ``factor``
times ``total`` to the same places. ``gather_two`` and ``scatter_two`` do it for
two vectors side by side. Only for compiled code.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

VECTOR_BYTES = 64

# Neither carries types.
_code: Any = cgutils
_kinds: Any = types


def lanes(dtype: DTypeLike) -> int:
    """How many values a vector holds."""
    return VECTOR_BYTES // np.dtype(dtype).itemsize


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.floating]:
    """Zeros that begin at a multiple of a vector, so that none lies astride lines."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + VECTOR_BYTES, np.uint8)
    first = -memory.ctypes.data % VECTOR_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


class _Loop:
    """The loop over the members of a group, while its code is written."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:  # noqa: ANN401
        self.builder = builder
        self.rows, self.member, self.total = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:3], args[:3], strict=True)
        )
        self.factor = args[3]
        self.width, self.column, self.first, self.past = _code.unpack_tuple(
            builder, args[4], 4
        )
        value = signature.args[0].dtype
        self.bytes = value.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(context.get_data_type(value), self.lanes)

    def pairs(self) -> Any:  # noqa: ANN401
        """The loop itself: a context with the pair's number."""
        kind = self.first.type
        return _code.for_range_slice(self.builder, self.first, self.past, kind(1), kind)

    def row_of(self, pair: Any) -> Any:  # noqa: ANN401
        """Where the member's values begin in ``rows``."""
        build = self.builder
        person = build.zext(build.load(build.gep(self.member, [pair])), self.width.type)
        return build.add(build.mul(person, self.width), self.column)

    def place(self, array: Any, start: Any, number: int) -> Any:  # noqa: ANN401
        """A pointer to vector ``number`` after ``start``."""
        build = self.builder
        first = build.add(start, self.width.type(number * self.lanes))
        return build.bitcast(build.gep(array, [first]), self.vector.as_pointer())

    def scaled(self, value: Any) -> Any:  # noqa: ANN401
        """The vector times the factor."""
        build, lane = self.builder, ir.IntType(32)
        empty = ir.Constant(self.vector, ir.Undefined)
        first = build.insert_element(empty, self.factor, lane(0))
        every = ir.Constant(ir.VectorType(lane, self.lanes), None)
        return build.fmul(value, build.shuffle_vector(first, empty, every))

    def load(self, place: Any) -> Any:  # noqa: ANN401
        """The vector at ``place``, which need not be aligned."""
        return self.builder.load(place, align=self.bytes)

    def store(self, value: Any, place: Any) -> None:  # noqa: ANN401
        """Write a vector to ``place``, which need not be aligned."""
        self.builder.store(value, place, align=self.bytes)


def _write_gather(loop: _Loop, vectors: int) -> None:
    build, zero = loop.builder, ir.Constant(loop.vector, None)
    # Variables on the stack, which the compiler turns into registers. They are
    # set here as well: the block that reserves them runs only once per call.
    sums = [_code.alloca_once_value(build, zero) for _ in range(vectors)]
    for one in sums:
        build.store(zero, one)
    with loop.pairs() as (pair, _):
        row = loop.row_of(pair)
        for number, one in enumerate(sums):
            more = loop.load(loop.place(loop.rows, row, number))
            build.store(build.fadd(build.load(one), more), one)
    for number, one in enumerate(sums):
        goal = loop.place(loop.total, loop.width.type(0), number)
        loop.store(loop.scaled(build.load(one)), goal)


def _write_scatter(loop: _Loop, vectors: int) -> None:
    start = loop.width.type(0)
    added = [
        loop.scaled(loop.load(loop.place(loop.total, start, number)))
        for number in range(vectors)
    ]
    with loop.pairs() as (pair, _):
        row = loop.row_of(pair)
        for number, one in enumerate(added):
            goal = loop.place(loop.rows, row, number)
            loop.store(loop.builder.fadd(loop.load(goal), one), goal)


def _function(write: Callable[[_Loop, int], None], vectors: int) -> Any:  # noqa: ANN401
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ANN401
        write(_Loop(context, builder, signature, args), vectors)
        return context.get_constant_null(signature.return_type)

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def passing(typing, rows, member, total, factor, where):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        numbers = _kinds.UniTuple(_kinds.intp, 4)
        return _kinds.void(rows, member, total, rows.dtype, numbers), codegen

    return passing


gather_one, gather_two = (_function(_write_gather, vectors) for vectors in (1, 2))
scatter_one, scatter_two = (_function(_write_scatter, vectors) for vectors in (1, 2))
