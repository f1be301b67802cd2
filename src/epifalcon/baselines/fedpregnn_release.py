"""What a device of FedPerGNN sends the server, and what that costs in privacy.

Pseudo items, which the person never visited, get gradients drawn like those of
the true ones. The whole upload, weights, true and pseudo rows together, is clipped
to a norm and every number of it gets Laplace noise (Wu et al. 2022, "privacy-
preserving model update"). The authors claim epsilon = 2 clip / scale, 1 at their
settings. That would hold if ``clip`` bounded the L1 norm, and for one upload; but
they clip the largest of many thousand numbers, and upload many times. ``spent``
tells what holds.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.fedpregnn_client import Ids, Rows, Visits
from epifalcon.checks import one_of, positive, whole
from epifalcon.errors import DataError
from epifalcon.privacy.accounting import DELTA

Norm = Literal["l1", "l2", "linf"]
_ORDERS = 1 + np.concatenate([np.geomspace(1e-3, 1, 60), np.geomspace(1, 1e6, 240)])
_SPARE_BITS = np.uint32(8)
_TO_UNIT = np.float32(2.0**-24)


@dataclass(frozen=True, eq=False)
class Cover:
    """The items that each person's uploads name, true and pseudo in one order.

    Drawn once for the whole training: of items drawn anew for every upload, the
    true ones would be those that always come back.
    """

    start: Ids
    """(people + 1,); nothing for who uploads nothing."""
    item: Ids
    """(named,) in ascending order for each person."""
    true: NDArray[np.bool_]
    """(named,) whether it was visited; known to the device alone."""

    @property
    def count(self) -> Ids:
        """How many items each person names: (people,)."""
        return np.diff(self.start)


def cover_of(
    visits: Visits, people: Ids, pseudo: int, rng: np.random.Generator
) -> Cover:
    """The true items of ``people`` and ``pseudo`` others, each as likely as any.

    Fewer pseudo items where the city has no more.
    """
    items, true = [], []
    count = np.zeros(visits.people, np.int64)
    for person in np.sort(people):
        mine = visits.item[visits.start[person] : visits.start[person + 1]]
        size = min(visits.items, len(mine) + pseudo)
        drawn = rng.choice(visits.items, size, replace=False)
        others = drawn[~np.isin(drawn, mine)][:pseudo]
        named = np.concatenate([mine, others])
        order = np.argsort(named)
        items.append(named[order])
        true.append(order < len(mine))
        count[person] = len(named)
    start = np.zeros(visits.people + 1, np.int64)
    np.cumsum(count, out=start[1:])
    empty = np.empty(0, np.int64)
    return Cover(
        start,
        np.concatenate([empty, *items]),
        np.concatenate([empty.astype(np.bool_), *true]),
    )


@dataclass(frozen=True, eq=False)
class Upload:
    """All that the server gets of one device in one round."""

    model: Rows
    """(size,)"""
    item: Ids
    """(named,) in ascending order."""
    row: Rows
    """(named, width)"""


def pseudo_rows(true: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Normal rows, (count, width), with the mean and covariance of the true ones.

    ``true`` (visited, width). Without any, all are 0.
    """
    if not len(true):
        return np.zeros((count, true.shape[1]), np.float32)
    mean = true.mean(axis=0)
    spread = (true - mean) / np.float32(math.sqrt(len(true)))
    drawn = normal(count * len(true), rng).reshape(count, len(true))
    return np.asarray(drawn @ spread + mean)


def normal(size: int, rng: np.random.Generator) -> Rows:
    """Normal numbers by Box and Muller, (size,), in half of NumPy's time.

    None beyond 5.8 standard deviations: the grid of ``laplace`` is used.
    """
    half = (size + 1) // 2
    first, second = _bits(2 * half, rng).reshape(2, half)
    length = np.sqrt(np.float32(-2) * np.log(_unit(first)))
    angle = np.float32(2 * math.pi) * _unit(second)
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:size]


def laplace(size: int, scale: float, rng: np.random.Generator) -> Rows:
    """Laplace noise of ``scale``, (size,), on a grid of 2^25 values.

    Enough for a simulation. A device that sends to a server it does not trust
    needs noise that is safe against the gaps of floating-point numbers.
    """
    bits = _bits(size, rng)
    noise = np.log(_unit(bits))
    noise *= np.float32(scale)
    # The lowest bit, unused so far, is the sign.
    noise.view(np.uint32)[:] ^= bits << np.uint32(31)
    return noise


