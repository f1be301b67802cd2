"""Sealing of shares for aggregators: HPKE (RFC 9180) with X25519 and AES-128-GCM.

A share is bound to its task, report and aggregator, so it opens nowhere else.
"""

import hmac
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from epifalcon.errors import DataError
from epifalcon.federation.sealed import shares
from epifalcon.federation.sealed.fixed_point import Words, require_words
from epifalcon.federation.sealed.shares import SEED_BYTES, WORD_BYTES
from epifalcon.federation.sealed.task import AggregatorIdentity, Role, SealedTask
from epifalcon.streams import stored_secret

OVERHEAD = 48
"""Bytes that sealing adds: an encapsulated key and an authentication tag."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_CONTEXT = b"epifalcon sealed share\0"
_REPORT = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class SealedReport:
    """Message of a client: one sealed share for each aggregator."""

    task: str
    """SHA-256 of the task."""
    report: str
    """Id of the report, 32 hexadecimal digits."""
    a: bytes
    b: bytes


def load_key(path: Path) -> X25519PrivateKey:
    """Read the private key in ``path``, or create it, readable only by its owner."""
    return X25519PrivateKey.from_private_bytes(stored_secret(path))


def identity(name: str, key: X25519PrivateKey) -> AggregatorIdentity:
    """Return the name with the public key."""
    return AggregatorIdentity(name=name, key=key.public_key().public_bytes_raw().hex())


def report_id(secret: bytes, task: SealedTask) -> str:
    """Return the id of a client's report, which depends on its secret and the task.

    A repeated report has the same id, so it counts once. Ids of two tasks cannot be
    linked.
    """
    code = hmac.digest(secret, f"report id\0{task.sha256}".encode(), "sha256")
    return code.hex()[:32]


def seal_report(task: SealedTask, words: Words, report: str) -> SealedReport:
    """Split the encoded sum of a client's people and seal both shares."""
    require_words(words, task)
    made = shares.split(words)
    plain: dict[Role, bytes] = {"a": shares.to_bytes(made.difference), "b": made.seed}
    sealed = {
        role: _SUITE.encrypt(
            data,
            X25519PublicKey.from_public_bytes(bytes.fromhex(task.aggregator(role).key)),
            sealing_info(task, report, role),
        )
        for role, data in plain.items()
    }
    return SealedReport(task=task.sha256, report=report, **sealed)


def open_share(
    task: SealedTask, report: str, role: Role, sealed: bytes, key: X25519PrivateKey
) -> bytes:
    """Open a share; raise ``DataError`` unless it was sealed for these arguments."""
    size = OVERHEAD + (SEED_BYTES if role == "b" else WORD_BYTES * task.length)
    if len(sealed) != size:
        raise DataError(
            f"report {report[:32]}: its share has {len(sealed)} bytes, expected {size}"
        )
    info = sealing_info(task, report, role)
    try:
        return _SUITE.decrypt(sealed, key, info)
    except (InvalidTag, ValueError):
        raise DataError(
            f"report {report}: its share was changed, or sealed for another task, "
            "report or aggregator"
        ) from None


def sealing_info(task: SealedTask, report: str, role: Role) -> bytes:
    """Return what a share is bound to, the ``info`` of HPKE."""
    if not _REPORT.fullmatch(report):
        raise DataError(
            f"report id {report[:64]!r} must be 32 lower-case hexadecimal digits"
        )
    sha256, number = bytes.fromhex(task.sha256), bytes.fromhex(report)
    return _CONTEXT + sha256 + role.encode() + number
