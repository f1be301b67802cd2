"""Messages: every record survives its encoding, and damaged bytes are refused."""

import contextlib
import json
import math
from dataclasses import fields

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.federation import messages
from epifalcon.federation.field import site_runs as field_messages
from epifalcon.federation.field.site_people import FieldRun, HeldOutFold
from epifalcon.federation.messages import MessageHeader, Packet, pack, unpack
from epifalcon.federation.network.site_calls import SharedData
from epifalcon.federation.preparation import StateMoments
from epifalcon.mobility.clock import Clock
from epifalcon.settings import plain

HEADER = MessageHeader("run", "clinic", 3, "begin")
KEYS, ROWS = np.array([1, 4]), torch.tensor([[0.5, 1.0], [2.0, -1.0]])
NAMED = {"a.b": ROWS, "c/d": torch.arange(3)}
NUMBERS = np.array([0.5, 0.25])
SAMPLES = {int: 2, float: 0.5, bool: True, FieldRun: FieldRun((1,), start="base")}


def sample(kind):
    """A record with some value in each field."""
    hints = messages._hints(kind)
    return kind(**{n: SAMPLES.get(one, np.ones((2, 2))) for n, one in hints.items()})


RECORDS = [
    messages.Done(),
    messages.Hello("falcon", {"a": {"b": 1}}, {"uploads": "sums"}, 3),
    messages.SiteFacts(5, 7, "0" * 64, Clock(slot_hours=4, days=2)),
    messages.Count(3),
    messages.Count(3, 12),
    messages.TalliesReply(NAMED),
    messages.States(np.ones((2, 3, 1, 2), np.float32)),
    StateMoments(5, NUMBERS, NUMBERS),
    messages.Prepare(2, NAMED, np.ones(2, np.float32), None),
    messages.PresenceRequest(),
    messages.CountsMessage(NUMBERS, np.array([True, False])),
    messages.Begin(NAMED, messages.EndOfRound(2, 0.125), 1),
    messages.BeginScoring(NAMED),
    messages.Reply("upload/0", ROWS),
    messages.ValidationRequest(NAMED, fresh=True),
    messages.ValidationScores(NUMBERS, np.array([False, True])),
    messages.CheckpointRequest(closing=messages.EndOfRound(3, 1.0)),
    messages.Finish(NAMED, scores=True),
    messages.ScoresReply(NUMBERS),
    messages.ScoresReply(),
    messages.PresenceUpload(KEYS, NUMBERS),
    messages.LocationUpload(3, "upload/0", KEYS, ROWS),
    messages.LocationUpload(3, "upload/0", KEYS, ROWS, np.array([7, 9])),
    messages.GradientUpload(3, NAMED, 5, None),
    messages.GradientUpload(3, NAMED, 5, 2.5, 0.75),
    SharedData({"a": 0}, NAMED, np.ones((2, 3, 1, 2), np.float32), forecast={"b": 1}),
    *map(sample, (field_messages.Sweep, field_messages.EndOfRun)),
    *map(sample, (field_messages.SiteCounts, field_messages.FieldSums)),
    sample(field_messages.LossesReply),
    field_messages.LossesRequest((HeldOutFold(1, (0, 1)),), ("fixed", "global")),
]


def all_kinds(kind):
    found = set(kind.__subclasses__())
    return found.union(*(all_kinds(one) for one in found)) if found else found


def equal(one, other):
    if isinstance(one, dict) and any(isinstance(v, torch.Tensor) for v in one.values()):
        same = (torch.equal(value, other[key]) for key, value in one.items())
        return one.keys() == other.keys() and all(same)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and plain(one) == plain(other)


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: type(one).__name__)
def test_a_record_survives_its_encoding_and_lacks_no_field(record):
    packet = unpack(pack(record.encode(HEADER, 0.5)))
    assert packet.values[messages.SECONDS] == 0.5
    found = type(record).decode(packet)
    for one in fields(record):
        assert equal(getattr(record, one.name), getattr(found, one.name)), one.name
    for name in packet.tensors:
        if "/" not in name:
            wrong = {**packet.tensors, name: packet.tensors[name].to(torch.int32)}
            if isinstance(getattr(record, name), np.ndarray):
                with pytest.raises(DataError, match=f"{name} is int32"):
                    type(record).decode(Packet(HEADER, wrong, packet.values))
    for name in packet.values.keys() - {messages.SECONDS}:
        for odd in ({"x": 1}, [[]], "x", math.inf, True):
            if type(odd) is not type(packet.values[name]):
                wrong = {**packet.values, name: odd}
                with pytest.raises(DataError, match=f"{name} is "):
                    type(record).decode(Packet(HEADER, packet.tensors, wrong))


def test_every_record_is_tested_and_none_is_read_from_nothing():
    abstract = {messages.RoundRequest, field_messages._Exchange}
    assert {type(one) for one in RECORDS} == all_kinds(messages.Record) - abstract
    for kind in (messages.Hello, messages.LocationUpload, field_messages.Sweep):
        with pytest.raises(DataError, match="the message lacks"):
            kind.decode(Packet(HEADER))


NUMBER = st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.none() | st.booleans() | NUMBER | st.text()


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 20), max_size=4),
    st.dictionaries(st.text(), VALUE, max_size=4),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_what_is_packed_is_unpacked(sizes, values):
    tensors = {name: torch.arange(size) for name, size in sizes.items()}
    tensors.pop("__metadata__", None)
    found = unpack(pack(Packet(HEADER, tensors, values)))
    assert found.header == HEADER
    assert found.values == values
    assert set(found.tensors) == set(tensors)
    assert all(torch.equal(found.tensors[name], one) for name, one in tensors.items())


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=200)
def test_damaged_bytes_are_a_clear_error_or_another_message(data):
    whole = pack(Packet(HEADER, {"rows": torch.ones(3, 2)}, {"a": 1}))
    place = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = (whole[:place] + bytes([value]) + whole[place + 1 :])[:cut]
    with contextlib.suppress(DataError):
        unpack(damaged)


def test_text_that_no_file_can_hold_is_no_message():
    header = messages.MessageHeader("run", "clinic", 0, "hello")
    data = messages.pack(messages.Packet(header, {}, {messages.ERROR: "\ud800"}))
    with pytest.raises(DataError, match="cannot be read"):
        messages.unpack(data)


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64, torch.float16])
def test_types_that_no_message_holds_are_refused(kind):
    tensors = {"rows": torch.zeros(2, dtype=kind)}
    with pytest.raises(DataError, match="which messages cannot hold"):
        pack(Packet(HEADER, tensors))
    metadata = {"heading": json.dumps(vars(HEADER)), "values": "{}"}
    with pytest.raises(DataError, match="which messages cannot hold"):
        unpack(safetensors.torch.save(tensors, metadata))


def test_tensors_of_any_layout_are_packed():
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = {"columns": whole.T, "some": whole[::2, 1:3], "none": torch.zeros(0, 4)}
    found = unpack(pack(Packet(HEADER, tensors))).tensors
    assert all(torch.equal(found[name], one) for name, one in tensors.items())


def test_what_a_heading_must_not_be():
    with pytest.raises(DataError, match="its header has"):
        unpack((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="JSON"):
        pack(Packet(HEADER, {}, {"loss": float("nan")}))
    good = pack(Packet(HEADER, {}, {}))
    header = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
    header["__metadata__"]["values"] = "[1]"
    text = json.dumps(header).encode()
    with pytest.raises(DataError, match="not a JSON object"):
        unpack(len(text).to_bytes(8, "little") + text)
