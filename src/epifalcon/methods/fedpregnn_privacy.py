"""What protects a device of FedPerGNN: token matching, pseudo items, noised uploads.

Graph expansion (Wu et al. 2022, "privacy-preserving graph expansion"): devices share a
key that neither the helper nor the server has. A device sends the keyed hash of each of
its items, a token, and one embedding. Equal items have equal tokens, so the helper can
return the embeddings of others who share an item, without names. The helper must not
collude with the server or with a device: whoever has the key can try every item. And it
sees the embeddings themselves. Adapted: the paper signs item ids with a key pair.

Model update ("privacy-preserving model update"): pseudo items, which the person never
visited, get gradients drawn like those of the true ones. The whole upload, weights,
true and pseudo rows together, is clipped to a norm, and every number of it gets Laplace
noise. The authors claim epsilon = 2 clip / scale, 1 with their settings. That would
hold if ``clip`` bounded the L1 norm, and for one upload; but they clip the largest of
many thousand numbers, and upload many times. ``privacy_spent`` returns what holds.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import one_of, positive, whole
from epifalcon.errors import DataError
from epifalcon.privacy.accounting import DELTA

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Norm = Literal["l1", "l2", "linf"]

_ORDERS = 1 + np.concatenate([np.geomspace(1e-3, 1, 60), np.geomspace(1, 1e6, 240)])
_TOKEN_BYTES = 16


def tokens_of(items: int, key: bytes) -> NDArray[np.uint64]:
    """Return the token of each item from 0 on: (items, 2), BLAKE2b under ``key``."""
    whole(0, items=items)
    if not 16 <= len(key) <= 64:
        raise DataError(f"a key of {len(key)} bytes, expected 16 to 64")
    text = b"".join(
        hashlib.blake2b(
            item.to_bytes(8, "little"), digest_size=_TOKEN_BYTES, key=key
        ).digest()
        for item in range(items)
    )
    return np.frombuffer(text, "<u8").astype(np.uint64).reshape(items, 2)


@dataclass(frozen=True, eq=False)
class Partners:
    """The helper's answers: embeddings without names."""

    start: Ids
    """(requests + 1,) where the partners of each request begin."""
    embedding: Rows
    """(partners, width)"""


class TokenHelper:
    """Matches tokens and forwards embeddings; it knows neither items nor names.

    Request number r comes from ``sender[r]``, a random pseudonym, and asks for the
    others with token ``token[r]`` (2,). It is answered with at most ``most`` of them,
    every choice equally probable: the senders of a token are shuffled on a circle, and
    each gets those who follow it. So nobody gets its own embedding back, and all are
    forwarded equally often.
    """

    def __init__(self, sender: Ids, token: NDArray[np.uint64], most: int) -> None:
        whole(0, most=most)
        if token.shape != (len(sender), 2):
            raise DataError(f"tokens of shape {token.shape} for {len(sender)} requests")
        self._sender, self._most = sender, most
        _, group = np.unique(token, axis=0, return_inverse=True)
        self._group = group.ravel()
        self._size = np.bincount(self._group)
        self._first = np.cumsum(self._size) - self._size
        self._circle: Rows | None = None

    def receive(self, embedding: Rows, rng: np.random.Generator) -> None:
        """Take an embedding of each sender, (senders, width); shuffle the circles."""
        senders = int(self._sender.max(initial=-1)) + 1
        if embedding.ndim != 2 or len(embedding) < senders:
            raise DataError(
                f"embeddings of shape {embedding.shape} for {senders} senders"
            )
        order = np.argsort(self._group + rng.random(len(self._group)))
        self._place = np.empty_like(order)
        self._place[order] = np.arange(len(order))
        self._circle = embedding.astype(np.float32)[self._sender[order]]

    def answer(self, requests: Ids) -> Partners:
        """Return the partners of each of the ``requests``."""
        if self._circle is None:
            raise DataError("the helper has no embeddings yet: call receive first")
        group = self._group[requests]
        count = np.minimum(self._size[group] - 1, self._most)
        start = np.append(0, np.cumsum(count))
        first, size = (
            np.repeat(one[group], count) for one in (self._first, self._size)
        )
        steps = np.arange(start[-1]) - np.repeat(start[:-1], count) + 1
        place = np.repeat(self._place[requests], count) - first + steps
        return Partners(start, self._circle[first + place % np.maximum(size, 1)])


@dataclass(frozen=True, eq=False)
class Cover:
    """The items that a person's uploads name, true and pseudo.

    Drawn once for the whole training: of items drawn anew for every upload, the true
    ones would be those that always return.
    """

    item: Ids
    """(named,) in ascending order."""
    true: NDArray[np.bool_]
    """(named,) whether it was visited; known to the device alone."""


