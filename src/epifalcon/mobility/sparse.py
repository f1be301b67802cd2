"""Sparse tables of regions by regions: made, added up, stored."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon.errors import CorruptFileError

_PARTS = ("data", "indices", "indptr")


def table(
    row: NDArray[np.int64],
    column: NDArray[np.int64],
    value: NDArray[Any],
    shape: tuple[int, int],
) -> sp.csr_array:
    """CSR table of ``value`` at (row, column), doubles added, columns sorted."""
    made = sp.coo_array((value, (row, column)), shape=shape).tocsr()
    made.sum_duplicates()
    return made


def rows_of(stack: sp.csr_array, part: int, rows: int) -> sp.csr_array:
    """Rows ``part * rows`` to ``(part + 1) * rows`` of a stack, on its memory."""
    ends = stack.indptr[part * rows : (part + 1) * rows + 1]
    cells = slice(int(ends[0]), int(ends[-1]))
    return sp.csr_array(
        (stack.data[cells], stack.indices[cells], ends - ends[0]),
        shape=(rows, stack.shape[1]),
    )


def add(one: sp.csr_array, other: sp.csr_array) -> sp.csr_array:
    """The sum of two tables of one shape, columns sorted."""
    made = sp.csr_array(one + other)
    made.sum_duplicates()
    return made


class RunningSum:
    """Adds many sparse tables of one shape, each cell a logarithmic number of times.

    Adding every part to the total at once would walk the growing total for
    every part. The order of additions depends on the sizes of the parts alone,
    so equal parts give equal bits.
    """

    def __init__(self, shape: tuple[int, int], dtype: type[np.generic]) -> None:
        self._zero = sp.csr_array(shape, dtype=dtype)
        self._parts: list[sp.csr_array] = []

    def add(self, part: sp.csr_array) -> None:
        """Take one more part."""
        self._parts.append(part)
        while len(self._parts) > 1 and self._parts[-2].nnz <= 2 * self._parts[-1].nnz:
            self._join()

    def total(self) -> sp.csr_array:
        """The sum of all parts, columns sorted; no part may be added later."""
        while len(self._parts) > 1:
            self._join()
        made = self._parts.pop() if self._parts else self._zero
        made.sum_duplicates()
        return made

    def _join(self) -> None:
        last = self._parts.pop()
        self._parts[-1] = add(self._parts[-1], last)


def pack(name: str, matrix: sp.csr_array) -> dict[str, NDArray[Any]]:
    """The three arrays of a CSR table, named after it, for the store."""
    return {f"{name}_{part}": getattr(matrix, part) for part in _PARTS}


def unpack(
    name: str, arrays: Mapping[str, NDArray[Any]], shape: tuple[int, int]
) -> sp.csr_array:
    """The table that ``pack`` made into arrays; raises ``CorruptFileError``."""
    parts = tuple(np.asarray(arrays[f"{name}_{part}"]) for part in _PARTS)
    try:
        matrix = sp.csr_array(parts, shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise CorruptFileError(f"the table {name!r} is not sound: {error}") from None
    return matrix


def lookup(
    matrix: sp.csr_array, row: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[Any]:
    """Values at (row, column), element by element; 0 where nothing is stored.

    Columns must be sorted within each row. A binary search in all rows at once.
    """
    low = matrix.indptr[row].astype(np.int64)
    end = matrix.indptr[row + 1].astype(np.int64)
    high = end.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        # Where the search is over, middle may point past the last cell.
        below = matrix.indices[np.where(open_, middle, 0)] < column
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    values = np.zeros(row.shape, dtype=matrix.data.dtype)
    inside = np.flatnonzero(low < end)
    hit = inside[matrix.indices[low[inside]] == column[inside]]
    values[hit] = matrix.data[low[hit]]
    return values
