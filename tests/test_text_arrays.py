from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.store import Origin, pack_strings, unpack_strings


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.text(st.characters(), max_size=5), max_size=6))
def test_strings_of_any_kind_come_back(values):
    assert unpack_strings("name", pack_strings("name", values)) == tuple(values)


def test_odd_strings_come_back_from_disk(tmp_path):
    for number, values in enumerate([["", ""], ["a\0", "ü\n", "\ud800"], []]):
        folder = tmp_path / str(number)
        arrays = pack_strings("name", values)
        store.write(folder, "names", arrays, meta={}, origin=Origin())
        back = store.read(folder, "names").arrays
        assert unpack_strings("name", back) == tuple(values)