def cover_of(mine: Ids, items: int, pseudo: int, rng: np.random.Generator) -> Cover:
    """Return the visited items ``mine`` and ``pseudo`` others, all equally probable.

    Fewer pseudo items if the city has no more.
    """
    drawn = rng.choice(items, min(items, len(mine) + pseudo), replace=False)
    named = np.concatenate([mine, drawn[~np.isin(drawn, mine)][:pseudo]])
    order = np.argsort(named)
    return Cover(named[order], order < len(mine))


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


@dataclass(frozen=True, eq=False)
class Upload:
    """All that the server gets of one device in one round."""

    model: Rows
    """(size,)"""
    item: Ids
    """(named,) in ascending order."""
    row: Rows
    """(named, width)"""


def release(
    model: Rows, true: Rows, cover: Cover, noise: Noise, rng: np.random.Generator
) -> Upload:
    """Return one device's upload: true and pseudo rows, clipped together, noised.

    ``model`` (size,) and ``true`` (visited, width) are the device's own gradient. The
    noise is enough for a simulation; a device that sends to a server it does not trust
    needs noise that is safe against the gaps of floating-point numbers.
    """
    row = np.empty((len(cover.item), true.shape[1]), np.float32)
    row[cover.true] = true
    row[~cover.true] = pseudo_rows(true, len(row) - len(true), rng)
    clipped = clip(np.concatenate([model, row.ravel()]), noise.clip, noise.norm)
    # The difference of two exponential variables is a Laplace variable.
    one, other = rng.standard_exponential((2, len(clipped)), np.float32)
    sent = clipped + np.float32(noise.scale) * (one - other)
    return Upload(sent[: len(model)], cover.item, sent[len(model) :].reshape(row.shape))


def pseudo_rows(true: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return normal rows (count, width) with mean and covariance of the true ones.

    ``true`` (visited, width). Without any, all are 0.
    """
    if not len(true):
        return np.zeros((count, true.shape[1]), np.float32)
    mean = true.mean(axis=0)
    spread = (true - mean) / np.float32(math.sqrt(len(true)))
    drawn = rng.standard_normal((count, len(true)), np.float32)
    return np.asarray(drawn @ spread + mean)


def clip(value: Rows, bound: float, norm: Norm) -> Rows:
    """Return ``value`` scaled so that its norm is at most ``bound``, rounding included.

    Raises ``DataError`` for a value that is not finite: scaled, it would pass the clip
    and poison the sum.
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


def privacy_spent(
    noise: Noise, numbers: int, uploads: int, delta: float = DELTA
) -> dict[str, float]:
    """Return the local differential privacy of one device's uploads.

    For ``uploads`` of ``numbers`` numbers each, against an observer of all of them,
    between any two gradients that name the same items. It does not bound what the named
    items reveal, nor the embedding that goes to the helper. ``epsilon_claimed`` is the
    paper's, for any number of uploads; ``_naive`` is pure epsilon, every number
    counted; otherwise the smaller of it and of epsilon at ``delta``.

    An upload moves by at most 2 clip in its norm. Pure epsilon is the L1 distance over
    the scale, so the L2 norm brings a factor sqrt(numbers), the maximum norm a factor
    ``numbers``. The Renyi divergence of Laplace noise (Mironov 2017, table II) is
    convex in the distance and 0 at 0: under an L1 bound the worst case is one number
    that takes it all; under the maximum norm every number moves. Under an L2 bound it
    is at most order x distance^2 / 2 in total (Bun and Steinke 2016, prop. 1.4).
    """
    whole(0, numbers=numbers, uploads=uploads)
    reach = 2 * noise.clip / noise.scale
    factor = {"l1": 1.0, "l2": math.sqrt(numbers), "linf": float(numbers)}[noise.norm]
    naive = reach * factor
    if noise.norm == "l2":
        divergence = np.minimum(_ORDERS * reach**2 / 2, naive)
    else:
        divergence = _laplace_divergence(reach) * (1 if noise.norm == "l1" else numbers)
    return {
        "epsilon_claimed": reach,
        "epsilon_round_naive": naive,
        "epsilon_round": min(naive, _epsilon(divergence, delta)),
        "epsilon_total_naive": uploads * naive,
        "epsilon_total": min(uploads * naive, _epsilon(uploads * divergence, delta)),
        "delta": delta,
    }


def _laplace_divergence(distance: float) -> NDArray[np.float64]:
    """Return the Renyi divergence of unit Laplace noise moved so far, by order."""
    order = _ORDERS
    up = np.log(order / (2 * order - 1)) + (order - 1) * distance
    down = np.log((order - 1) / (2 * order - 1)) - order * distance
    return np.asarray(np.logaddexp(up, down) / (order - 1))


def _epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """Return the best epsilon at ``delta`` (Canonne et al. 2020, proposition 12)."""
    order = _ORDERS
    found = divergence + np.log1p(-1 / order)
    found -= (math.log(delta) + np.log(order)) / (order - 1)
    return max(0.0, float(found.min()))
