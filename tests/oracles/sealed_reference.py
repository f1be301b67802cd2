"""Sealed sums in plain Python: exact fractions, one integer and one block at a time.

HPKE follows RFC 9180 step by step; only X25519, AES and SHA-256 come from libraries.
``python -m tests.oracles.sealed_reference`` writes the known answers.
"""

import hashlib
import hmac
import json
import math
from fractions import Fraction
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MODULUS = 2**64
ANSWERS = Path(__file__).parents[1] / "federation" / "sealed" / "known_answers.json"


def encode(values, bits):
    """Truncate multiples of 2^-bits toward zero, modulo 2^64."""
    words = []
    for value in values:
        exact = Fraction(value) * 2**bits
        steps = abs(exact.numerator) // exact.denominator
        words.append((-steps if value < 0 else steps) % MODULUS)
    return words


def decode(words, bits):
    signed = [word - MODULUS if word >= MODULUS // 2 else word for word in words]
    return [float(Fraction(value, 2**bits)) for value in signed]


def expand(seed, length):
    """AES-256 of the block counter, two words per block."""
    block = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    stream = b""
    for counter in range((length + 1) // 2):
        stream += block.update(counter.to_bytes(16, "big"))
    return unpack(stream[: 8 * length])


def split(words, seed):
    masks = expand(seed, len(words))
    return [(word - mask) % MODULUS for word, mask in zip(words, masks, strict=True)]


def add(*vectors):
    return [sum(column) % MODULUS for column in zip(*vectors, strict=True)]


def pack(words):
    return b"".join(word.to_bytes(8, "little") for word in words)


def unpack(data):
    return [
        int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)
    ]


# The task


def canonical(value):
    """JSON with sorted keys and without spaces."""
    if isinstance(value, dict):
        inner = ",".join(
            f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)
        )
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(one) for one in value) + "]"
    assert isinstance(value, str | int)
    assert str(value).isascii()
    assert '"' not in str(value)
    return f'"{value}"' if isinstance(value, str) else str(value)


def task_of(keys, **changed):
    names = ("health-office", "university")
    return {
        "format": "epifalcon-sealed-task-1",
        "run": "vectors",
        "terms": {
            "channel": "infectious",
            "releases": {"visit": 1, "day": 1, "person": 1},
            "round": 1,
            "relation": "zero-out",
            "adversary": "sums",
        },
        "unit": "person",
        "bound": (1.0).hex(),
        "sigma": (0.5).hex(),
        "least_reports": 2,
        "most_people": 1000,
        "fraction_bits": 24,
        "length": 3,
        "aggregators": [
            {"name": name, "key": public_of(key).hex()}
            for name, key in zip(names, keys, strict=True)
        ],
        "version": "1",
    } | changed


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


# HPKE, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM

_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_HPKE = b"HPKE" + b"".join(one.to_bytes(2, "big") for one in (0x0020, 0x0001, 0x0001))


def public_of(key):
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def _extract(suite, salt, label, secret):
    labelled = b"HPKE-v1" + suite + label + secret
    return hmac.new(salt or bytes(32), labelled, hashlib.sha256).digest()


def _expand(suite, secret, label, info, length):
    assert length <= 32
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.new(secret, labelled + b"\x01", hashlib.sha256).digest()[:length]


def _schedule(own, other, enc, public, info):
    """Key and nonce of the first message."""
    shared = X25519PrivateKey.from_private_bytes(own).exchange(
        X25519PublicKey.from_public_bytes(other)
    )
    secret = _extract(_KEM, b"", b"eae_prk", shared)
    secret = _expand(_KEM, secret, b"shared_secret", enc + public, 32)
    context = b"\x00" + _extract(_HPKE, b"", b"psk_id_hash", b"")
    context += _extract(_HPKE, b"", b"info_hash", info)
    secret = _extract(_HPKE, secret, b"secret", b"")
    key = _expand(_HPKE, secret, b"key", context, 16)
    return key, _expand(_HPKE, secret, b"base_nonce", context, 12)


def hpke_seal(plain, public, info, ephemeral, aad=b""):
    enc = public_of(ephemeral)
    key, nonce = _schedule(ephemeral, public, enc, public, info)
    return enc + AESGCM(key).encrypt(nonce, plain, aad)


def hpke_open(sealed, key, info):
    """The plaintext; None if the message was changed."""
    enc, public = sealed[:32], public_of(key)
    try:
        secret, nonce = _schedule(key, enc, enc, public, info)
        return AESGCM(secret).decrypt(nonce, sealed[32:], b"")
    except (InvalidTag, ValueError):
        return None


def info_of(task_sha256, report, role):
    return (
        b"epifalcon sealed share\0"
        + bytes.fromhex(task_sha256)
        + role.encode()
        + bytes.fromhex(report)
    )


# Known answers

_ROLES = ("a", "b")


