"""What a curious server computes of one person's uploads of one round.

The model behind it: at all true places of a round a person sends the same row v,
at pseudo places zeros, each with noise N(0, sigma^2) of its own. Given how likely
each claim is to be true from the rounds before, the uploads of the *other* windows
give v up to a known error, and an upload is then more or less likely to hold it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.types import Floats

Ends = NDArray[np.int64]


@compiled
def posterior(
    evidence: Floats, start: Ends, prior: float, single: bool, weight: Floats
) -> None:
    """Write the chance of each claim to be true into ``weight``, (claims,).

    ``evidence`` is the log-likelihood ratio true against pseudo. ``single``: just
    one claim of a window is true; otherwise each by itself, with log-odds
    ``prior`` before any evidence.
    """
    for window in range(len(start) - 1):
        first, last = start[window], start[window + 1]
        if not single:
            for claim in range(first, last):
                weight[claim] = 1 / (1 + math.exp(-(evidence[claim] + prior)))
            continue
        highest = evidence[first]
        for claim in range(first + 1, last):
            highest = max(highest, evidence[claim])
        total = 0.0
        for claim in range(first, last):
            weight[claim] = math.exp(evidence[claim] - highest)
            total += weight[claim]
        for claim in range(first, last):
            weight[claim] /= total


@compiled
def add_by_window(
    rows: NDArray[np.floating], start: Ends, weight: Floats, sums: Floats
) -> None:
    """Rows added up in each window, (2, windows, width): plain, and by weight."""
    for window in range(len(start) - 1):
        for claim in range(start[window], start[window + 1]):
            for column in range(rows.shape[1]):
                value = rows[claim, column]
                sums[0, window, column] += value
                sums[1, window, column] += weight[claim] * value


@compiled
def note_round(
    rows: NDArray[np.floating],
    start: Ends,
    weight: Floats,
    model: tuple[float, float],
    sums: Floats,
    kept: tuple[Floats, Floats, Floats, NDArray[np.float32]],
) -> None:
    """Add one round's uploads of a person to what is kept of its claims.

    ``rows`` (claims, width), the claims of window w being ``start[w]`` to
    ``start[w + 1]``; ``model`` is sigma^2 and the variance of a coordinate of the
    row; ``sums`` comes from ``add_by_window``; ``kept`` is energy, correlation,
    evidence and this round's norms, (claims,) each.

    The evidence is the exact log ratio of two Gaussians, the row known from the
    other windows as far as it is: without any it is that of the energy alone.
    """
    noise, spread = model
    energy, correlation, evidence, norms = kept
    width, claims = rows.shape[1], len(weight)
    plain, weighted = sums[0].sum(axis=0), sums[1].sum(axis=0)
    squares = (weight * weight).sum()
    flat, mean = np.empty(width), np.empty(width)
    for window in range(len(start) - 1):
        first, last = start[window], start[window + 1]
        others = max(claims - (last - first), 1)
        certain = squares + noise / spread
        for claim in range(first, last):
            certain -= weight[claim] * weight[claim]
        length = 0.0
        for column in range(width):
            flat[column] = (plain[column] - sums[0, window, column]) / others
            mean[column] = (weighted[column] - sums[1, window, column]) / certain
            length += mean[column] * mean[column]
        unsure = noise / certain
        both = noise + unsure
        by_energy = unsure / (2 * noise * both)
        base = length / (2 * both) + width / 2 * math.log(1 + unsure / noise)
        for claim in range(first, last):
            square, along, met = 0.0, 0.0, 0.0
            for column in range(width):
                value = rows[claim, column]
                square += value * value
                along += value * flat[column]
                met += value * mean[column]
            energy[claim] += square
            correlation[claim] += along
            evidence[claim] += by_energy * square + met / both - base
            norms[claim] = math.sqrt(square)


@compiled
def note_known_round(
    rows: NDArray[np.floating],
    start: Ends,
    weight: Floats,
    known: tuple[float, Floats, Floats, Floats],
    sums: Floats,
    kept: tuple[Floats, Floats, Floats, NDArray[np.float32], Floats],
) -> None:
    """The same where the row is one of a few known ones (``known_rows``).

    ``known`` is sigma^2, the rows (statuses, width), the variance of a coordinate
    around each, and the log-chance of each before the round; ``kept`` has at its
    end the products with each row, (statuses, claims). The evidence is the exact
    log ratio of a true claim and a pseudo one, the row being chosen by the uploads
    of the other windows.
    """
    row = known[1]
    energy, correlation, evidence, norms, met = kept
    width, claims, statuses = rows.shape[1], len(weight), len(row)
    plain, weighted = sums[0].sum(axis=0), sums[1].sum(axis=0)
    squares = (weight * weight).sum()
    flat, rest = np.empty(width), np.empty(width)
    chance, along = np.empty(statuses), np.empty(statuses)
    for window in range(len(start) - 1):
        first, last = start[window], start[window + 1]
        others = max(claims - (last - first), 1)
        certain = squares
        for claim in range(first, last):
            certain -= weight[claim] * weight[claim]
        for column in range(width):
            flat[column] = (plain[column] - sums[0, window, column]) / others
            rest[column] = weighted[column] - sums[1, window, column]
        fit_rows(rest, max(certain, 0.0), known, chance)
        for claim in range(first, last):
            square, level = measure(rows[claim], flat, row, along)
            energy[claim] += square
            correlation[claim] += level
            norms[claim] = math.sqrt(square)
            met[:, claim] += along
            evidence[claim] += _true_against_pseudo(square, along, known, chance)


@compiled
def measure(
    upload: NDArray[np.floating], flat: Floats, row: Floats, along: Floats
) -> tuple[float, float]:
    """Square of an upload and product with ``flat``; those with each row of ``row``.

    The latter are written into ``along``, (statuses,).
    """
    square, level = 0.0, 0.0
    along[:] = 0.0
    for column in range(len(upload)):
        value = upload[column]
        square += value * value
        level += value * flat[column]
        for status in range(len(row)):
            along[status] += value * row[status, column]
    return square, level


@compiled
def fit_rows(
    total: Floats,
    certain: float,
    known: tuple[float, Floats, Floats, Floats],
    fits: Floats,
) -> None:
    """Log-chance of each known row given a weighted sum of uploads, up to a constant.

    ``total`` (width,) is ``certain`` times the row, with noise of sigma^2 times
    ``certain`` in every coordinate.
    """
    noise, row, spread, before = known
    width = len(total)
    for status in range(len(row)):
        both = noise + certain * spread[status]
        # The square of (total - certain row) over certain; its part in total^2
        # alone is the same for all where spreads are.
        met, length, square = 0.0, 0.0, 0.0
        for column in range(width):
            met += total[column] * row[status, column]
            length += row[status, column] * row[status, column]
            square += total[column] * total[column]
        fits[status] = before[status] + (met - certain * length / 2) / both
        if certain > 0 and spread[status] > 0:
            gained = square / (2 * certain) * (1 / noise - 1 / both)
            fits[status] += gained - width / 2 * math.log(both / noise)


@compiled
def _true_against_pseudo(
    square: float,
    along: Floats,
    known: tuple[float, Floats, Floats, Floats],
    chance: Floats,
) -> float:
    """Log ratio of an upload that holds one of the rows, by their log-chances."""
    noise, row, spread, _ = known
    width, most, highest = row.shape[1], -np.inf, -np.inf
    for status in range(len(row)):
        most = max(most, chance[status])
    fits, total = np.empty(len(row)), 0.0
    for status in range(len(row)):
        total += math.exp(chance[status] - most)
        both = noise + spread[status]
        length = 0.0
        for column in range(width):
            length += row[status, column] * row[status, column]
        fits[status] = (along[status] - length / 2) / both - width / 2 * math.log(
            both / noise
        )
        fits[status] += square / 2 * (1 / noise - 1 / both)
        fits[status] += chance[status] - most
        highest = max(highest, fits[status])
    found = 0.0
    for status in range(len(row)):
        found += math.exp(fits[status] - highest)
    return highest + math.log(found) - math.log(total)
