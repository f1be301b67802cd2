"""Chi-square over many groups of draws, each with a distribution of its own."""

from collections.abc import Callable

import numpy as np
from scipy import stats

Shares = Callable[[tuple[int, ...]], np.ndarray]


def p_value(conditions: np.ndarray, drawn: np.ndarray, shares: Shares) -> float:
    """How well ``drawn`` (draws,) fits ``shares(condition)`` of its own row.

    Cells that expect fewer than five are put together within their group.
    """
    total, freedom = 0.0, 0
    keys, group = np.unique(conditions, axis=0, return_inverse=True)
    for number, key in enumerate(keys):
        mine = drawn[group.ravel() == number]
        expected = shares(tuple(key.tolist())) * mine.size
        seen = np.bincount(mine, minlength=expected.size)
        assert not seen[expected == 0].any(), "an impossible region was drawn"
        small = expected < 5
        seen = np.append(seen[~small], seen[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5:
            seen, expected = seen[:-1], expected[:-1]
        if expected.size > 1:
            total += ((seen - expected) ** 2 / expected).sum()
            freedom += expected.size - 1
    assert freedom > 10
    return float(stats.chi2.sf(total, freedom))
