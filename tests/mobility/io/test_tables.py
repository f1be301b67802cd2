import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.mobility.io import tables
from epifalcon.mobility.io.tables import CsvTable

FIELDS = st.text(alphabet='ab,;"\n é\t張', max_size=6)


def read(path, columns, delimiter="auto"):
    """Fields, line numbers and numbers of fields of all rows."""
    wanted = {name: name for name in columns}
    frames = [batch.frame for batch in CsvTable(path, delimiter).batches(wanted)]
    frame = pl.concat(frames)
    rows = frame.select(columns).rows()
    return rows, frame["row"].to_list(), frame["fields"].to_list()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS, FIELDS), min_size=1, max_size=12),
    delimiter=st.sampled_from([",", ";", "\t"]),
    block=st.sampled_from([1, 7, 40, 1 << 20]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_reads_what_csv_writes(tmp_path_factory, rows, delimiter, block, end):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["one", "two", "three"])
    writer.writerows(rows)
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes(out.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BLOCK_BYTES", block)
        found, _, counts = read(path, ["three", "one"])
    assert counts == [3] * len(rows)
    assert [(a or "", b or "") for a, b in found] == [(row[2], row[0]) for row in rows]


def write(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_row_numbers_are_the_lines_of_the_file(tmp_path):
    path = write(tmp_path, 'a,b\n1,x\n\n2,"y\nz"\n3,w\n\n\n4\n5,v,\n6,u,t\n')
    rows, lines, counts = read(path, ["a"])
    assert lines == [2, 4, 6, 9, 10, 11]
    assert counts == [2, 2, 2, 1, 2, 3]
    assert [row[0] for row in rows] == ["1", "2", "3", None, "5", None]


def test_short_rows_under_a_header_of_many_names_fill_no_memory(tmp_path):
    rows = 20_000
    path = write(tmp_path, "a,b" + ",c" * 10_000 + "\n" + "1,x\n" * rows)
    script = (
        "import pathlib, resource, sys\n"
        "from epifalcon.mobility.io.tables import CsvTable\n"
        "for batch in CsvTable(pathlib.Path(sys.argv[1])).batches({'a': 'a'}):\n"
        "    print(len(batch.frame))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    read_rows, megabytes = map(int, done.stdout.split())
    assert read_rows == rows
    assert megabytes < 1000


@pytest.mark.parametrize("block", [1, 16, 1 << 20])
def test_a_stray_quote_costs_only_its_own_row(tmp_path, monkeypatch, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    good = [f"{k},row{k}" for k in range(200)]
    lines = [*good[:60], '60,"open', *good[60:130], '7",odd', 'x,"o"pen', *good[130:]]
    path = write(tmp_path, "a,b\n" + "\n".join(lines))
    rows, _, counts = read(path, ["a", "b"])
    assert [
        ",".join(row) for row, count in zip(rows, counts, strict=True) if count == 2
    ][:60] == good[:60]
    assert counts.count(2) == 201
    assert counts.count(tables.OPEN_QUOTE) == 2
    assert ('7"', "odd") in rows


def test_byte_order_mark_and_no_last_line_end(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4")
    assert CsvTable(path).names == ("a", "b")
    assert read(path, ["a", "b"])[0] == [("1", "2"), ("3", "4")]


def test_a_wrong_byte_is_marked(tmp_path):
    rows, _, _ = read(write(tmp_path, b"a,b\nM\xfcller,1\nok,2\n"), ["a"])
    assert rows == [("M\ufffdller",), ("ok",)]


@pytest.mark.parametrize(
    ("content", "result"),
    [
        (b"\xff\xfea\0,\0b\0\n\0", "UTF-8"),
        (b"\n1,2\n", "row 1"),
        (b",,,\n1,2,3,4\n", "row 1"),
        (b"\xc3(,b\n1,2\n", "row 1"),
        (b'"a,b\n1,2\n', "row 1"),
    ],
)
def test_a_header_that_is_none(tmp_path, content, result):
    with pytest.raises(DataError, match=result):
        CsvTable(write(tmp_path, content))


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 10)
    monkeypatch.setattr(tables, "LONGEST_LINE", 100)
    path = write(tmp_path, "a,b\n" + "1" * 500 + ",2\n")
    with pytest.raises(DataError, match="longer than"):
        read(Path(path), ["a"])


def test_nothing_is_read_or_removed_in_a_folder_that_others_can_create(tmp_path):
    user = f"epifalcon-test-{os.getpid()}"
    planted, precious = Path(f"/var/tmp/polars-{user}"), tmp_path / "424242"
    precious.mkdir()
    planted.mkdir()
    try:
        (planted / "spill").symlink_to(tmp_path)
        script = "import epifalcon as ef, polars as pl; pl.DataFrame({'a': [1]})"
        script += ".lazy().collect(engine='streaming'); import time; time.sleep(1)"
        env = {**os.environ, "USER": user, "HOME": str(tmp_path / "home")}
        env.pop("POLARS_OOC_SPILL_DIR", None)
        subprocess.run([sys.executable, "-c", script], check=True, env=env)
    finally:
        shutil.rmtree(planted)
    assert precious.exists()


def test_a_small_parquet_file_of_equal_rows_fills_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_PLAUSIBLE_ROWS", 1000)
    path = tmp_path / "equal.parquet"
    pl.select(person=pl.repeat("p", 50_000)).write_parquet(path)
    with pytest.raises(DataError, match="50000 rows, more than its size"):
        tables.count_rows(path)
