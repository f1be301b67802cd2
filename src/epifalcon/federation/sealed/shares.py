"""Additive secret sharing modulo 2^64: a vector is a mask plus a difference.

The mask is expanded from a seed of 32 bytes, so one of the two shares is short. Each
share alone is independent of the vector, given that AES is a pseudorandom function.
"""

import os
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from epifalcon.errors import DataError
from epifalcon.federation.sealed.fixed_point import Words

SEED_BYTES, WORD_BYTES = 32, 8
_NONCE = bytes(16)
"""Initial counter; a seed is used once, so it needs no nonce."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Difference for aggregator ``a``, seed of the mask for aggregator ``b``."""

    difference: Words
    seed: bytes


def split(words: Words) -> Shares:
    """Split a vector, (length,), with a new seed from the system's entropy."""
    seed = os.urandom(SEED_BYTES)
    return Shares(words - expand(seed, len(words)), seed)


def expand(seed: bytes, length: int) -> Words:
    """Expand a seed to a mask, (length,), by AES-256 in counter mode."""
    if len(seed) != SEED_BYTES:
        raise DataError(f"a seed has {len(seed)} bytes, expected {SEED_BYTES}")
    stream = Cipher(algorithms.AES(seed), modes.CTR(_NONCE)).encryptor()
    return from_bytes(stream.update(bytes(WORD_BYTES * length)))


def to_bytes(words: Words) -> bytes:
    """Return the vector as little-endian bytes."""
    return words.astype("<u8", copy=False).tobytes()


def from_bytes(data: bytes) -> Words:
    """Read a vector from little-endian bytes."""
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)
