"""The task of one sealed exchange: what clients, aggregators and server agree on.

Every share is sealed for the SHA-256 of the task's canonical bytes, so parties with
different tasks cannot read each other's messages. Canonical bytes are JSON with sorted
keys, no spaces, and floating-point numbers in hexadecimal.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Literal

from epifalcon.checks import (
    Checked,
    Count,
    NonNegative,
    Positive,
    require_run_name,
    whole,
    within,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.events import GaussianRelease, Terms, Unit
from epifalcon.settings import as_plain, build
from epifalcon.store import installed_versions

Role = Literal["a", "b"]
"""Aggregator ``a`` receives differences, aggregator ``b`` the seeds of the masks."""

FORMAT = "epifalcon-sealed-task-1"
LEAST_SIGMA, MOST_SIGMA = 2.0**16, 2.0**40
"""Limits of sigma in steps. Above the lower one, the epsilon of discrete noise equals
that of continuous noise within 1e-9."""
_TAIL = 40
"""Noise exceeds this many sigmas with probability exp(-800)."""
_HEX_KEY = re.compile("[0-9a-f]{64}")
_LONGEST_NAME = 64


def _installed() -> str:
    return installed_versions().get("epifalcon", "unknown")


@dataclass(frozen=True, kw_only=True)
class AggregatorIdentity:
    """Name and public key (X25519, 64 hexadecimal digits) of an aggregator."""

    name: str
    key: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and 0 < len(self.name) <= _LONGEST_NAME):
            raise SettingsError(
                f"name={self.name!r} must be a text of 1 to {_LONGEST_NAME} characters"
            )
        if not (isinstance(self.key, str) and _HEX_KEY.fullmatch(self.key)):
            raise SettingsError(
                f"key of aggregator {self.name!r} must be 64 hexadecimal digits"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, which clients pin."""
        return hashlib.sha256(bytes.fromhex(self.key)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SealedTask(Checked):
    """Contents of one exchange; ``terms.round`` is its number within the run.

    Values are multiples of a step of 2^-``fraction_bits``.
    """

    run: str
    terms: Terms
    """Channel, exchange number and neighbouring relation; the adversary is ``sums``."""
    unit: Unit
    """Protected unit."""
    bound: Positive
    """Largest L2 norm of each of the vectors that ``terms.releases`` counts."""
    sigma: NonNegative
    """Standard deviation of the noise of each aggregator; 0 protects nothing."""
    least_reports: Annotated[int, partial(whole, 2)]
    """Minimum cohort: an aggregator adds up no fewer reports."""
    most_people: Count
    """Largest number of people in the sum, which must not exceed 64 bits."""
    fraction_bits: Annotated[int, partial(within, 0, 52)]
    length: Count
    """Number of entries of a message."""
    aggregators: tuple[AggregatorIdentity, AggregatorIdentity]
    """Aggregators ``a`` and ``b``."""
    version: str = field(default_factory=_installed)
    """Version of epifalcon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("bound", "sigma"):
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("least_reports", "most_people", "fraction_bits", "length"):
            object.__setattr__(self, name, int(getattr(self, name)))
        require_run_name(self.run)
        if self.terms.adversary != "sums":
            raise SettingsError(
                f"adversary={self.terms.adversary!r} must be 'sums' in a sealed task"
            )
        one, other = self.aggregators
        if one.name == other.name or one.key == other.key:
            raise SettingsError(
                f"aggregators {one.name!r} and {other.name!r} must have different "
                "names and keys: one party that holds both shares can read messages"
            )
        steps = self.sigma * self.scale
        if self.sigma and not LEAST_SIGMA <= steps <= MOST_SIGMA:
            raise SettingsError(
                f"sigma={self.sigma:g} is {steps:g} steps at fraction_bits="
                f"{self.fraction_bits}, expected {LEAST_SIGMA:g} to {MOST_SIGMA:g} "
                "steps: change fraction_bits"
            )
        if (most := self.most_people * self.most_steps + 2 * _TAIL * steps) >= 2**63:
            raise SettingsError(
                f"the sum over most_people={self.most_people} with noise can reach "
                f"2^{math.log2(most):.1f} steps, expected less than 2^63: lower "
                f"fraction_bits={self.fraction_bits}"
            )

    @property
    def scale(self) -> float:
        """Steps per unit of value, a power of two, so that scaling rounds nothing."""
        return 2.0**self.fraction_bits

    @property
    def person_bound(self) -> float:
        """Largest L2 norm of a person's whole message."""
        return self.bound * math.sqrt(self.terms.releases.person)

    @property
    def most_steps(self) -> int:
        """Largest absolute value of an entry of a person's message, in steps."""
        return math.floor(self.person_bound * self.scale)

    @property
    def receipt(self) -> GaussianRelease:
        """Receipt of the noise of one aggregator, on which the guarantee rests.

        Truncation toward zero increases no norm, so the bound of a person also holds
        for integers. But it can move two messages that differ by a visit or a day
        apart, by less than one step per entry, which is added to the bound.
        """
        apart = 0.0 if self.unit == "person" else math.sqrt(self.length) / self.scale
        return GaussianRelease(
            terms=self.terms, clip=self.bound + apart, sigma=self.sigma
        )

    def to_bytes(self) -> bytes:
        """Return the canonical bytes; the inverse of ``from_bytes``."""
        values = {"format": FORMAT, **as_plain(self)}
        for name in ("bound", "sigma"):
            values[name] = getattr(self, name).hex()
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SealedTask":
        """Read canonical bytes; raise ``DataError`` for all others."""
        try:
            values = json.loads(data)
            found = values.pop("format")
            for name in ("bound", "sigma"):
                values[name] = float.fromhex(values[name])
            task = build(cls, values, "task") if found == FORMAT else None
        except SettingsError as error:
            raise DataError(f"sealed task: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError("sealed task: cannot be read") from None
        except OverflowError:
            raise DataError("sealed task: a number is too large") from None
        if task is None or task.to_bytes() != data:
            raise DataError(
                f"sealed task: not the canonical bytes of {FORMAT}, changed on the way "
                "or written by another version"
            )
        return task

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical bytes, which identifies the task."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def aggregator(self, role: Role) -> AggregatorIdentity:
        """Return the aggregator with this role."""
        return self.aggregators[0 if role == "a" else 1]

    def require_trusted(self, pinned: Mapping[str, str]) -> None:
        """Raise unless both aggregators are ``pinned`` (fingerprints by name).

        The task comes from a server that could name keys of its own. The version must
        be the installed one.
        """
        for one in self.aggregators:
            if pinned.get(one.name) != one.fingerprint:
                known = "another" if one.name in pinned else "no"
                raise DataError(
                    f"aggregator {one.name!r} has the key {one.fingerprint[:16]}..., "
                    f"but {known} fingerprint is pinned for it: compare fingerprints "
                    "with its operator; nothing was sent"
                )
        if self.version != (mine := _installed()):
            raise DataError(
                f"the task is of version {self.version}, installed is {mine}: install "
                "the same version everywhere"
            )

    def require_same(self, sha256: str) -> None:
        """Raise ``DataError`` if a message is for another task."""
        if sha256 != self.sha256:
            raise DataError(
                f"a message is for task {sha256[:16]}, expected {self.sha256[:16]} "
                f"(run {self.run}, exchange {self.terms.round})"
            )
