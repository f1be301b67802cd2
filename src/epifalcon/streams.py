"""Named random streams from one seed.

One stream per purpose: a new draw in one part of the program does not change
the draws of other parts.

>>> Streams(7).numpy("seir").random() == Streams(7).numpy("seir").random()
True
>>> Streams(7).numpy("seir").random() == Streams(7).numpy("city").random()
False
"""

import hashlib
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from epifalcon.errors import SettingsError


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