def operations():
    """Operations with their inputs, and the output or ``success: false``."""
    keys = [bytes([7]) * 32, bytes([9]) * 32]
    made = []

    def entry(name, comment, given, result):
        found = {"operation": name, "comment": comment, **given}
        outcome = {"success": result is not None}
        made.append(found | outcome | ({} if result is None else {"result": result}))

    text = canonical(task_of(keys))
    entry("task", "valid", {"task": text}, sha256(text))
    for comment, wrong in _wrong_tasks(keys, text):
        entry("task", comment, {"task": wrong}, None)
    for comment, values, good in _VALUES:
        given = {"task": text, "values": [value.hex() for value in values]}
        entry("encode", comment, given, encode(values, 24) if good else None)
    for words in ([0, 1, MODULUS - 1], [2**63 - 1, 2**63, 2**24]):
        result = [value.hex() for value in decode(words, 24)]
        entry("decode", "signed", {"task": text, "words": words}, result)
    for length in (1, 2, 3, 5):
        given = {"seed": bytes(range(32)).hex(), "length": length}
        entry("expand", "mask", given, expand(bytes(range(32)), length))
    short = {"seed": bytes(31).hex(), "length": 3}
    entry("expand", "short seed", short, None)
    _open_operations(entry, keys, text)
    return made


_VALUES = [
    ("positive and negative", [0.5, -0.25, 2.0**-24], True),
    ("truncated toward zero", [1.9 * 2.0**-24, -1.9 * 2.0**-24, -0.0], True),
    ("on the bound", [0.0, -1.0, 0.0], True),
    ("exact after scaling", [0.1, 0.2, 0.3], True),
    ("beyond the bound", [1.0, 1.0, 0.0], False),
    ("an entry beyond the bound", [1.5, 0.0, 0.0], False),
    ("too large for 64 bits", [1e300, 0.0, 0.0], False),
    ("not a number", [0.0, math.nan, 0.0], False),
    ("infinite", [0.0, -math.inf, 0.0], False),
    ("too short", [0.0, 0.0], False),
    ("too long", [0.0] * 4, False),
]


def _wrong_tasks(keys, text):
    sums = task_of(keys)["terms"]
    changes = {
        "noise below zero": {"sigma": (-0.5).hex()},
        "noise of fewer than 2^16 steps": {"sigma": (2.0**-8.01).hex()},
        "noise of more than 2^40 steps": {"sigma": (2.0**16.01).hex()},
        "noise that is not a number": {"sigma": "nan"},
        "bound zero": {"bound": (0.0).hex()},
        "one report": {"least_reports": 1},
        "no entry": {"length": 0},
        "the sum could wrap": {"most_people": 2**39},
        "53 bits": {"fraction_bits": 53},
        "unknown unit": {"unit": "family"},
        "adversary sees uploads": {"terms": sums | {"adversary": "each-upload"}},
        "one aggregator": {"aggregators": task_of(keys)["aggregators"][:1]},
        "the same aggregator twice": {
            "aggregators": task_of(keys)["aggregators"][:1] * 2
        },
        "short key": {
            "aggregators": [{"name": name, "key": "00"} for name in ("one", "two")]
        },
        "unsafe run": {"run": "../other"},
        "another format": {"format": "epifalcon-sealed-task-2"},
        "unknown field": {"extra": 1},
    }
    for comment, change in changes.items():
        yield comment, canonical(task_of(keys, **change))
    without = task_of(keys)
    del without["sigma"]
    yield "no noise scale", canonical(without)
    yield "spaces", text.replace(":", ": ", 1)
    yield "truncated", text[:-1]
    yield "keys not sorted", json.dumps(task_of(keys), separators=(",", ":"))
    yield "not JSON", "sealed"


def _open_operations(entry, keys, text):
    report, other = "00112233445566778899aabbccddeeff", "ff" * 16
    seed, words = bytes(range(32, 64)), encode([0.5, -0.25, 0.125], 24)
    plain = {"a": pack(split(words, seed)), "b": seed}
    changed = canonical(task_of(keys, sigma=(0.25).hex()))
    for role, key, ephemeral in zip(
        _ROLES, keys, (bytes([3]) * 32, bytes([4]) * 32), strict=True
    ):
        info = info_of(sha256(text), report, role)
        sealed = hpke_seal(plain[role], public_of(key), info, ephemeral)
        assert hpke_open(sealed, key, info) == plain[role]
        given = {
            "task": text,
            "report": report,
            "role": role,
            "sealed": sealed.hex(),
            "key": key.hex(),
        }
        entry("open", "valid", given, plain[role].hex())
        for comment, at in (("key", 0), ("first byte", 32), ("tag", -1)):
            flipped = bytearray(sealed)
            flipped[at] ^= 1
            changes = {"sealed": bytes(flipped).hex()}
            entry("open", f"bit flipped in {comment}", given | changes, None)
        swapped = "a" if role == "b" else "b"
        for comment, changes in {
            "truncated": {"sealed": sealed[:-1].hex()},
            "empty": {"sealed": ""},
            "oversized": {"sealed": (sealed + b"\0").hex()},
            "another task": {"task": changed},
            "another report": {"report": other},
            "another role": {"role": swapped},
            "another key": {"key": (bytes([5]) * 32).hex()},
            "upper-case report": {"report": report.upper()},
            "short report": {"report": report[:-2]},
        }.items():
            entry("open", comment, given | changes, None)
    two = [plain["a"], pack(expand(plain["b"], 3))]
    result = [one.hex() for one in decode(add(*map(unpack, two)), 24)]
    given = {"task": text, "difference": plain["a"].hex(), "seed": seed.hex()}
    entry("join", "sum of both shares", given, result)


def known_answers():
    return json.dumps(operations(), indent=1) + "\n"


if __name__ == "__main__":
    ANSWERS.write_text(known_answers())
