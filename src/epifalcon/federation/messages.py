"""Messages between server and sites: frozen records that know their encoding.

A cohort is one person or many. No record holds a trace, a label or an embedding as
it is stored at a site; what the keys of an upload reveal is in the ledger.

On the wire a message is a safetensors file with a heading in its metadata: nothing in
it can be executed, and every length is checked before anything is read. Both sides
check every heading, so an answer for another run, round, phase or site is refused.
"""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.tensor_files import tensors_under
from epifalcon.types import Floats, Mask, Plain

PROTOCOL = 4
"""Version of the conversation; both sides must use the same."""
ERROR = "error"
"""Value of an answer: why a site could not do what was asked, without any data."""
SECONDS = "seconds"
"""Value of an answer: how long the site worked on it."""
_MOST_HEADING_BYTES = 2**20
_LENGTH_BYTES = 8
_TYPES = (torch.float64, torch.int64, torch.float32, torch.int32, torch.uint8)
_ANY_NUMBER = 1e300


# Envelope: bytes with a heading.


@dataclass(frozen=True)
class Heading:
    """Which step of which run a message belongs to."""

    run: str
    site: str
    """The site, in calls to it as in answers from it."""
    round: int
    phase: str
    protocol: int = PROTOCOL

    def require(self, expected: "Heading") -> None:
        """Raise ``DataError`` naming the first field that differs."""
        for name, wanted in vars(expected).items():
            if (found := getattr(self, name)) != wanted:
                raise DataError(f"{name} is {found!r}, expected {wanted!r}")


@dataclass(frozen=True, eq=False)
class Packet:
    """The decoded bytes of one message: heading, tensors by name, JSON values."""

    heading: Heading
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Plain = field(default_factory=dict)


def pack(packet: Packet) -> bytes:
    """Encode a message as bytes."""
    arrays = {}
    for name, one in packet.tensors.items():
        if one.dtype not in _TYPES:
            raise DataError(f"{name} is of {one.dtype}, which no message holds")
        arrays[name] = one.detach().contiguous().numpy()
    metadata = {
        "heading": json.dumps(vars(packet.heading)),
        "values": json.dumps(packet.values, allow_nan=False),
    }
    return safetensors.numpy.save(arrays, metadata)


def unpack(data: bytes) -> Packet:
    """Decode what ``pack`` made; anything else is a ``DataError``."""
    heading, values = _decode_head(data)
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise DataError(f"not a message: {error}") from None
    for name, one in tensors.items():
        if one.dtype not in _TYPES:
            raise DataError(f"{name} is of {one.dtype}, which no message holds")
    return Packet(heading, tensors, values)


def heading_of(data: bytes) -> Heading:
    """Decode the heading alone, without reading the tensors."""
    return _decode_head(data)[0]


def _decode_head(data: bytes) -> tuple[Heading, Plain]:
    """Read the metadata, which safetensors' reader of bytes does not return."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > min(len(data) - _LENGTH_BYTES, _MOST_HEADING_BYTES):
        raise DataError("not a message: its heading is longer than it may be")
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        metadata = header["__metadata__"]
        heading = Heading(**json.loads(metadata["heading"]))
        values = json.loads(metadata["values"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError("not a message: its heading cannot be read") from None
    if not isinstance(values, dict):
        raise DataError("not a message: its values have no names")
    return heading, values


# Records: typed messages and their encoding.


@dataclass(frozen=True, eq=False)
class Record:
    """A message whose fields travel by their types.

    ``Tensor`` and array fields are tensors of that name, ``dict[str, Tensor]`` fields
    tensors named ``field/key``, all others JSON values. None is left out.
    """

    phase: ClassVar[str] = ""
    """Name of a request in headings; empty for answers."""

    @property
    def moment(self) -> str:
        """The phase in headings; a round may have several requests of a kind."""
        return self.phase

    def encode(self, heading: Heading, seconds: float | None = None) -> Packet:
        """Encode the record, with the time that an answer took."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {} if seconds is None else {SECONDS: seconds}
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if value is None:
                continue
            if hint.named:
                tensors |= {f"{name}/{key}": one for key, one in value.items()}
            elif hint.kind is Tensor:
                tensors[name] = value
            elif isinstance(value, np.ndarray):
                kind = np.uint8 if hint.kind is np.bool_ else hint.kind
                tensors[name] = torch.from_numpy(np.array(value, kind))
            else:
                values[name] = value
        return Packet(heading, tensors, values)

    @classmethod
    def decode(cls, packet: Packet) -> Self:
        """Read the record; a missing or mistyped field is a ``DataError``."""
        given: dict[str, Any] = {}
        for name, hint in _hints(cls).items():
            if hint.named:
                given[name] = tensors_under(dict(packet.tensors), f"{name}/")
                continue
            source: Mapping[str, Any] = packet.values
            if hint.is_tensor:
                source = packet.tensors
            if source.get(name) is None:
                if not hint.optional:
                    raise DataError(f"the message lacks {name!r}")
                given[name] = None
            else:
                given[name] = _read(name, source[name], hint)
        return cls(**given)


