"""Exponential and logarithm for compiled loops, written so that they use vectors.

numba's cache of a caller does not notice a change of this file. Each file of
compiled code that uses it therefore names this file's SHA-256, and a test compares.
"""

import math

import numpy as np

from epifalcon.hypergraph.compiled import compiled

# Adding and taking away this number rounds to a whole one, up to 2^51; in between
# the whole number stands in the last bits. Shifts and masks of bits use vectors on
# every processor, conversions between whole numbers and doubles do not.
_ROUND = 1.5 * 2.0**52
_LN_2 = math.log(2)
_MANTISSA = np.uint64(52)
_EXPONENT_OF_1 = np.uint64(1023)
_BITS_OF_1 = np.uint64(1023 << 52)
_ROOT_HALF = np.uint64(0x3FE6A09E667F3BCD)
_WHOLE = 2.0**52
_BITS_OF_WHOLE = np.uint64(1075 << 52)


@compiled
def expm1(x: float) -> float:
    """exp(x) - 1 for x within 700 of 0, to nine digits; loops of it use vectors.

    x = k ln 2 + r, so exp(x) - 1 = 2^k (exp(r) - 1) + (2^k - 1): the first digits
    of a small x are kept.
    """
    shifted = x * (1 / _LN_2) + _ROUND
    r = x - (shifted - _ROUND) * _LN_2
    tail = 1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * (1 / 40320)))
    small = r * (1 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * tail))))
    bits = np.float64(shifted).view(np.uint64) + _EXPONENT_OF_1
    power = np.uint64(bits << _MANTISSA).view(np.float64)
    return small * power + (power - 1)


@compiled
def log1p(x: float) -> float:
    """log(1 + x) for x > -1, to 1e-10 or nine digits; loops of it use vectors.

    1 + x = 2^e m with m between the roots of 1/2 and 2, and with
    s = (m - 1) / (m + 1) is log m = 2 (s + s^3 / 3 + s^5 / 5 + ...).
    """
    bits = np.float64(1 + x).view(np.uint64)
    raised = np.uint64(bits - _ROOT_HALF + _BITS_OF_1) >> _MANTISSA
    m = np.uint64(bits + _BITS_OF_1 - (raised << _MANTISSA)).view(np.float64)
    e = np.uint64(raised | _BITS_OF_WHOLE).view(np.float64) - (_WHOLE + 1023.0)
    s = (m - 1) / (m + 1)
    q = s * s
    series = 1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11))))
    return e * _LN_2 + 2 * s * (1 + q * series)


@compiled
def rounded(value: float, steps: float) -> float:
    """The nearest multiple of 1 / ``steps``, a power of two."""
    return ((value * steps + _ROUND) - _ROUND) * (1 / steps)
