import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import CorruptFileError
from epifalcon.mobility import sparse

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def random_table(seed: int, rows: int = 8, columns: int = 5):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 20))
    return sparse.table(
        rng.integers(rows, size=size),
        rng.integers(columns, size=size),
        rng.integers(1, 9, size=size),
        (rows, columns),
    )


def test_doubles_are_added_and_columns_sorted():
    made = sparse.table(
        np.array([0, 0, 0]), np.array([2, 0, 2]), np.array([1, 5, 3]), (2, 3)
    )
    assert made.toarray().tolist() == [[5, 0, 4], [0, 0, 0]]
    assert made.indices.tolist() == [0, 2]


@CASES
@given(st.integers(0, 1000))
def test_lookup_equals_the_dense_table(seed):
    made = random_table(seed)
    row, column = np.meshgrid(np.arange(8), np.arange(5), indexing="ij")
    got = sparse.lookup(made, row.ravel(), column.ravel())
    np.testing.assert_array_equal(got.reshape(8, 5), made.toarray())


@CASES
@given(st.integers(0, 1000))
def test_rows_of_a_stack_are_its_parts(seed):
    made = random_table(seed)
    for part in range(4):
        got = sparse.rows_of(made, part, 2)
        np.testing.assert_array_equal(
            got.toarray(), made.toarray()[part * 2 : part * 2 + 2]
        )


@CASES
@given(st.lists(st.integers(0, 1000), max_size=12))
def test_a_running_sum_is_the_sum(seeds):
    total = sparse.RunningSum((8, 5), np.int64)
    expected = np.zeros((8, 5), dtype=np.int64)
    for seed in seeds:
        total.add(random_table(seed))
        expected += random_table(seed).toarray()
    made = total.total()
    np.testing.assert_array_equal(made.toarray(), expected)
    assert made.has_canonical_format


@CASES
@given(st.integers(0, 1000))
def test_unpack_undoes_pack(seed):
    made = random_table(seed)
    again = sparse.unpack("flow", sparse.pack("flow", made), made.shape)
    np.testing.assert_array_equal(again.toarray(), made.toarray())


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_a_table_that_is_not_sound_is_refused(part):
    made = sparse.table(np.array([0, 1]), np.array([1, 2]), np.array([1, 2]), (2, 3))
    arrays = sparse.pack("flow", made)
    arrays[f"flow_{part}"] = arrays[f"flow_{part}"] + 7
    if part == "data":
        arrays["flow_data"] = arrays["flow_data"][:1]
    with pytest.raises(CorruptFileError, match="flow"):
        sparse.unpack("flow", arrays, (2, 3))
