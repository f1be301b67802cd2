"""An aggregator that is killed at any point releases one sum with one noise."""

import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_an_aggregator_that_is_killed_at_any_point_answers_once(tmp_path):
    command = [sys.executable, "-m", "tests.federation.sealed.kill_points", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, whole = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(killed) > 30
    assert {one["code"] for one in killed} == {-signal.SIGKILL}
    assert whole["code"] == 0
    for point, one in enumerate([*killed, whole]):
        first, second = one["answers"]
        assert first == second, point
        # What was released or stored before is what a new process answers.
        assert one["released"] in (None, first), point
        assert one["stored"] in (False, first), point
        assert one["other"] == "ReplayError", point
        assert one["charged"] == 1, point
    # Points before, between and after storing and releasing are covered.
    assert sum(one["stored"] is False for one in killed) > 10
    assert sum(one["stored"] and not one["released"] for one in killed) > 2
    assert sum(one["released"] is not None for one in killed) > 2
