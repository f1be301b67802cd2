"""Messages between server and sites: frozen records with their encoding.

A cohort is one person or many. No record holds a trace, a label or an embedding as
it is stored at a site. The ledger records what the keys of an upload reveal.

On the wire a message is a safetensors file with a header in its metadata: nothing in
it can be executed, and every length is checked before anything is read. Both sides
check every header, so an answer for another run, round, phase or site is refused.
"""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, dataclass_transform

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.checks import same_length
from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.mobility.clock import Clock
from epifalcon.models.tensor_files import tensors_under
from epifalcon.settings import convert, plain
from epifalcon.types import Floats, Mask, Plain

PROTOCOL = 9
"""Version of the message protocol; server and sites must use the same version."""
ERROR = "error"
"""Key in an answer: why the site could not handle the request, without any data."""
SECONDS = "seconds"
"""Key in an answer: computing time of the site in seconds."""
COUNTER = "counter"
"""Key in an answer: number of requests that the site has stored, authenticated."""
_MAX_HEADER_BYTES = 2**20
_LENGTH_BYTES = 8
_TYPES = (torch.float64, torch.int64, torch.float32, torch.int32, torch.uint8)


# Envelope: bytes with a header.


@dataclass(frozen=True)
class MessageHeader:
    """Run, site, round and phase of a message."""

    run: str
    site: str
    """Name of the site that receives the request or sends the answer."""
    round: int
    phase: str
    protocol: int = PROTOCOL

    def require(self, expected: "MessageHeader") -> None:
        """Raise ``DataError`` for the first field that differs from ``expected``."""
        for name, value in vars(expected).items():
            if (found := getattr(self, name)) != value:
                raise DataError(f"{name} is {found!r}, expected {value!r}")


@dataclass(frozen=True, eq=False)
class Packet:
    """A decoded message: header, tensors by name and JSON values."""

    header: MessageHeader
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Plain = field(default_factory=dict)


def pack(packet: Packet) -> bytes:
    """Encode a message as bytes."""
    _require_types(packet.tensors)
    arrays = {
        name: tensor.detach().contiguous().numpy()
        for name, tensor in packet.tensors.items()
    }
    metadata = {
        "heading": json.dumps(vars(packet.header)),
        "values": json.dumps(packet.values, allow_nan=False),
    }
    return safetensors.numpy.save(arrays, metadata)


def unpack(data: bytes) -> Packet:
    """Decode the bytes of ``pack``; raise ``DataError`` if they are invalid."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > min(len(data) - _LENGTH_BYTES, _MAX_HEADER_BYTES):
        raise DataError(f"not a message: its header has {length:,} bytes")
    try:
        described = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        metadata = described["__metadata__"]
        header = MessageHeader(**json.loads(metadata["heading"]))
        values = json.loads(metadata["values"])
        # Text that cannot be written to a file is refused here.
        json.dumps([vars(header), values], ensure_ascii=False).encode()
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError("not a message: its header cannot be read") from None
    if not isinstance(values, dict):
        raise DataError("not a message: its values are not a JSON object")
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise DataError(f"not a message: {error}") from None
    _require_types(tensors)
    return Packet(header, tensors, values)


def _require_types(tensors: Mapping[str, Tensor]) -> None:
    for name, one in tensors.items():
        if one.dtype not in _TYPES:
            raise DataError(f"{name} has dtype {one.dtype}, which messages cannot hold")


# Records: typed messages and their encoding.


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class Record:
    """Base class of messages; each field is encoded according to its type.

    ``Tensor`` and array fields become tensors of that name, ``dict[str, Tensor]``
    fields tensors named ``field/key``, all others JSON values, converted as in
    ``settings.convert``. Fields that are None are omitted. Subclasses are dataclasses.
    """

    phase: ClassVar[str] = ""
    """Phase of a request, as in its header; empty for answers."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)

    @property
    def full_phase(self) -> str:
        """Phase in the header, unique among the requests of a round."""
        return self.phase

    def encode(self, header: MessageHeader, seconds: float | None = None) -> Packet:
        """Encode the record; ``seconds`` is the computing time of an answer."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {} if seconds is None else {SECONDS: seconds}
        for name, hint in _hints(type(self)).items():
            value, kind = getattr(self, name), _tensor_kind(hint)
            if value is None:
                continue
            if kind is None:
                values[name] = plain(value)
            elif kind is dict:
                tensors |= {f"{name}/{key}": one for key, one in value.items()}
            elif kind is Tensor:
                tensors[name] = value
            else:
                kind = np.uint8 if kind is np.bool_ else kind
                tensors[name] = torch.from_numpy(np.array(value, kind))
        return Packet(header, tensors, values)

    @classmethod
    def decode(cls, packet: Packet) -> Self:
        """Decode the record; raise ``DataError`` if a field is missing or invalid."""
        given: dict[str, Any] = {}
        for name, hint in _hints(cls).items():
            kind = _tensor_kind(hint)
            if kind is dict:
                given[name] = tensors_under(dict(packet.tensors), f"{name}/")
                continue
            source: Mapping[str, Any] = packet.tensors if kind else packet.values
            if (found := source.get(name)) is None:
                if type(None) not in typing.get_args(hint):
                    raise DataError(f"the message lacks {name!r}")
            elif kind is None:
                found = _read_value(name, found, hint)
            elif kind is not Tensor:
                found = _read_array(name, found, kind)
            given[name] = found
        return cls(**given)


def _hints(record: type[Record]) -> dict[str, Any]:
    found = typing.get_type_hints(record)
    return {one.name: found[one.name] for one in fields(record)}


def _tensor_kind(hint: Any) -> Any:  # noqa: ANN401
    """Classify a type hint: ``Tensor``, ``dict``, a NumPy type, or None for JSON."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    for one in typing.get_args(hint) if union else (hint,):
        if one is Tensor:
            return Tensor
        if one == dict[str, Tensor]:
            return dict
        if typing.get_origin(one) is np.ndarray:
            return typing.get_args(typing.get_args(one)[1])[0]
    return None


