import json
import sys
from dataclasses import dataclass

import pytest

from epifalcon.app.main import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def epifalcon(monkeypatch, capsys):
    """Run the command line in this process; hand back what a user would see."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["epifalcon", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        seen = capsys.readouterr()
        return Said(code, seen.out, seen.err)

    return run


TINY = ("--set", "city.people=120", "--set", "city.regions=30", "--set", "city.days=5")
QUICK = (
    "model.rounds=6",
    "model.width=4",
    "stopping.check_every=2",
    "region.training.steps=2",
    "region.network.hidden_width=4",
    "pseudo.domains.count=2",
    "pseudo.domains.least_regions=5",
)


@pytest.fixture
def tiny():
    """Words that make any preset a town of 120 people for five days."""
    return (*TINY, "--set", "outbreak.seed_count=12")


@pytest.fixture
def quick(tiny):
    """Words that make a run on such a town take no time."""
    return (*tiny, *(word for one in QUICK for word in ("--set", one)))


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes most of the time of a small run, and has tests of its own."""
    monkeypatch.setattr(
        "epifalcon.studies.figures.save",
        lambda _figure, path: path.write_bytes(b"\x89PNG"),
    )
