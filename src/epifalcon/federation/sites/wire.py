"""Messages as bytes: a heading that says whose and for when, then tensors.

The bytes are safetensors with the heading in its metadata: nothing in them can be
executed, and every length is checked before anything is read. Both sides check
every heading, so an answer for another run, round, phase or site is refused.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.types import Plain

PROTOCOL = 2
"""Number of the conversation that both sides must speak."""
_MOST_HEADING_BYTES = 2**20
_LENGTH = struct.Struct("<Q")
_KINDS = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint8: "U8",
}
"""What tensors may be of, and how safetensors calls it."""


@dataclass(frozen=True)
class Heading:
    """To which moment of which run a message belongs."""

    run: str
    site: str
    """Of the site, for calls to it as for answers of it."""
    round: int
    phase: str
    protocol: int = PROTOCOL

    def require(self, expected: "Heading") -> None:
        """Raise ``DataError`` with the first thing that is not as expected."""
        for name, wanted in vars(expected).items():
            if (found := getattr(self, name)) != wanted:
                raise DataError(f"{name} is {found!r}, expected {wanted!r}")


@dataclass(frozen=True, eq=False)
class Parcel:
    """One message: its heading, tensors by name, and plain values."""

    heading: Heading
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    told: Plain = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """A tensor that must be there."""
        if name not in self.tensors:
            raise DataError(f"the message lacks {name!r}")
        return self.tensors[name]

    def value(self, name: str) -> Any:  # noqa: ANN401
        """A plain value that must be there."""
        if name not in self.told:
            raise DataError(f"the message lacks {name!r}")
        return self.told[name]


def pack(parcel: Parcel) -> bytes:
    """The bytes of a message.

    Made here and not by safetensors, which takes ten times as long over many small
    tensors; what it reads of them is the same.
    """
    told = {
        "heading": json.dumps(vars(parcel.heading)),
        "told": json.dumps(parcel.told, allow_nan=False),
    }
    header: dict[str, Any] = {"__metadata__": told}
    parts: list[Any] = []
    end = 0
    # The widest first: each then begins where a number of its kind may stand.
    for name, one in sorted(parcel.tensors.items(), key=lambda it: -it[1].itemsize):
        if one.dtype not in _KINDS:
            raise DataError(f"{name} is of {one.dtype}, which no message holds")
        array = one.detach().contiguous().numpy()
        parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False))
        begin, end = end, end + array.nbytes
        kind, shape = _KINDS[one.dtype], list(one.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


def unpack(data: bytes) -> Parcel:
    """Read what ``pack`` made; anything else is a ``DataError``."""
    try:
        told = _metadata(data)
        heading = Heading(**json.loads(told["heading"]))
        plain = json.loads(told["told"])
        tensors = safetensors.torch.load(data)
    except DataError:
        raise
    except SafetensorError as error:
        raise DataError(f"not a message: {error}") from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError("not a message: its heading cannot be read") from None
    if not isinstance(plain, dict):
        raise DataError("not a message: its plain values have no names")
    for name, one in tensors.items():
        if one.dtype not in _KINDS:
            raise DataError(f"{name} is of {one.dtype}, which no message holds")
    return Parcel(heading, tensors, plain)


def heading_of(data: bytes) -> Heading:
    """The heading alone, without reading the tensors."""
    try:
        return Heading(**json.loads(_metadata(data)["heading"]))
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError("not a message: its heading cannot be read") from None


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of safetensors, which its reader of bytes does not hand out."""
    if len(data) < _LENGTH.size:
        raise DataError(f"not a message: {len(data)} bytes")
    (length,) = _LENGTH.unpack_from(data)
    if length > min(len(data) - _LENGTH.size, _MOST_HEADING_BYTES):
        raise DataError("not a message: its heading is longer than it may be")
    header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    found: dict[str, str] = header["__metadata__"]
    return found