def _read_array(name: str, found: Tensor, kind: type[np.generic]) -> NDArray[Any]:
    array: NDArray[Any] = found.numpy()
    wanted = np.uint8 if kind is np.bool_ else kind
    if array.dtype != wanted:
        raise DataError(f"{name} is {array.dtype}, expected {np.dtype(wanted).name}")
    if kind is np.bool_ and (array > 1).any():
        raise DataError(f"{name} holds values other than 0 and 1")
    return array.astype(kind, copy=False)


def _read_value(name: str, found: Any, hint: Any) -> Any:  # noqa: ANN401
    try:
        made = convert(hint, found, name)
    except SettingsError as error:
        raise DataError(f"{name} is invalid: {str(error)[:200]}") from None
    if isinstance(made, float) and not abs(made) < 1e300:
        raise DataError(f"{name}={made} is not a finite number")
    return made


class Done(Record):
    """Site to server: the request was carried out."""


class Hello(Record):
    """Server to site: invitation to a run."""

    phase = "hello"
    method: str
    settings: Plain
    rules: Plain
    seed: int
    counter: str | None = None
    """Newest ``COUNTER`` of the site; an older record is a restored backup."""


class SiteFacts(Record):
    """Site to server: number of people, regions and clock."""

    people: int
    regions: int
    regions_sha256: str
    clock: Clock

    @property
    def city(self) -> Plain:
        """Fields that must be equal at all sites of a run."""
        return {name: one for name, one in vars(self).items() if name != "people"}


class Count(Record):
    """Server to site: request counts; ``first`` is the index of its first person."""

    phase = "count"
    first: int
    people: int | None = None
    """Number of people at all sites; Falcon Field only."""


class TalliesReply(Record):
    """Site to server: tallies by name (``preparation.pack_tally``)."""

    tally: dict[str, Tensor]


class States(Record):
    """Server to site: region states, (1 + folds, regions, days, width)."""

    phase = "states"
    states: NDArray[np.float32]


class Prepare(Record):
    """Server to site: public sums and scaling, and the ``round`` to restore."""

    phase = "prepare"
    round: int
    tally: dict[str, Tensor]
    centre: NDArray[np.float32] | None = None
    factor: NDArray[np.float32] | None = None


class PresenceRequest(Record):
    """Server to site: request counts at claimed places. Answer: PresenceUpload."""

    phase = "presence"


class CountsMessage(Record):
    """Server to site: number of people of all sites at each place that it claims."""

    phase = "totals"
    counts: Floats
    shared: Mask
    """True for places that other sites claim too."""