@dataclass(frozen=True)
class _Hint:
    """How a field travels."""

    kind: Any
    """``Tensor``, a NumPy scalar type for arrays, or the type of a JSON value."""
    named: bool
    optional: bool

    @property
    def is_tensor(self) -> bool:
        return self.kind is Tensor or (
            isinstance(self.kind, type) and issubclass(self.kind, np.generic)
        )


def _hints(record: type[Record]) -> dict[str, _Hint]:
    found = typing.get_type_hints(record)
    return {one.name: _hint(found[one.name]) for one in fields(record)}


def _hint(given: Any) -> _Hint:  # noqa: ANN401
    choices = [given]
    if isinstance(given, types.UnionType) or typing.get_origin(given) is typing.Union:
        choices = [one for one in typing.get_args(given) if one is not type(None)]
    optional = choices != [given]
    kind = choices[0]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        kind = typing.get_args(arguments[1])[0]
    elif origin is not None:
        kind = origin
    return _Hint(kind, origin is dict and Tensor in arguments, optional)


def _read(name: str, value: Any, hint: _Hint) -> Any:  # noqa: ANN401
    kind = hint.kind
    if kind is Tensor:
        return value
    if hint.is_tensor:
        array = value.numpy()
        wanted = np.uint8 if kind is np.bool_ else kind
        if array.dtype != wanted:
            raise DataError(
                f"{name} is of {array.dtype}, expected {np.dtype(wanted).name}"
            )
        if kind is np.bool_ and (array > 1).any():
            raise DataError(f"{name} holds values other than 0 and 1")
        return array.astype(kind, copy=False)
    if kind is float:
        if type(value) not in (int, float) or not abs(value) < _ANY_NUMBER:
            raise DataError(f"{name} is {str(value)[:40]!r}, expected a number")
        return float(value)
    wanted = dict if kind is Mapping else kind
    if type(value) is not wanted:
        raise DataError(f"{name} is {str(value)[:40]!r}, expected {wanted.__name__}")
    return value


@dataclass(frozen=True, eq=False)
class Done(Record):
    """Site to server: the request was carried out."""


@dataclass(frozen=True, eq=False)
class Hello(Record):
    """Server to site: will you take part in this run?"""

    phase = "hello"
    method: str
    settings: Plain
    rules: Plain
    seed: int


@dataclass(frozen=True, eq=False)
class SiteFacts(Record):
    """Site to server: number of people, and what its city looks like."""

    people: int
    regions: int
    regions_sha256: str
    clock: Plain

    @property
    def city(self) -> Plain:
        """What all sites of a run must have in common."""
        return {name: one for name, one in vars(self).items() if name != "people"}


@dataclass(frozen=True, eq=False)
class Count(Record):
    """Server to site: the number of its first person; count what is summed up."""

    phase = "count"
    first: int
    people: int | None = None
    """Of all sites; Falcon Field only."""


@dataclass(frozen=True, eq=False)
class Counted(Record):
    """Site to server: tallies by name (``preparing.pack_tally``)."""

    tally: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class States(Record):
    """Server to site: region states, (1 + folds, regions, days, width)."""

    phase = "states"
    states: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Prepare(Record):
    """Server to site: what it must know of the city; go back to ``round``."""

    phase = "prepare"
    round: int
    tally: dict[str, Tensor]
    centre: NDArray[np.float32] | None = None
    factor: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Announce(Record):
    """Server to site: which places do your people claim? Answer: PresenceUpload."""

    phase = "announce"


@dataclass(frozen=True, eq=False)
class Settle(Record):
    """Server to site: number of people at each of its places (see ``Announce``)."""

    phase = "settle"
    counts: Floats
    shared: Mask
    """Whether other sites claim the place too."""


@dataclass(frozen=True, eq=False)
class Closing:
    """Server to all: the factor by which the sums of the round were multiplied."""

    round: int
    scale: float


