"""Dropout factors number by number, in Python's whole numbers."""

import numpy as np

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def dropout_by_loop(person, width, dropout, key):
    """0 with chance ``dropout``, else 1/(1 - dropout): (people, width)."""
    out = np.zeros((len(person), width), np.float32)
    for row, one in enumerate(person.tolist()):
        base = _mixed(((key ^ one) + _GOLDEN) & _WORD)
        for column in range(width):
            word = _mixed((base + column // 2 * 2 * _GOLDEN) & _WORD)
            drawn = word & 0xFFFFFFFF if column % 2 else word >> 32
            if drawn >= round(dropout * 2**32):
                out[row, column] = 1 / (1 - dropout)
    return out
