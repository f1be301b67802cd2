"""Named random streams from one seed.

One stream per purpose: a new draw in one part of the program does not change
the draws of other parts.

>>> Streams(7).numpy("seir").random() == Streams(7).numpy("seir").random()
True
>>> Streams(7).numpy("seir").random() == Streams(7).numpy("city").random()
False

Privacy noise must not come from a seed that others know. Its source is a secret of 256
bits from the operating system, stored in a file that only its owner can read.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import numpy as np

from epifalcon.errors import CorruptFileError, SettingsError

PRIVATE, NOISE_SECRET = "private", "noise_secret"
"""Folder of raw data, and the file in it with the secret of the noise."""
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Streams:
    """All random streams of one run; equal seed and name give equal draws."""

    seed: int

    def __post_init__(self) -> None:
        is_whole = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if not is_whole or not 0 <= self.seed < 2**63:
            raise SettingsError(
                f"seed={self.seed} must be a whole number from 0 to 2^63 - 1"
            )

    def numpy(self, name: str) -> np.random.Generator:
        """Return the generator of the stream ``name``, at its start."""
        return np.random.default_rng(np.random.SeedSequence(self._entropy(name)))

    def seed_for(self, name: str) -> int:
        """Return a 63-bit seed for generators other than NumPy's."""
        sequence = np.random.SeedSequence(self._entropy(name))
        return int(sequence.generate_state(1, np.uint64)[0] >> 1)

    def _entropy(self, name: str) -> list[int]:
        # A stable hash: Python's own hash() of a string differs between processes.
        digest = hashlib.sha256(name.encode()).digest()
        words = np.frombuffer(digest[:16], dtype="<u4")
        return [int(self.seed), *(int(word) for word in words)]


def derived_secret(secret: int, purpose: str) -> int:
    """Derive 256 bits from a secret for one purpose."""
    text = f"epifalcon secret\0{secret}\0{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def stored_secret(path: Path) -> bytes:
    """Read the secret in ``path``, or create it, readable only by its owner."""
    try:
        secret = bytes.fromhex(path.read_text())
    except FileNotFoundError:
        return _new_secret(path)
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise CorruptFileError(f"{path}: holds no secret; restore the file")
    # Others may have read it, or planted a secret that they know.
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise CorruptFileError(
            f"{path}: other users can read this secret, expected mode 600; use a new "
            "folder, or run chmod 600 on it if nobody else has read or written it"
        )
    return secret


def noise_secret(folder: Path) -> int:
    """Return the secret of the noise of ``folder``, drawn when it is first needed."""
    (folder / PRIVATE).mkdir(mode=0o700, exist_ok=True)
    return int.from_bytes(stored_secret(folder / PRIVATE / NOISE_SECRET), "big")


def _new_secret(path: Path) -> bytes:
    secret = secrets.token_bytes(_SECRET_BYTES)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret.hex())
        file.flush()
        os.fsync(file.fileno())
    try:
        # Never overwrite a secret that another process has just created.
        os.link(scratch, path)
    except FileExistsError:
        return stored_secret(path)
    finally:
        scratch.unlink()
    return secret
