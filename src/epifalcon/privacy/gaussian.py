"""Noise of the Gaussian mechanism, from sequential or keyed random generators.

Noise has two sources: a ``torch.Generator``, drawn in order, or a counter-based
generator (Philox 4x64-10, Salmon et al. 2011) whose counter is (place, person,
round) and whose key is a hash of seed and channel. Keyed noise does not depend on
how people are split into cohorts or on their order, and no draw is used twice.

Noise protects only against adversaries who do not know the seed. A device that
sends to an untrusted server must draw its own seed (``secrets.randbits(128)``); the
public seed of a run is for simulation.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon._numba import njit
from epifalcon.checks import (
    Checked,
    CountOrZero,
    NonNegative,
    Positive,
    non_negative,
    same_length,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.events import GaussianRelease, Terms

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLY = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_ONE = np.uint64(1)
_SPARE_BITS = np.uint64(11)
_TO_UNIT = 2.0**-53
_TURN = 2 * math.pi
GRID = 2.0**-16
"""Largest step of the grid of noised values, relative to sigma."""
_LEAST_EXPONENT = -900
Values = TypeVar("Values", Tensor, NDArray[np.float64])


@dataclass(frozen=True)
class GaussianMechanism(Checked):
    """Clip and noise of one channel (C_l, sigma_l and C_f, sigma_f in the paper)."""

    clip: Positive
    """Maximum L2 norm of a value before noise."""
    sigma: NonNegative
    clips_rows: bool = True
    """False if ``clip`` does not bound the released rows: the authors' program clips
    only the change of a row per round."""
    one_value: bool = False
    """True if all coordinates of an upload share one noise value, as in the authors'
    program."""

    def receipt(self, terms: Terms) -> GaussianRelease:
        """Return the receipt of a release, with sigma 0 if the noise gives no bound."""
        bounded = self.clips_rows and not self.one_value
        sigma = self.sigma if bounded else 0.0
        return GaussianRelease(terms=terms, clip=self.clip, sigma=sigma)


@dataclass(frozen=True, eq=False)
class NoiseRows:
    """Pairs (person, place) that identify the rows of keyed noise.

    ``place`` is any number that distinguishes a person's rows, such as region x
    windows + window. Pairs must be distinct: the difference of two rows with equal
    noise would reveal what the noise should hide.
    """

    person: NDArray[np.int64]
    place: NDArray[np.int64]

    def __post_init__(self) -> None:
        same_length(person=self.person, place=self.place)
        for name in ("person", "place"):
            ids = np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            if ids.ndim != 1 or (ids.size and ids.min() < 0):
                raise DataError(f"{name} must be a list of integers of 0 or more")
            object.__setattr__(self, name, ids)
        if twice := _first_repeat(self.person, self.place):
            raise DataError(
                f"person {twice[0]} has place {twice[1]} more than once: "
                "the difference of two values with equal noise is not private"
            )

    @classmethod
    def of_people(cls, person: NDArray[np.int64]) -> "NoiseRows":
        """Return the keys of one noise row per person, as for gradients."""
        return cls(person, np.zeros(len(person), dtype=np.int64))


@dataclass(frozen=True)
class NoiseKey(Checked):
    """Seed and terms of a release, which together determine its noise.

    Channel and round come from the terms of the receipt, so noise is reused only if
    the ledger records the same (round, channel) twice.
    """

    seed: CountOrZero
    terms: Terms

    def words(self) -> NDArray[np.uint64]:
        """Return the 128-bit Philox key."""
        text = f"epifalcon noise\0{int(self.seed)}\0{self.terms.channel}"
        digest = hashlib.sha256(text.encode()).digest()
        return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)


class KeyedNormals:
    """Noise generator keyed by (key, person); each draw uses the next position."""

    def __init__(self, key: NoiseKey, person: int) -> None:
        self._key, self._person = key, person
        self._drawn = 0

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next tensor of standard normal noise."""
        place = np.array([self._drawn])
        self._drawn += 1
        rows = NoiseRows(np.array([self._person]), place)
        noise = keyed_normals(self._key, rows, max(math.prod(shape), 1))
        flat = torch.from_numpy(noise[0, : math.prod(shape)])
        return flat.to(dtype).reshape(shape)


NormalSource = torch.Generator | KeyedNormals
"""Source of noise; only the keyed one suits a secret seed, torch uses 32 bits of it."""


