"""Vectors that pass from rows to tables and back, spelt out for LLVM.

Numba's own loops look at every index and leave vectors to chance; the functions
here leave the compiler no choice. A vector has 64 bytes, a line of the cache;
where the processor has shorter ones the compiler splits it.

Rows lie one after the other in a flat array, ``width`` values each, a whole
number of vectors. One or two of these are worked on, those from ``column`` on;
a table has as many in each of its rows. With ``where`` = (width, column, begin,
end), for each stay from ``begin`` up to ``end`` of person v, from place a to
before place b:

- ``enter((rows, person, first, table), where)``: table[a] += rows[v]
- ``enter((rows, person, first, past, table), where)``: the same, and
  table[b] -= rows[v]
- ``give((rows, person, first, table), where)``: rows[v] += table[a]
- ``give((rows, person, first, past, table), where)``:
  rows[v] += table[b] - table[a]

``pass_on`` and ``collect`` are described where they are made. Of each there are
two, for one vector and for two. Only for compiled code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

VECTOR_BYTES = 64

# None of them carries types.
_code: Any = cgutils
_kinds: Any = types
_INT: Any = ir.IntType(64)


def lanes(dtype: DTypeLike) -> int:
    """How many values a vector holds."""
    return VECTOR_BYTES // np.dtype(dtype).itemsize


def aligned(
    shape: tuple[int, ...], dtype: DTypeLike, make: Callable[..., Any] = np.empty
) -> NDArray[np.floating]:
    """An array that begins at a multiple of a vector, so that none lies astride lines.

    Its values are whatever was there.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = make(size + VECTOR_BYTES, np.uint8)
    first = -memory.ctypes.data % VECTOR_BYTES
    made: NDArray[np.floating] = memory[first : first + size].view(dtype)
    return made.reshape(shape)


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.floating]:
    """The same, of zeros."""
    return aligned(shape, dtype, np.zeros)


