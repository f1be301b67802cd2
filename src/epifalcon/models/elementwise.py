"""What the person model does to every number of every row, in one pass each.

Torch would go through the rows once for each operation, and at this size that
costs more than the arithmetic. Each function reads what it needs once and writes
its result once; people are cut into parts by their number, so the result is the
same for any number of threads.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.hypergraph.propagate import view
from epifalcon.hypergraph.spreading import RowsOf, combined, mixed

_PARTS = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW_BITS = np.uint64(0xFFFFFFFF)


def _in_parts(work: Callable[[slice], object], people: int, width: int) -> None:
    """Call ``work`` for slices of the people, on threads where it is worth them."""
    if people * width < 2**18:
        work(slice(0, people))
        return

    def some(part: int) -> None:
        work(slice(people * part // _PARTS, people * (part + 1) // _PARTS))

    each_part(some, _PARTS, people * width)


def keep_factors(
    person: NDArray[np.int64], dropout: float, key: int, out: NDArray[np.float32]
) -> None:
    """Write 0 with chance ``dropout``, else 1/(1 - dropout), (people, width)."""
    bar, factor = round(dropout * 2**32), np.float32(1 / (1 - dropout))
    _in_parts(
        lambda some: _keep(person[some], np.uint64(key), bar, factor, out[some]),
        *out.shape,
    )


def open_rows(rows: Tensor, keep: Tensor | None) -> None:
    """Replace ``rows`` by relu(rows) times ``keep``."""
    if keep is None:
        torch.relu_(rows)
        return
    values, factors = rows.detach().numpy(), view(keep)
    _in_parts(lambda some: _open(values[some], factors[some]), *values.shape)


def through_opened(gradient: Tensor, rows: Tensor, keep: Tensor | None) -> Tensor:
    """The gradient of what ``open_rows`` got, from that of ``rows``, what it made."""
    if keep is None:
        return gradient * (rows > 0)
    given, opened, factors = view(gradient), view(rows), view(keep)
    out = np.empty_like(opened)
    _in_parts(
        lambda some: _through(given[some], opened[some], factors[some], out[some]),
        *out.shape,
    )
    return torch.from_numpy(out)


def scale_rows(rows: Tensor, factor: Tensor) -> None:
    """Multiply each row with its ``factor``, (people, 1)."""
    values, factors = rows.detach().numpy(), view(factor).reshape(-1)
    _in_parts(lambda some: _scale(values[some], factors[some]), *values.shape)


def cross_entropy(
    logits: Tensor, target: NDArray[np.int8], weights: NDArray[np.floating]
) -> tuple[float, float, Tensor]:
    """Summed loss, summed weight and gradient (people, 2) of two logits each.

    ``weights``, (2,), by class; people whose target is -1 have no part.
    """
    values = view(logits)
    gradient = np.zeros_like(values)
    loss, weight = _cross_entropy(values, target, weights, gradient)
    return loss, weight, torch.from_numpy(gradient)


def adam(
    state: tuple[Tensor, Tensor, Tensor],
    gradient: Tensor,
    rates: tuple[float, float, float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and moments after a step of Adam; ``state`` holds those before.

    ``rates``: what the gradient is multiplied with, weight decay, size of the
    step, and what the root of the second moment is multiplied with.
    """
    value, first, second = (view(one).reshape(-1) for one in state)
    made = tuple(torch.empty_like(one) for one in state)
    new = tuple(view(one).reshape(-1) for one in made)
    slope, given = view(gradient).reshape(-1), np.array(rates, value.dtype)

    def work(some: slice) -> None:
        before = value[some], first[some], second[some]
        _adam(before, slope[some], given, (new[0][some], new[1][some], new[2][some]))

    _in_parts(work, len(value), 1)
    return made[0], made[1], made[2]


@compiled
def _keep(
    person: NDArray[np.int64],
    key: np.uint64,
    bar: int,
    factor: np.float32,
    out: NDArray[np.float32],
) -> None:
    width, zero = out.shape[1], np.float32(0)
    for row in range(len(person)):
        base = combined(key, np.uint64(person[row]))
        for pair in range(width // 2):
            word = mixed(base + np.uint64(2 * pair) * _GOLDEN)
            high, low = np.int64(word >> _HALF), np.int64(word & _LOW_BITS)
            out[row, 2 * pair] = factor if high >= bar else zero
            out[row, 2 * pair + 1] = factor if low >= bar else zero
        if width % 2:
            word = mixed(base + np.uint64(width - 1) * _GOLDEN)
            out[row, width - 1] = factor if np.int64(word >> _HALF) >= bar else zero


@compiled
def _open(rows: RowsOf, keep: RowsOf) -> None:
    for person in range(len(rows)):
        for column in range(rows.shape[1]):
            value = rows[person, column]
            rows[person, column] = value * keep[person, column] if value > 0 else 0


@compiled
def _through(gradient: RowsOf, opened: RowsOf, keep: RowsOf, out: RowsOf) -> None:
    for person in range(len(out)):
        for column in range(out.shape[1]):
            value = gradient[person, column] * keep[person, column]
            out[person, column] = value if opened[person, column] > 0 else 0


@compiled
def _scale(rows: RowsOf, factor: RowsOf) -> None:
    for person in range(len(rows)):
        for column in range(rows.shape[1]):
            rows[person, column] *= factor[person]


@compiled
def _cross_entropy(
    logits: RowsOf,
    target: NDArray[np.int8],
    weights: RowsOf,
    gradient: RowsOf,
) -> tuple[float, float]:
    loss, weight = 0.0, 0.0
    for person in range(len(target)):
        goal = target[person]
        if goal < 0:
            continue
        factor = weights[goal]
        # log(1 + exp(far)), and its slope, from the other logit less the own one.
        far = logits[person, 1 - goal] - logits[person, goal]
        small = np.exp(-abs(far))
        loss += np.float64(max(far, 0) + np.log1p(small)) * factor
        weight += factor
        slope = factor * ((1 if far > 0 else small) / (1 + small))
        gradient[person, goal] = -slope
        gradient[person, 1 - goal] = slope
    return loss, weight


@compiled
def _adam(
    state: tuple[RowsOf, RowsOf, RowsOf],
    gradient: RowsOf,
    rates: RowsOf,
    made: tuple[RowsOf, RowsOf, RowsOf],
) -> None:
    value, first, second = state
    new_value, new_first, new_second = made
    scale, decay, size, root = rates
    kind = value.dtype.type
    tenth, thousandth, rest = kind(0.1), kind(0.001), kind(0.999)
    tiny = kind(1e-8)
    for place in range(len(value)):
        slope = scale * gradient[place] + decay * value[place]
        mean = first[place] + tenth * (slope - first[place])
        square = rest * second[place] + thousandth * (slope * slope)
        step = size * (mean / (root * np.sqrt(square) + tiny))
        new_value[place] = value[place] - step
        new_first[place], new_second[place] = mean, square
