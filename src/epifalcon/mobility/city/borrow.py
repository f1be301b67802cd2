"""Arrays without reference counts, for compiled functions that call each other often.

Numba counts references to every array of a record at every call; the counting
is atomic and took six tenths of the time to build a city. A borrowed array is
the same memory without an owner: whoever borrows keeps the owner alive.
"""

from typing import Any

from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _pointer(_context: Any, address: Any) -> Any:  # noqa: ANN401
    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@njit(cache=True)
def borrow(array: Any) -> Any:  # noqa: ANN401
    """The same elements of a C-ordered array, without an owner."""
    return carray(_pointer(array.ctypes.data), array.shape, array.dtype)  # type: ignore[call-arg]
