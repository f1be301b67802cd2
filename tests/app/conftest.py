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


TINY = ("--set", "city.people=120", "--set", "city.regions=30", "--set", "city.days=4")


@pytest.fixture
def tiny():
    """Words that make any preset a town of 120 people for four days."""
    return (*TINY, "--set", "outbreak.seed_count=6")
