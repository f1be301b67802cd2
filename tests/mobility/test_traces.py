import numpy as np
import pytest
from hypothesis import given, settings

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin
from tests.oracles.cities import cities

CASES = settings(max_examples=60, deadline=None, derandomize=True)
PLACES = Regions("poi", np.zeros((3, 2)))
CLOCK = Clock(12, 2)


def ids(*rows: list[int], dtype: type = np.int32) -> np.ndarray:
    return np.array(rows, dtype=dtype)


GOOD = ids([0, 1], [-1, 1], [2, 2], [0, -1])


@CASES
@given(cities())
def test_the_views_show_the_same_people(traces):
    assert traces.by_person.shape == (traces.people, traces.slots)
    assert np.shares_memory(traces.by_person, traces.by_slot)
    np.testing.assert_array_equal(np.concatenate(list(traces.days())), traces.by_slot)
    seen = 0
    for slot in range(traces.slots):
        counts = traces.occupancy(slot)
        assert counts.shape == (len(traces.regions),)
        for region in range(len(traces.regions)):
            assert counts[region] == sum(traces.by_slot[slot] == region)
        seen += counts.sum()
    assert traces.observed_share == pytest.approx(seen / traces.by_slot.size)


def test_a_record_cannot_be_changed():
    traces = Traces(GOOD.copy(), CLOCK, PLACES)
    with pytest.raises(ValueError, match="read-only"):
        traces.by_slot[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        traces.by_person[0, 0] = 1


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (GOOD.astype(np.int64), "int64"),
        (GOOD.astype(float), "float64"),
        (GOOD[0], "1 axes"),
        (GOOD[:3], "3 slots"),
        (GOOD[:, :0], "no people"),
        (ids([0, 3], [0, 0], [0, 0], [0, 0]), "to 3"),
        (ids([0, -2], [0, 0], [0, 0], [0, 0]), "from -2"),
    ],
)
def test_arrays_that_are_no_traces_are_refused(array, told):
    with pytest.raises(DataError, match=told):
        Traces(array, CLOCK, PLACES)


def test_names_must_be_as_many_as_people():
    with pytest.raises(DataError, match="1 names for 2 people"):
        Traces(GOOD.copy(), CLOCK, PLACES, ("Ada",))


def test_all_parts_survive_the_disk(tmp_path):
    regions = Regions(
        "area",
        np.array([[0.0, 1.0], [2.0, 3.0], [np.nan, np.nan]]),
        lonlat=np.array([[10.0, 50.0], [10.1, 50.1], [np.nan, np.nan]]),
        names=("Nord", "", "Süd\n"),
        outline_km=np.arange(12.0).reshape(6, 2),
        outline_ends=np.array([3, 6, 6]),
    )
    clock = Clock(12, 2, "2020-03-28", "Europe/Berlin")
    traces = Traces(GOOD.copy(), clock, regions, ("007", "7"))
    traces.save(tmp_path / "city", Origin.now({"a": 1}, 3))
    loaded = Traces.load(tmp_path / "city")
    np.testing.assert_array_equal(loaded.by_slot, GOOD)
    assert isinstance(loaded.by_slot, np.memmap)
    assert loaded.clock == clock
    assert loaded.names == ("007", "7")
    for name in ("centre_km", "lonlat", "outline_km", "outline_ends"):
        np.testing.assert_array_equal(
            getattr(loaded.regions, name), getattr(regions, name)
        )
    assert loaded.regions.names == regions.names
    assert loaded.regions.kind == "area"


@CASES
@given(cities())
def test_bare_traces_survive_the_disk(tmp_path_factory, traces):
    folder = tmp_path_factory.mktemp("record") / "city"
    traces.save(folder, Origin())
    loaded = Traces.load(folder)
    np.testing.assert_array_equal(loaded.by_slot, traces.by_slot)
    assert loaded.clock == traces.clock
    assert loaded.names is None
    assert loaded.regions.names is None
    assert loaded.regions.lonlat is None


def test_a_damaged_city_is_told(tmp_path):
    Traces(GOOD.copy(), CLOCK, PLACES).save(tmp_path / "city", Origin())
    path = tmp_path / "city" / "by_slot.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="by_slot"):
        Traces.load(tmp_path / "city")
    with pytest.raises(DataError, match="no such folder"):
        Traces.load(tmp_path / "village")