@dataclass(frozen=True, eq=False)
class RoundRequest(Record):
    """Server to site, with the end of the previous round that the site was in."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    closed_round: int | None = None
    closing_scale: float | None = None
    best: int | None = None
    """Round of the best validation result so far."""

    @property
    def closing(self) -> Closing | None:
        """The end of the previous round, if it is sent."""
        if self.closed_round is None or self.closing_scale is None:
            return None
        return Closing(self.closed_round, self.closing_scale)


@dataclass(frozen=True, eq=False)
class Begin(RoundRequest):
    """Begin a training pass. Answer: LocationUpload."""

    phase = "begin"


@dataclass(frozen=True, eq=False)
class BeginScoring(RoundRequest):
    """Begin a scoring pass. Answer: LocationUpload."""

    phase = "begin scoring"


@dataclass(frozen=True, eq=False)
class Reply(Record):
    """Server to site: sums at the places of its last upload.

    Answer: the next LocationUpload, at the end of training GradientUpload.
    """

    phase = "reply"
    channel: str
    sums: Tensor

    @property
    def moment(self) -> str:
        return f"{self.phase} {self.channel}"


@dataclass(frozen=True, eq=False)
class Look(RoundRequest):
    """Score validation people, by the last scoring pass if ``fresh``."""

    phase = "look"
    fresh: bool = False


@dataclass(frozen=True, eq=False)
class ValidationScores(Record):
    """Site to server: scores and results of its validation people, by score."""

    scores: Floats
    infected: Mask

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or self.scores.shape != self.infected.shape:
            raise DataError("scores and results are not of the same people")


@dataclass(frozen=True, eq=False)
class Keep(RoundRequest):
    """Write a checkpoint of this round. Answer: Done."""

    phase = "keep"


@dataclass(frozen=True, eq=False)
class Finish(RoundRequest):
    """Write everybody's risk to the site's folder; send them if ``scores``."""

    phase = "finish"
    fresh: bool = False
    scores: bool = False


@dataclass(frozen=True, eq=False)
class Scores(Record):
    """Site to server: everybody's risk, where the server asked and the site agrees."""

    scores: Floats | None = None

    def require(self, people: int) -> Floats | None:
        """Return the risks, one from 0 to 1 for each of ``people``."""
        found = self.scores
        if found is None:
            return None
        if found.shape != (people,):
            raise DataError(f"scores of {found.shape} for {people} people")
        if not ((found >= 0) & (found <= 1)).all():
            raise DataError("a score outside 0 to 1")
        return found


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Server to all: the parameters of the round (algorithm 1, line 2)."""

    round: int
    parameters: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class PresenceUpload(Record):
    """Cohort to server, once: how many of its people claim each key truly.

    True counts, or sums of ones and zeros with noise on each, as the plan says.
    """

    keys: EdgeKeys
    counts: Floats

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=True)
        same_length(keys=self.keys, counts=self.counts)


@dataclass(frozen=True, eq=False)
class LocationUpload(Record):
    """Cohort to server: rows at (region, window) keys, true and pseudo alike.

    Without ``person``: the cohort's sum for each of its keys. With it: a row
    for each upload, in the order of the keys, and who sent it.
    """

    round: int
    channel: str
    keys: EdgeKeys
    """(uploads,) ascending: their order tells nothing but themselves."""
    rows: Tensor
    """(uploads, width)"""
    person: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=self.person is None)
        if self.rows.ndim != 2 or len(self.rows) != len(self.keys):
            raise DataError(
                f"{self.channel}: rows of shape {tuple(self.rows.shape)} for "
                f"{len(self.keys)} keys"
            )
        if not torch.isfinite(self.rows).all():
            raise DataError(
                f"{self.channel} in round {self.round}: an upload holds NaN or "
                "infinity; nothing was added up. Is learning_rate too large?"
            )


@dataclass(frozen=True, eq=False)
class GradientUpload(Record):
    """Cohort to server: its people's gradients, added up by parameter name."""

    round: int
    gradients: dict[str, Tensor]
    people: int
    weight: float | None
    """Sum of the weights in the loss; None where that must stay at home."""
    loss: float | None = None
    """Sum of the losses; None like ``weight``."""


def _require_keys(keys: EdgeKeys, distinct: bool) -> None:
    if keys.ndim != 1 or keys.dtype != np.int64:
        raise DataError(f"keys are {keys.dtype} of {keys.ndim} axes, expected int64")
    step = np.diff(keys)
    if (step < distinct).any():
        raise DataError("keys must be ascending, none twice for a sum")
