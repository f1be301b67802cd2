from collections import Counter

import numpy as np
import pytest

from epifalcon.errors import DataError
from epifalcon.mobility.ingest import ImportSettings, ReadSettings, import_visits
from epifalcon.mobility.ingest import visits as matrix_module


def imported(tmp_path, array, **chosen):
    path = tmp_path / "matrix.npy"
    np.save(path, array)
    return import_visits(path, ImportSettings(kind="matrix", **chosen))


def plain(array, width):
    """The most frequent known id of each slot, of equals the first seen."""
    rows = []
    for person in array.tolist():
        slots = [person[k : k + width] for k in range(0, len(person), width)]
        known = [[int(x) for x in slot if x == x and x >= 0] for slot in slots]
        rows.append(
            [Counter(slot).most_common(1)[0][0] if slot else -1 for slot in known]
        )
    return np.array(rows)


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.float32, np.float64, np.uint8])
@pytest.mark.parametrize(("column", "slot"), [(0.5, 2), (0.5, 0.5), (0.25, 4), (2, 24)])
def test_against_counting(tmp_path, monkeypatch, kind, column, slot):
    monkeypatch.setattr(matrix_module, "_CHUNK_CELLS", 300)
    rng = np.random.default_rng(0)
    array = rng.choice([3, 5, 8, 100], (11, 2 * int(24 / column))).astype(kind)
    if np.issubdtype(kind, np.signedinteger):
        array[rng.random(array.shape) < 0.3] = -7
    elif np.issubdtype(kind, np.floating):
        array[rng.random(array.shape) < 0.3] = np.nan
        array[rng.random(array.shape) < 0.1] = -1
    traces = imported(
        tmp_path, np.asfortranarray(array), matrix_slot_hours=column, slot_hours=slot
    ).traces
    expected = plain(array, int(slot / column))
    ids = np.append(np.array([int(name) for name in traces.regions.names]), -1)
    np.testing.assert_array_equal(ids[traces.by_person], expected)
    assert traces.names == tuple(str(k) for k in range(11))
    assert traces.clock.start is None


def test_bad_rows_are_refused_and_the_others_keep_their_numbers(tmp_path):
    array = np.zeros((4, 48))
    array[1, 7] = 2.5
    array[2, 3] = np.inf
    array[3] = 9
    found = imported(tmp_path, array, start="2020-03-01")
    assert found.traces.names == ("0", "3")
    assert found.rows.refused == {"not a region id": 2}
    assert [(row.row, row.value) for row in found.rows.examples] == [
        (2, "2.5"),
        (3, "inf"),
    ]
    with pytest.raises(DataError, match=r"row 2.*2\.5"):
        imported(tmp_path, array, read=ReadSettings(strict=True))


@pytest.mark.parametrize(("kind", "bits"), [("<f4", 0x7FA00000), ("<f8", 0x7FF4 << 48)])
def test_a_signalling_nan_is_a_nan(tmp_path, kind, bits):
    array = np.zeros((1, 48), dtype=kind)
    array.view(kind.replace("f", "u"))[0, :8] = bits
    assert imported(tmp_path, array).traces.by_person[0].tolist() == [-1, -1, *[0] * 10]


def test_fewer_days_gaps_and_places(tmp_path):
    array = np.full((1, 96), -1)
    array[0, [0, 8, 60]] = [4, 2, 7]
    places = tmp_path / "places.csv"
    places.write_text("place,lat,lon\n2,1,1\n4,2,2\n")
    found = imported(
        tmp_path, array, days=1, fill_gap_hours=2, places=str(places)
    ).traces
    assert found.by_person[0].tolist() == [1, 1, 0, *[-1] * 9]
    assert found.regions.lonlat.tolist() == [[1, 1], [2, 2]]
    with pytest.raises(DataError, match="region 7"):
        imported(tmp_path, array, places=str(places))


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros(48), "shape"),
        (np.zeros((2, 47)), "not whole days"),
        (np.zeros((0, 48)), "is empty"),
        (np.full((2, 48), -1), "nobody is observed"),
        (np.full((2, 48), "a"), "expected whole numbers"),
        (np.zeros((2, 48), dtype=complex), "expected whole numbers"),
    ],
)
def test_arrays_that_are_no_traces(tmp_path, array, match):
    with pytest.raises(DataError, match=match):
        imported(tmp_path, array)
    with pytest.raises(DataError, match="fewer than days=3"):
        imported(tmp_path, np.zeros((2, 48)), days=3)


def test_pickles_archives_and_lies_are_refused(tmp_path):
    path = tmp_path / "matrix.npy"
    settings = ImportSettings(kind="matrix")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a readable"):
        import_visits(path, settings)
    with path.open("wb") as file:
        np.savez(file, a=np.zeros((2, 48)))
    with pytest.raises(DataError, match="archive"):
        import_visits(path, settings)
    np.save(path, np.zeros((2, 48), dtype=np.int8))
    path.write_bytes(path.read_bytes().replace(b"(2, 48)", b"(9999999999, 48)"))
    with pytest.raises(DataError, match="not a readable"):
        import_visits(path, settings)
