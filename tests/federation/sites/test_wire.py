"""Messages as bytes."""

import contextlib
import json

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.federation.sites.wire import Heading, Parcel, pack, unpack

HEADING = Heading("run", "clinic", 3, "begin")


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 20), max_size=4),
    st.dictionaries(
        st.text(),
        st.none()
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        max_size=4,
    ),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_what_is_packed_is_unpacked(sizes, told):
    tensors = {name: torch.arange(size).double() for name, size in sizes.items()}
    tensors.pop("__metadata__", None)
    found = unpack(pack(Parcel(HEADING, tensors, told)))
    assert found.heading == HEADING
    assert found.told == told
    assert set(found.tensors) == set(tensors)
    assert all(torch.equal(found.tensors[name], one) for name, one in tensors.items())


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=200)
def test_damaged_bytes_are_a_clear_error_or_another_message(data):
    whole = pack(Parcel(HEADING, {"rows": torch.ones(3, 2)}, {"a": 1}))
    place = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = (whole[:place] + bytes([value]) + whole[place + 1 :])[:cut]
    with contextlib.suppress(DataError):
        unpack(damaged)


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64, torch.float16])
def test_types_that_no_message_holds_are_refused(kind):
    tensors = {"rows": torch.zeros(2, dtype=kind)}
    with pytest.raises(DataError, match="which no message holds"):
        pack(Parcel(HEADING, tensors))
    told = {"heading": json.dumps(vars(HEADING)), "told": "{}"}
    with pytest.raises(DataError, match="which no message holds"):
        unpack(safetensors.torch.save(tensors, told))


KINDS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3)),
    ),
    st.text(max_size=9),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_safetensors_reads_what_it_would_have_written_itself(wanted, word):
    tensors = {
        name: torch.randint(0, 200, shape).to(kind)
        for name, (kind, shape) in wanted.items()
    }
    parcel = Parcel(HEADING, tensors, {"word": word})
    made = pack(parcel)
    found = safetensors.torch.load(made)
    theirs = safetensors.torch.load(safetensors.torch.save(tensors))
    assert set(found) == set(theirs)
    for name, one in theirs.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
        assert torch.equal(found[name], one)
    begin = 8 + int.from_bytes(made[:8], "little")
    header = json.loads(made[8:begin])
    for name, one in tensors.items():
        # Where a number of its kind may stand.
        assert (begin + header[name]["data_offsets"][0]) % one.itemsize == 0


def test_rows_that_lie_apart_in_memory_are_packed_in_their_order():
    whole = torch.arange(24.0).reshape(4, 6)
    parcel = Parcel(HEADING, {"columns": whole.T, "some": whole[::2, 1:3]})
    found = unpack(pack(parcel)).tensors
    assert torch.equal(found["columns"], whole.T)
    assert torch.equal(found["some"], whole[::2, 1:3])


def test_a_heading_as_long_as_memory_is_not_believed():
    with pytest.raises(DataError, match="longer than it may be"):
        unpack((2**60).to_bytes(8, "little") + b"{}")


def test_no_number_that_json_lacks_leaves():
    with pytest.raises(ValueError, match="JSON"):
        pack(Parcel(HEADING, {}, {"loss": float("nan")}))


def test_plain_values_without_names_are_refused():
    good = pack(Parcel(HEADING, {}, {}))
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    header["__metadata__"]["told"] = "[1]"
    text = json.dumps(header).encode()
    with pytest.raises(DataError, match="no names"):
        unpack(len(text).to_bytes(8, "little") + text)