def keyed_normals(key: NoiseKey, rows: NoiseRows, width: int) -> NDArray[np.float64]:
    """Return standard normal noise (rows, width), fixed by key, person and place."""
    noise = np.zeros((len(rows.person), width))
    _fill_rows(noise, rows.person, rows.place, key.terms.round, key.words())
    return noise


def add_keyed(value: Tensor, sigma: float, rows: NoiseRows, key: NoiseKey) -> Tensor:
    """Return ``value`` (rows, width) plus keyed noise of scale ``sigma``."""
    non_negative(sigma=sigma)
    if value.ndim != 2 or len(value) != len(rows.person):
        raise DataError(
            f"value of shape {tuple(value.shape)} must have one row per each of "
            f"{len(rows.person)} (person, place) pairs"
        )
    if sigma == 0:
        return value
    noise = torch.from_numpy(keyed_normals(key, rows, value.shape[1]))
    return on_grid(value.double() + sigma * noise, sigma).to(value.dtype)


def on_grid(noised: Values, sigma: float) -> Values:
    """Round values with noise of scale ``sigma`` to a grid of at most sigma ``GRID``.

    Otherwise the last bits show what the noise covers (Mironov 2012): a small sum of
    two larger numbers ends with zeros, small noise on a zero row does not. The sum must
    be of double precision, which is much finer than the grid.
    """
    step = GRID * 2.0 ** max(math.frexp(sigma)[1] - 1, _LEAST_EXPONENT)
    return (noised / step).round() * step


def normals(
    shape: tuple[int, ...], generator: NormalSource, dtype: torch.dtype
) -> Tensor:
    """Draw standard normal numbers from ``generator``, never torch's global one."""
    if isinstance(generator, KeyedNormals):
        return generator.draw(tuple(shape), dtype)
    if not isinstance(generator, torch.Generator):
        raise SettingsError("generator must be a torch.Generator or a keyed source")
    return torch.randn(shape, generator=generator, dtype=dtype)


def _first_repeat(
    person: NDArray[np.int64], place: NDArray[np.int64]
) -> tuple[int, int] | None:
    here, there = person[:-1], person[1:]
    # Most callers list people in ascending order, which is quick to verify.
    if bool(np.all((here < there) | ((here == there) & (place[:-1] < place[1:])))):
        return None
    order = np.lexsort((place, person))
    person, place = person[order], place[order]
    same = (person[:-1] == person[1:]) & (place[:-1] == place[1:])
    if not same.any():
        return None
    first = int(np.argmax(same))
    return int(person[first]), int(place[first])


@njit()
def _high_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of the product of two 64-bit numbers."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    middle = a_high * b_low + ((a_low * b_low) >> _HALF)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF)


@njit()
def _philox(
    block: np.uint64,
    place: np.uint64,
    person: np.uint64,
    turn: np.uint64,
    key: NDArray[np.uint64],
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return four random 64-bit words from the counter (block, place, person, turn)."""
    first, second = key[0], key[1]
    for _ in range(10):
        high_0, low_0 = _high_product(_MULTIPLY[0], block), _MULTIPLY[0] * block
        high_1, low_1 = _high_product(_MULTIPLY[1], person), _MULTIPLY[1] * person
        block, place = high_1 ^ place ^ first, low_1
        person, turn = high_0 ^ turn ^ second, low_0
        first, second = first + _WEYL[0], second + _WEYL[1]
    return block, place, person, turn


@njit()
def _normal_pair(radius_bits: np.uint64, angle_bits: np.uint64) -> tuple[float, float]:
    """Return two standard normals from two 64-bit words (Box-Muller); at most 8.5."""
    radius = math.sqrt(-2 * math.log(((radius_bits >> _SPARE_BITS) + _ONE) * _TO_UNIT))
    angle = _TURN * ((angle_bits >> _SPARE_BITS) * _TO_UNIT)
    return radius * math.cos(angle), radius * math.sin(angle)


@njit(nogil=True)
def _fill_rows(
    noise: NDArray[np.float64],
    person: NDArray[np.int64],
    place: NDArray[np.int64],
    turn: int,
    key: NDArray[np.uint64],
) -> None:
    """Fill ``noise`` (rows, width) with the keyed noise of every row."""
    width = noise.shape[1]
    for row in range(noise.shape[0]):
        who, where = np.uint64(person[row]), np.uint64(place[row])
        for start in range(0, width, 4):
            block = np.uint64(start // 4 + 1)
            a, b, c, d = _philox(block, where, who, np.uint64(turn), key)
            four = (*_normal_pair(a, b), *_normal_pair(c, d))
            for column in range(start, min(start + 4, width)):
                noise[row, column] = four[column - start]
