import pytest

from tests.mobility.ingest import fuzzing


@pytest.mark.parametrize("part", range(8))
def test_a_broken_file_never_ends_in_another_exception(part, tmp_path):
    read = sum(
        fuzzing.try_one(seed, tmp_path) for seed in range(part * 120, part * 120 + 120)
    )
    # Some must get through, or the files are too broken to test anything.
    assert read >= 8


def test_a_panic_of_the_reader_is_told_in_one_line(tmp_path, capfd):
    """Flipped bits make polars panic; its own report must not reach the screen."""
    for seed in range(40):
        fuzzing.try_one_parquet(seed, tmp_path)
    seen = capfd.readouterr()
    assert "panicked" not in seen.err
    assert "backtrace" not in seen.err
