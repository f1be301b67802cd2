import polars as pl
import pytest

from epifalcon.errors import DataError
from epifalcon.mobility.ingest import ImportSettings, import_visits
from tests.mobility.ingest import fuzzing


@pytest.mark.parametrize("part", range(8))
def test_a_broken_file_never_ends_in_another_exception(part, tmp_path):
    read = sum(
        fuzzing.try_one(seed, tmp_path) for seed in range(part * 120, part * 120 + 120)
    )
    # Some must get through, or the files are too broken to test anything.
    assert read >= 8


def test_damaged_pages_are_told_in_one_line(tmp_path, capfd):
    """One wrong bit makes polars fail, panic, lose rows or end the process."""
    path = tmp_path / "visits.parquet"
    count = 3000
    frame = pl.DataFrame({"person": ["a"] * count, "time": [1583020800] * count})
    frame = frame.with_columns(place=pl.Series([str(k % 7) for k in range(count)]))
    frame.write_parquet(path, row_group_size=1000)
    whole = path.read_bytes()
    found = []
    # Bytes of the headers of pages, which are known to do each of these things.
    for at in (38, 39, 40, 42, 72, 157, 160, len(whole) - 600):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            rows = import_visits(path, ImportSettings(kind="checkins")).rows
        except DataError as error:
            found.append(str(error))
        else:
            assert rows.read == count
    assert len(found) >= 4
    assert not any("\n" in told for told in found)
    assert capfd.readouterr().err == ""
