"""The watch over connections can fail: one that leads outside is refused and noted."""

import os
import subprocess
import sys

import pytest

from tests.federation.nvflare.live import LOOPBACK, leaks

PROGRAM = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 0.2)
except OSError as error:
    print(error)
"""


def connect(tmp_path, host):
    notes = tmp_path / "connections.txt"
    told = {"PYTHONPATH": str(LOOPBACK), "EPIFALCON_CONNECTIONS": str(notes)}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, host],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout, notes.read_text() if notes.exists() else ""


def test_a_connection_outside_is_refused_and_written_down(tmp_path):
    said, noted = connect(tmp_path, "192.0.2.1")
    assert "no connection to ('192.0.2.1', 9) in a test" in said
    assert "192.0.2.1" in noted


def test_a_connection_on_this_machine_is_not(tmp_path):
    said, noted = connect(tmp_path, "127.0.0.1")
    assert "in a test" not in said
    assert noted == ""


@pytest.mark.parametrize(
    "line",
    [
        "person 7: infected=True",
        "status=[1 0 -1]",
        "rows tensor([[0.1, 0.2]])",
        "by_slot array([3, 4])",
        "2026 INFO region-0012 has 3 cases",
        "refused: person 12 was there",
        "probability 0.8134 of person 3",
    ],
)
def test_a_log_line_that_tells_of_people_is_found(line):
    calm = "2026-11-16 INFO the job was stopped\n2026-11-16 INFO round 3 of 4\n"
    assert leaks(calm, ["region-0012"]) == []
    assert leaks(f"{calm}{line}\n", ["region-0012"]) == [line]
