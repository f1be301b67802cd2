"""Every recorded operation succeeds or fails as in the plain-Python reference."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from epifalcon.errors import DataError
from epifalcon.federation.sealed import shares
from epifalcon.federation.sealed.fixed_point import decode, encode
from epifalcon.federation.sealed.sealing import open_share
from epifalcon.federation.sealed.task import SealedTask
from tests.oracles import sealed_reference as reference

OPERATIONS = json.loads(reference.ANSWERS.read_text())


def task_in(given):
    return SealedTask.from_bytes(given["task"].encode())


def words_of(numbers):
    return shares.from_bytes(reference.pack(numbers))


def hexadecimal(values):
    return [float(value).hex() for value in values]


def open_operation(given):
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(given["key"]))
    sealed = bytes.fromhex(given["sealed"])
    opened = open_share(task_in(given), given["report"], given["role"], sealed, key)
    return opened.hex()


def join(given):
    task, difference = task_in(given), bytes.fromhex(given["difference"])
    mask = shares.expand(bytes.fromhex(given["seed"]), task.length)
    return hexadecimal(decode(shares.from_bytes(difference) + mask, task))


def encode_operation(given):
    values = [float.fromhex(value) for value in given["values"]]
    return encode(values, task_in(given)).tolist()


CARRY_OUT = {
    "task": lambda given: task_in(given).sha256,
    "encode": encode_operation,
    "decode": lambda given: hexadecimal(
        decode(words_of(given["words"]), task_in(given))
    ),
    "expand": lambda given: shares.expand(
        bytes.fromhex(given["seed"]), given["length"]
    ).tolist(),
    "open": open_operation,
    "join": join,
}


@pytest.mark.parametrize(
    "given", OPERATIONS, ids=lambda one: f"{one['operation']}: {one['comment']}"
)
def test_a_recorded_operation_has_the_recorded_outcome(given):
    carry_out = CARRY_OUT[given["operation"]]
    if given["success"]:
        assert carry_out(given) == given["result"]
    else:
        with pytest.raises(DataError):
            carry_out(given)


def test_the_recorded_answers_are_those_of_the_reference():
    assert reference.ANSWERS.read_text() == reference.known_answers()


def test_the_reference_seals_as_in_the_test_vector_of_rfc_9180():
    # Appendix A.1.1 of the RFC, first message.
    recipient = "4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8"
    ephemeral = "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736"
    plain = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
    sealed = reference.hpke_seal(
        plain,
        reference.public_of(bytes.fromhex(recipient)),
        bytes.fromhex("4f6465206f6e2061204772656369616e2055726e"),
        bytes.fromhex(ephemeral),
        aad=b"Count-0",
    )
    assert sealed.hex() == (
        "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a9"
        "6d8770ac83d07bea87e13c512a"
    )
