"""Signatures on all calls and answers between the server and the sites of a run.

The names in NVFlare's message headers are claims of the sender. So the server signs
each call with the key of its certificate, and each site its answers. A signature covers
the message, which holds round and phase, and its ``Binding``: a message is refused in
another run, at another site, in another direction, or a second time.

A site chooses a random session when its process starts. The server first requests the
session, so that calls recorded earlier are refused. That request changes nothing.
"""

import json
import logging
import secrets
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from epifalcon.errors import DataError
from epifalcon.federation.messages import PROTOCOL
from epifalcon.federation.network.credentials import Credentials
from epifalcon.federation.network.site_calls import Transport

_LENGTHS = struct.Struct(">II")
"""Lengths of the head, which is JSON, and of the signature; the message follows."""
_MOST_HEAD_BYTES = 2**16
_SESSION_BYTES = 16
_log = logging.getLogger(__name__)


class UnsignedError(DataError):
    """A message without a valid signature of the expected sender."""


@dataclass(frozen=True)
class Binding:
    """Where a signed message is valid."""

    kind: Literal["open", "call", "answer"]
    run: str
    site: str
    """Name of the site that receives the call or sends the answer."""
    session: str
    number: int
    """Number of the call, strictly increasing in a session; answers repeat it."""
    protocol: int = PROTOCOL


def seal(credentials: Credentials, binding: Binding, message: bytes) -> bytes:
    """Return the message with its binding, certificate and signature."""
    values = {"binding": vars(binding), "certificate": credentials.certificate}
    head = json.dumps(values).encode()
    signature = credentials.sign(head, message)
    lengths = _LENGTHS.pack(len(head), len(signature))
    return b"".join((lengths, head, signature, message))


def unseal(credentials: Credentials, data: bytes, sender: str) -> tuple[Binding, bytes]:
    """Return binding and message; raise ``UnsignedError`` unless from ``sender``."""
    try:
        head_bytes, signature_bytes = _LENGTHS.unpack_from(data)
        if head_bytes + signature_bytes > _MOST_HEAD_BYTES:
            raise ValueError
        start = _LENGTHS.size + head_bytes
        head, end = data[_LENGTHS.size : start], start + signature_bytes
        signature, message = data[start:end], data[end:]
        values = json.loads(head)
        certificate = str(values["certificate"])
        if not credentials.is_signed(sender, certificate, signature, head, message):
            raise ValueError
        return Binding(**values["binding"]), message
    except (ValueError, TypeError, KeyError, RecursionError, struct.error):
        raise UnsignedError(f"not signed by {sender}") from None


class SignedTransport:
    """Transport that signs calls with the server's key and verifies the answers."""

    def __init__(
        self, transport: Transport, run: str, credentials: Credentials
    ) -> None:
        self._transport, self._run = transport, run
        self._credentials = credentials
        self._sessions: dict[str, str] = {}
        self._number = 0

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return self._transport.sites

    def call(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its signed call; return verified answers and failures."""
        new = dict.fromkeys(calls.keys() - self._sessions.keys(), b"")
        found, failures = self._exchange("open", new, seconds)
        for site, session in found.items():
            if len(session) == 2 * _SESSION_BYTES and session.isalnum():
                self._sessions[site] = session.decode()
            else:
                failures[site] = "its session is invalid"
        ready = {site: one for site, one in calls.items() if site not in failures}
        answers, failed = self._exchange("call", ready, seconds)
        return answers, failures | failed

    def _exchange(
        self, kind: Literal["open", "call"], calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        if not calls:
            return {}, {}
        self._number += 1
        run, number, fresh = self._run, self._number, secrets.token_hex(_SESSION_BYTES)
        bindings = {
            site: Binding(kind, run, site, self._sessions.get(site, fresh), number)
            for site in calls
        }
        sealed = {
            site: seal(self._credentials, bindings[site], calls[site]) for site in calls
        }
        found, failures = self._transport.call(sealed, seconds)
        answers = {}
        for site, data in found.items():
            expected = replace(bindings[site], kind="answer")
            try:
                binding, answer = unseal(self._credentials, data, site)
            except UnsignedError as error:
                failures[site] = f"its answer is {error}"
                continue
            if binding == expected:
                answers[site] = answer
            else:
                failures[site] = (
                    f"its answer is for another {_other(binding, expected)}"
                )
        return answers, failures


class SignedAnswers:
    """Site side: answers calls that the server signed for this site and session."""

    def __init__(
        self,
        credentials: Credentials,
        server: str,
        run: str,
        site: str,
        answer: Callable[[bytes], bytes],
    ) -> None:
        self._credentials, self._server, self._answer = credentials, server, answer
        session = secrets.token_hex(_SESSION_BYTES)
        self._expected = Binding("call", run, site, session, 0)
        self._turn = threading.Lock()

    def __call__(self, data: bytes) -> bytes:
        """Return the signed answer; refuse other calls before they change anything."""
        try:
            binding, call = unseal(self._credentials, data, self._server)
            if binding.kind == "open":
                opening = replace(
                    self._expected,
                    kind="open",
                    session=binding.session,
                    number=binding.number,
                )
                _require_equal(binding, opening)
                answer = self._expected.session.encode()
            else:
                with self._turn:
                    number = max(binding.number, self._expected.number)
                    _require_equal(binding, replace(self._expected, number=number))
                    self._expected = binding
                    answer = self._answer(call)
        except UnsignedError as error:
            _log.warning("a call was refused: %s", error)
            raise
        return seal(self._credentials, replace(binding, kind="answer"), answer)


def _require_equal(found: Binding, expected: Binding) -> None:
    if found != expected:
        raise UnsignedError(f"signed for another {_other(found, expected)}")


def _other(found: Binding, expected: Binding) -> str:
    """Return the name of the first field that differs."""
    return next(n for n, one in vars(expected).items() if getattr(found, n) != one)
