"""The third party of FedPerGNN: who shares an item meets, nobody learns which item.

Devices hold a key in common that neither the helper nor the server has. A device
sends the keyed hash of each of its items, a token, and one embedding. Equal items
have equal tokens, so the helper can give each device the embeddings of others who
share an item, without a name beside them (Wu et al., Nature Communications 2022,
"privacy-preserving graph expansion").

The helper must not collude with the server or with a device: who has the key can
try every item, for there are few. And it sees the embeddings themselves.

Adapted: the paper signs item ids with a key pair; here the token is a keyed hash.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import whole
from epifalcon.errors import DataError
from epifalcon.hypergraph.compiled import compiled

Numbers = NDArray[np.int64]
Tokens = NDArray[np.uint64]
Rows = NDArray[np.float32]

_TOKEN_BYTES = 16


@dataclass(frozen=True, eq=False)
class Letters:
    """All that the helper is told of who shares what: one letter for each token.

    They come in an order that tells nothing, under letter boxes drawn at random.
    """

    box: Numbers
    """(letters,) the sender's; a number that means nothing to anybody else."""
    token: Tokens
    """(letters, 2) the 128 bits of the keyed hash."""


@dataclass(frozen=True, eq=False)
class Partners:
    """What devices are told of the tokens they asked for: embeddings, no names."""

    start: Numbers
    """(asked + 1,) where the partners of each token begin."""
    embedding: Rows
    """(partners, width)"""


def tokens_of(items: int, key: bytes) -> Tokens:
    """The token of each item from 0 on: (items, 2), BLAKE2b under ``key``."""
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


class TokenHelper:
    """Matches tokens and passes embeddings on; it holds neither items nor names.

    A letter is answered with at most ``most`` other embeddings of its token, any
    choice of partners as probable as any other: the senders of a token are
    shuffled, and each is given those who follow it in the circle. So nobody gets
    its own embedding back, and everybody's is passed on equally often.
    """

    def __init__(self, letters: Letters, most: int) -> None:
        whole(0, most=most)
        box, token = letters.box, letters.token
        if token.shape != (len(box), 2):
            raise DataError(f"tokens of shape {token.shape} for {len(box)} letters")
        self._box, self._most = box, most
        by_token = np.lexsort((token[:, 1], token[:, 0]))
        ordered = token[by_token]
        opens = np.ones(len(box), np.bool_)
        opens[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        self._group = np.empty(len(box), np.int64)
        self._group[by_token] = np.cumsum(opens) - 1
        self._size = np.bincount(self._group)
        self._first = np.cumsum(self._size) - self._size
        self._place = np.empty(0, np.int64)
        self._circle: Rows | None = None

    def receive(self, embedding: Rows, rng: np.random.Generator) -> None:
        """Take a new embedding of each box, (boxes, width); shuffle all tokens."""
        boxes = int(self._box.max()) + 1 if len(self._box) else 0
        if embedding.ndim != 2 or len(embedding) < boxes:
            raise DataError(
                f"embeddings of shape {embedding.shape} for {boxes} letter boxes"
            )
        order = np.argsort(self._group + rng.random(len(self._group)))
        self._place = np.empty_like(order)
        self._place[order] = np.arange(len(order))
        # In the order of the circles, so that an answer is one piece of memory.
        self._circle = embedding.astype(np.float32)[self._box[order]]

    def answer(self, asked: Numbers) -> Partners:
        """The partners for each of the letters numbered ``asked``: (asked,)."""
        if self._circle is None:
            raise DataError("the helper has no embeddings yet: call receive first")
        group = self._group[asked]
        first, size = self._first[group], self._size[group]
        start = np.zeros(len(asked) + 1, np.int64)
        np.cumsum(np.minimum(size - 1, self._most), out=start[1:])
        given = np.empty((start[-1], self._circle.shape[1]), np.float32)
        _pass_on(self._place[asked], (first, first + size), self._circle, start, given)
        return Partners(start, given)


@compiled
def _pass_on(
    place: Numbers,
    bounds: tuple[Numbers, Numbers],
    circle: Rows,
    start: Numbers,
    given: Rows,
) -> None:
    """Write the embeddings of those who follow each ``place`` in its circle."""
    first, past = bounds
    for asked in range(len(place)):
        here = place[asked]
        for one in range(start[asked], start[asked + 1]):
            here = here + 1 if here + 1 < past[asked] else first[asked]
            for column in range(circle.shape[1]):
                given[one, column] = circle[here, column]
