import shutil
from functools import cache

import pytest

from epifalcon.experiments.run_folder import FinishedRun
from tests.cli import processes  # noqa: F401
from tests.cli.runs import own_budget
from tests.experiments.finished_runs import make_run

LOCAL = ("privacy.mode=local", "model.rounds=4")
RUNS = {
    "off": ('beside=["hgnn", "soft-dct-ratio"]',),
    "paper": ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=6"),
    "local": (*LOCAL, "privacy.scorings=8"),
    "tight": (*LOCAL, "stopping.check_every=1"),
}


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory):
    """The folder of a small finished run by its name, made once."""
    base = tmp_path_factory.mktemp("runs")
    return cache(lambda name: make_run(base / name, *RUNS[name]).folder)


@pytest.fixture
def opened(finished_folder):
    """A finished run, to be read."""
    return lambda name, method=None: FinishedRun.open(finished_folder(name), method)


@pytest.fixture
def copied(finished_folder, tmp_path):
    """A copy of a finished run, to be written to."""

    def copy(name):
        shutil.copytree(finished_folder(name), tmp_path / name)
        own_budget(tmp_path / name)
        return FinishedRun.open(tmp_path / name)

    return copy
