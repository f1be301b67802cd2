"""Messages as bytes."""

import contextlib
import json

import pytest
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
    with pytest.raises(DataError, match="which no message holds"):
        unpack(pack(Parcel(HEADING, {"rows": torch.zeros(2, dtype=kind)})))


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