@dataclass(frozen=True)
class EndOfRound:
    """Server to all: end of a round, with the scale of its gradient sums."""

    round: int
    scale: float


class RoundRequest(Record):
    """Server to site: a request that also ends the site's previous round."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    closing: EndOfRound | None = None
    best: int | None = None
    """Round of the best validation result so far."""


class Begin(RoundRequest):
    """Server to site: start a training pass. Answer: LocationUpload."""

    phase = "begin"


class BeginScoring(RoundRequest):
    """Server to site: start a scoring pass. Answer: LocationUpload."""

    phase = "begin scoring"


class Reply(Record):
    """Server to site: sums over all sites at the places of its last upload."""

    phase = "reply"
    channel: str
    sums: Tensor

    @property
    def full_phase(self) -> str:
        return f"{self.phase} {self.channel}"


class ValidationRequest(RoundRequest):
    """Server to site: score validation people, after a scoring pass if ``fresh``."""

    phase = "validate"
    fresh: bool = False


class ValidationScores(Record):
    """Site to server: scores and results of validation people, sorted by score."""

    scores: Floats
    infected: Mask

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or self.scores.shape != self.infected.shape:
            scores, infected = self.scores.shape, self.infected.shape
            raise DataError(f"{scores} scores for {infected} results")


class CheckpointRequest(RoundRequest):
    """Server to site: write a checkpoint of this round. Answer: Done."""

    phase = "checkpoint"


class Finish(RoundRequest):
    """Server to site: write all risks to the site's folder; send them if ``scores``."""

    phase = "finish"
    fresh: bool = False
    scores: bool = False


class ScoresReply(Record):
    """Site to server: risks of its people, if requested and allowed by its policy."""

    scores: Floats | None = None

    def require(self, people: int) -> Floats | None:
        """Return the risks; require shape (people,) and values from 0 to 1."""
        found = self.scores
        if found is None:
            return None
        if found.shape != (people,):
            raise DataError(f"scores have shape {found.shape}, expected ({people},)")
        if not ((found >= 0) & (found <= 1)).all():
            raise DataError("scores must be from 0 to 1")
        return found


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Server to all: the parameters of the round (algorithm 1, line 2)."""

    round: int
    parameters: dict[str, Tensor]


class PresenceUpload(Record):
    """Cohort to server: number of people at each claimed place, exact or noised."""

    keys: EdgeKeys
    counts: Floats

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=True)
        same_length(keys=self.keys, counts=self.counts)


class LocationUpload(Record):
    """Cohort to server: one sum per edge, or one row per person and edge."""

    round: int
    channel: str
    keys: EdgeKeys
    """Edge keys, (uploads,), ascending, so that their order reveals nothing else."""
    rows: Tensor
    """Uploaded rows, (uploads, width)."""
    person: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=self.person is None)
        if self.rows.ndim != 2 or len(self.rows) != len(self.keys):
            shape = tuple(self.rows.shape)
            what = f"{self.channel}: rows have shape {shape}"
            raise DataError(f"{what} for {len(self.keys)} keys")
        require_finite(self.channel, self.rows, self.round)


class GradientUpload(Record):
    """Cohort to server: sums of its people's gradients, by parameter name."""

    round: int
    gradients: dict[str, Tensor]
    people: int
    weight: float | None
    """Sum of the weights in the loss; None if it must not be sent."""
    loss: float | None = None
    """Sum of the losses; None if it must not be sent."""


def require_finite(what: str, values: Tensor, number: int) -> None:
    """Raise ``DataError`` if ``values`` contain NaN or infinity."""
    # A finite sum needs finite values, but the sum of large values may overflow.
    if not (values.sum().isfinite() or np.isfinite(values.numpy()).all()):
        raise DataError(
            f"{what} in round {number} holds NaN or infinity; the state stays that of "
            "the round before. Is learning_rate too large?"
        )


def _require_keys(keys: EdgeKeys, distinct: bool) -> None:
    if keys.ndim != 1 or keys.dtype != np.int64:
        raise DataError(f"keys are {keys.dtype} of {keys.ndim} axes, expected int64")
    step = np.diff(keys)
    if (step < distinct).any():
        raise DataError("keys must be ascending, and distinct for sums")
