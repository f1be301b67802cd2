"""Key and certificate of a start-up kit: signing, and verifying others' signatures."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from epifalcon.errors import CorruptFileError

_HASH = Prehashed(hashes.SHA256())
_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_CONTEXT = b"epifalcon federation message\0"
_INVALID = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
)
"""Errors of a certificate or signature that somebody else made."""


class Credentials:
    """RSA key and certificate of ``name``, and the root of its federation."""

    def __init__(self, startup: Path, name: str) -> None:
        """Read the folder ``startup`` of a kit; raise an error if it is not valid."""
        own = "server" if (startup / "server.key").exists() else "client"
        path = startup / f"{own}.crt"
        try:
            key = load_pem_private_key((startup / f"{own}.key").read_bytes(), None)
            self.certificate = path.read_text(encoding="ascii")
            root = (startup / "rootCA.pem").read_bytes()
            self._root = x509.load_pem_x509_certificate(root)
            public = self._key_of(self.certificate, name)
        except OSError as error:
            why = f"{error.filename}: cannot be read: {error.strerror}"
            raise CorruptFileError(why) from None
        except _INVALID:
            why = f"{path}: no valid certificate of {name} in this federation"
            raise CorruptFileError(why) from None
        if not isinstance(key, rsa.RSAPrivateKey) or key.public_key() != public:
            raise CorruptFileError(f"{startup / own}.key: not the certificate's key")
        self._key = key

    def sign(self, *parts: bytes) -> bytes:
        """Return the signature of ``parts``, including their lengths."""
        return self._key.sign(_digest(parts), _PADDING, _HASH)

    def is_signed(
        self, by: str, certificate: str, signature: bytes, *parts: bytes
    ) -> bool:
        """Return True if ``by``, to whom the root issued the certificate, signed."""
        try:
            key = self._key_of(certificate, by)
            key.verify(signature, _digest(parts), _PADDING, _HASH)
        except _INVALID:
            return False
        return True

    def _key_of(self, certificate: str, name: str) -> rsa.RSAPublicKey:
        """Return the key of a certificate of ``name``; raise one of ``_INVALID``."""
        found = x509.load_pem_x509_certificate(certificate.encode())
        found.verify_directly_issued_by(self._root)
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        first, last = found.not_valid_before_utc, found.not_valid_after_utc
        key = found.public_key()
        if [one.value for one in names] != [name] or not isinstance(
            key, rsa.RSAPublicKey
        ):
            raise ValueError
        if not first <= datetime.now(UTC) <= last:
            raise ValueError
        return key


def _digest(parts: tuple[bytes, ...]) -> bytes:
    found = hashlib.sha256(_CONTEXT)
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
