"""Values as 64-bit fixed-point integers, whose sums are exact in any order.

Integers are modulo 2^64, negative ones in two's complement. Values are truncated toward
zero, so that no norm grows.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epifalcon.checks import typed
from epifalcon.errors import DataError
from epifalcon.federation.sealed.task import SealedTask
from epifalcon.types import Floats

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""
_ROUNDING = 1e-12
"""Relative error of an L2 norm in double precision."""


def encode(values: ArrayLike, task: SealedTask) -> Words:
    """Encode messages of one person each, (..., task.length), of the same shape.

    Raises ``DataError`` if a norm exceeds the person's bound: clip first.
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim == 0 or rows.shape[-1] != task.length:
        raise DataError(
            f"a message has shape {rows.shape}, expected {task.length} entries"
        )
    if rows.size > task.length * task.most_people:
        raise DataError(
            f"{rows.size // task.length} people, expected at most "
            f"most_people={task.most_people}"
        )
    words = to_steps(rows, task)
    norms = np.linalg.norm(rows, axis=-1).reshape(-1)
    if (norms > task.person_bound * (1 + _ROUNDING)).any():
        raise DataError(
            f"message {int(norms.argmax())} has the L2 norm {norms.max():.6g}, which "
            f"exceeds the bound {task.person_bound:g}: clip it first"
        )
    return words


def to_steps(values: Floats, task: SealedTask) -> Words:
    """Encode entries of any shape, each of one person; the caller bounds the norm."""
    if not np.isfinite(values).all():
        raise DataError("a message holds NaN or infinity, expected finite numbers")
    largest = float(np.abs(values).max(initial=0.0))
    if largest > task.person_bound * (1 + _ROUNDING):
        raise DataError(
            f"a message has an entry of {largest:.6g}, which exceeds the bound "
            f"{task.person_bound:g}: clip it first"
        )
    return np.trunc(values * task.scale).astype(np.int64).view(np.uint64)


def decode(words: Words, task: SealedTask) -> Floats:
    """Convert a sum modulo 2^64 to signed values, (task.length,)."""
    require_words(words, task)
    return words.view(np.int64) / task.scale


def require_words(words: Words, task: SealedTask) -> None:
    """Raise ``DataError`` unless ``words`` is one vector of the task's length."""
    typed(np.uint64, 1, words=words)
    if len(words) != task.length:
        raise DataError(
            f"a vector has {len(words)} entries, expected length={task.length}"
        )
