"""A job's process ends with the one that started it, however that one ends."""

import subprocess
import sys

import psutil
import pytest

from epifalcon.federation.nvflare import job_process
from tests.federation.nvflare.live import until

CHILD = (
    "import os, time;"
    "from epifalcon.federation.nvflare.job_process import end_with_parent;"
    "end_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True);"
    "time.sleep(600)"
)


def test_it_ends_after_its_parent_was_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    )
    with parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
        until(lambda: not psutil.pid_exists(child), "the child to end")


def test_it_runs_nothing_but_the_programs_of_jobs(monkeypatch):
    for given in (["program"], ["program", "os"]):
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit, match="no program of a job"):
            job_process.main()