class _Writer:
    """Writes the code of one function: its arrays, and the words for vectors."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:  # noqa: ANN401
        self.build = builder
        kinds = signature.args[0].types
        arrays = _code.unpack_tuple(builder, args[0], len(kinds))
        self.arrays = [
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(kinds, arrays, strict=True)
        ]
        self.where = _code.unpack_tuple(builder, args[1], len(signature.args[1]))
        value = kinds[0].dtype
        self.bytes = value.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(context.get_data_type(value), self.lanes)
        self.zero = ir.Constant(self.vector, None)

    def each(self, begin: Any, end: Any) -> Any:  # noqa: ANN401
        """A loop: a context with the number."""
        return _code.for_range_slice(self.build, begin, end, _INT(1), _INT)

    def item(self, array: Any, number: Any) -> Any:  # noqa: ANN401
        """One value of an array."""
        return self.build.load(self.build.gep(array, [number]))

    def whole(self, array: Any, number: Any) -> Any:  # noqa: ANN401
        """One unsigned value of an array, as a number to reckon with."""
        return self.build.zext(self.item(array, number), _INT)

    def place(self, array: Any, start: Any) -> Any:  # noqa: ANN401
        """A pointer to the vector that begins at ``start``."""
        pointer = self.build.gep(array, [start])
        return self.build.bitcast(pointer, self.vector.as_pointer())

    def load(self, array: Any, start: Any) -> Any:  # noqa: ANN401
        """The vector there, which need not be aligned."""
        return self.build.load(self.place(array, start), align=self.bytes)

    def store(self, value: Any, array: Any, start: Any) -> None:  # noqa: ANN401
        """Write a vector to a place, which need not be aligned."""
        self.build.store(value, self.place(array, start), align=self.bytes)

    def spread(self, value: Any) -> Any:  # noqa: ANN401
        """A vector of equal values."""
        build, lane = self.build, ir.IntType(32)
        empty = ir.Constant(self.vector, ir.Undefined)
        first = build.insert_element(empty, value, lane(0))
        every = ir.Constant(ir.VectorType(lane, self.lanes), None)
        return build.shuffle_vector(first, empty, every)

    def next(self, start: Any, number: int) -> Any:  # noqa: ANN401
        """Where vector ``number`` after ``start`` begins."""
        return self.build.add(start, _INT(number * self.lanes))

    def variables(self, count: int) -> list[Any]:
        """Vectors on the stack, which the compiler turns into registers, set to 0.

        The block that reserves them runs only once per call, so they are set here.
        """
        made = [_code.alloca_once(self.build, self.vector) for _ in range(count)]
        for one in made:
            self.build.store(self.zero, one)
        return made

    def add_to(
        self,
        total: list[Any],
        place: tuple[Any, Any],
        factor: Any = None,  # noqa: ANN401
    ) -> None:
        """Add the vectors at ``place``, array and start, times ``factor``, to some."""
        array, start = place
        scale = None if factor is None else self.spread(factor)
        for number, one in enumerate(total):
            value = self.load(array, self.next(start, number))
            if scale is not None:
                value = self.build.fmul(scale, value)
            self.build.store(self.build.fadd(self.build.load(one), value), one)

    def clear(self, array: Any, start: Any, count: int) -> None:  # noqa: ANN401
        """Set some vectors to 0."""
        for number in range(count):
            self.store(self.zero, array, self.next(start, number))


@contextmanager
def _each_stay(write: _Writer, vectors: int) -> Iterator[tuple[Any, Any, Any]]:
    """A loop over stays: where row, first place and place past the last begin."""
    build = write.build
    person, first, *past = write.arrays[1:-1]
    width, column, begin, end = write.where
    size = _INT(vectors * write.lanes)
    with write.each(begin, end) as (stay, _):
        row = build.add(build.mul(write.whole(person, stay), width), column)
        here = build.mul(write.whole(first, stay), size)
        gone = build.mul(write.whole(past[0], stay), size) if past else None
        yield row, here, gone


def _write_enter(write: _Writer, vectors: int) -> None:
    build, rows, table = write.build, write.arrays[0], write.arrays[-1]
    with _each_stay(write, vectors) as (row, here, gone):
        for number in range(vectors):
            value = write.load(rows, write.next(row, number))
            place = write.next(here, number)
            write.store(build.fadd(write.load(table, place), value), table, place)
            if gone is not None:
                place = write.next(gone, number)
                write.store(build.fsub(write.load(table, place), value), table, place)


def _write_give(write: _Writer, vectors: int) -> None:
    build, rows, table = write.build, write.arrays[0], write.arrays[-1]
    with _each_stay(write, vectors) as (row, here, gone):
        for number in range(vectors):
            given = write.load(table, write.next(here, number))
            if gone is not None:
                last = write.load(table, write.next(gone, number))
                given = build.fsub(last, given)
            place = write.next(row, number)
            write.store(build.fadd(write.load(rows, place), given), rows, place)


def _write_pass_on(write: _Writer, vectors: int) -> None:
    """``pass_on((once, entered, passed, summed, weight, noise), where)``.

    ``where`` = (first group, places, where noise begins, its step). Place by
    place: who is there is who was there, and entered; passed becomes
    weight * (there + once) + noise, what the group passes on, and summed the sum
    of that over all places before. Once and entered are left as zeros.
    """
    build = write.build
    once, entered, passed, summed, weight, noise = write.arrays
    group, places, noise_start, noise_step = write.where
    size = _INT(vectors * write.lanes)
    present, total = write.variables(vectors), write.variables(vectors)
    with write.each(_INT(0), places) as (place, _):
        factor = write.spread(write.item(weight, build.add(group, place)))
        drawn = build.add(noise_start, build.mul(place, noise_step))
        for number in range(vectors):
            here = write.next(build.mul(place, size), number)
            there = build.fadd(build.load(present[number]), write.load(entered, here))
            build.store(there, present[number])
            given = build.fmul(factor, build.fadd(there, write.load(once, here)))
            given = build.fadd(given, write.load(noise, write.next(drawn, number)))
            before = build.load(total[number])
            build.store(build.fadd(before, given), total[number])
            write.store(given, passed, here)
            write.store(before, summed, here)
            write.store(write.zero, once, here)
            write.store(write.zero, entered, here)
    for number in range(vectors):
        last = write.next(build.mul(places, size), number)
        write.store(build.load(total[number]), summed, last)
        write.store(write.zero, entered, last)


def _write_collect(write: _Writer, vectors: int) -> None:
    """``collect((out, rows, parts, own, after, start, met, weight, odd), where)``.

    ``where`` = (width, column, begin, end, size of a part, parts). For each
    person: out = after * (own * rows + the sum of weight * rows over those met +
    the parts in order). The parts are left as zeros. Odd, as wide as what is
    worked on, becomes NaN where a value is not finite, and 0 where none is.
    """
    build = write.build
    out, rows, parts, own, after, start, met, weight, odd = write.arrays
    width, column, begin, end, size, count = write.where
    differences = write.variables(vectors)
    with write.each(begin, end) as (person, _):
        row = build.add(build.mul(person, width), column)
        total = write.variables(vectors)
        write.add_to(total, (rows, row), write.item(own, person))
        past = write.item(start, build.add(person, _INT(1)))
        with write.each(write.item(start, person), past) as (entry, _):
            other = build.add(build.mul(write.whole(met, entry), width), column)
            write.add_to(total, (rows, other), write.item(weight, entry))
        with write.each(_INT(0), count) as (part, _):
            place = build.add(row, build.mul(part, size))
            write.add_to(total, (parts, place))
            write.clear(parts, place, vectors)
        factor = write.spread(write.item(after, person))
        for number, one in enumerate(total):
            made = build.fmul(build.load(one), factor)
            write.store(made, out, write.next(row, number))
            # A finite value less itself is 0, any other NaN.
            none = build.fadd(build.load(differences[number]), build.fsub(made, made))
            build.store(none, differences[number])
    for number, one in enumerate(differences):
        write.store(build.load(one), odd, write.next(_INT(0), number))


def _functions(write: Callable[[_Writer, int], None]) -> tuple[Any, Any]:
    """The function for one vector and that for two."""
    return _function(lambda one: write(one, 1)), _function(lambda one: write(one, 2))


def _function(write: Callable[[_Writer], None]) -> Any:  # noqa: ANN401
    """A function of some arrays, the first of the vectors' type, and whole numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ANN401
        write(_Writer(context, builder, signature, args))
        return context.get_constant_null(signature.return_type)

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def passing(typing, arrays, where):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        numbers = _kinds.UniTuple(_kinds.intp, len(where))
        return _kinds.void(arrays, numbers), codegen

    return passing


enter, give = _functions(_write_enter), _functions(_write_give)
pass_on = _functions(_write_pass_on)
collect = _functions(_write_collect)