def clip(value: Rows, bound: float, norm: Norm) -> Rows:
    """``value`` scaled so that its norm is at most ``bound``, rounding included.

    A value within the bound comes back as it is. Raises ``DataError`` for one that
    is not finite: scaled, it would pass the clip and poison the sum.
    """
    if norm == "linf":
        length = float(np.abs(value).max(initial=0.0))
    else:
        exact = value.astype(np.float64)
        length = math.sqrt(exact @ exact) if norm == "l2" else np.abs(exact).sum()
    if not math.isfinite(length):
        raise DataError("a gradient is not finite: choose smaller learning_rates")
    if length <= bound:
        return value
    # Room for the rounding of the product.
    margin = 1 - 4 * float(np.finfo(value.dtype).eps)
    return np.asarray(value * value.dtype.type(margin * bound / length))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How the numbers of an upload are hidden."""

    clip: float = 0.1
    """Bound of the norm of the whole upload."""
    norm: Norm = "linf"
    """The paper's text clips by the largest number, the authors' program by l2."""
    scale: float = 0.2
    """Of the Laplace noise on every number."""

    def __post_init__(self) -> None:
        positive(clip=self.clip, scale=self.scale)
        one_of(("l1", "l2", "linf"), norm=self.norm)


def release(
    model: Rows,
    true: Rows,
    cover: tuple[Ids, NDArray[np.bool_]],
    noise: Noise,
    rng: np.random.Generator,
) -> Upload:
    """One device's upload: pseudo rows beside the true, clipped together, noised.

    ``model`` (size,) and ``true`` (visited, width) are the device's own gradient;
    ``cover`` its items and which of them are true, as in ``Cover``.
    """
    item, is_true = cover
    row = np.empty((len(item), true.shape[1]), np.float32)
    row[is_true] = true
    row[~is_true] = pseudo_rows(true, len(item) - len(true), rng)
    whole_upload = clip(np.concatenate([model, row.ravel()]), noise.clip, noise.norm)
    sent = whole_upload + laplace(len(whole_upload), noise.scale, rng)
    return Upload(sent[: len(model)], item, sent[len(model) :].reshape(row.shape))


@dataclass(frozen=True)
class Spent:
    """The local differential privacy of a device's uploads.

    For the numbers it sends, against whoever sees every upload, between any two
    gradients that name the same items. Nothing here bounds what the named items
    themselves tell, nor the embedding that goes to the helper.
    """

    claimed: float
    """2 clip / scale, as the paper writes, however many uploads there are."""
    round_naive: float
    """Pure epsilon of one upload, every number counted."""
    round: float
    """The smaller of it and of epsilon at ``delta``."""
    total_naive: float
    """Pure epsilon of all uploads, added up."""
    total: float
    """The smaller of it and of epsilon at ``delta``, by Renyi divergences."""
    delta: float
    uploads: int
    numbers: int


def spent(noise: Noise, numbers: int, uploads: int, delta: float = DELTA) -> Spent:
    """What ``uploads`` of ``numbers`` numbers each cost one device.

    An upload moves by at most 2 clip in its norm. Pure epsilon is the L1 distance
    over the scale, so the L2 norm brings a factor sqrt(numbers), the maximum norm
    a factor ``numbers``. The Renyi divergence of Laplace noise (Mironov 2017,
    table II) is convex in the distance and 0 at 0: under an L1 bound the worst case
    is one number that takes it all; under the maximum norm every number moves.
    Under an L2 bound it is at most order x distance^2 / 2 in total (Bun and
    Steinke 2016, proposition 1.4).
    """
    whole(0, numbers=numbers, uploads=uploads)
    reach = 2 * noise.clip / noise.scale
    factor = {"l1": 1.0, "l2": math.sqrt(numbers), "linf": float(numbers)}[noise.norm]
    naive = reach * factor
    if noise.norm == "l2":
        divergence = np.minimum(_ORDERS * reach**2 / 2, naive)
    else:
        divergence = _laplace_divergence(reach) * (1 if noise.norm == "l1" else numbers)
    return Spent(
        reach,
        naive,
        min(naive, _epsilon(divergence, delta)),
        uploads * naive,
        min(uploads * naive, _epsilon(uploads * divergence, delta)),
        delta,
        uploads,
        numbers,
    )


def _laplace_divergence(distance: float) -> NDArray[np.float64]:
    """Renyi divergence, for all orders, of Laplace noise of scale 1 moved so far."""
    order = _ORDERS
    up = np.log(order / (2 * order - 1)) + (order - 1) * distance
    down = np.log((order - 1) / (2 * order - 1)) - order * distance
    return np.asarray(np.logaddexp(up, down) / (order - 1))


def _epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """The best epsilon at ``delta`` (Canonne, Kamath and Steinke 2020, prop. 12)."""
    order = _ORDERS
    found = divergence + np.log1p(-1 / order)
    found -= (math.log(delta) + np.log(order)) / (order - 1)
    return max(0.0, float(found.min()))


def _bits(size: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    """(size,) words of 32 random bits."""
    raw = np.asarray(rng.bit_generator.random_raw((size + 1) // 2), np.uint64)
    return raw.view(np.uint32)[:size]


def _unit(bits: NDArray[np.uint32]) -> Rows:
    """Their upper 24 bits as numbers above 0, up to 1."""
    whole_part = (bits >> _SPARE_BITS) + np.uint32(1)
    return whole_part.astype(np.float32) * _TO_UNIT
