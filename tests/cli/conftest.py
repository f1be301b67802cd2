import shutil
import sys
from dataclasses import dataclass

import pytest

from epifalcon.cli.main import main
from tests.cli import processes  # noqa: F401
from tests.cli.runs import own_budget, strict, undrawn, with_set


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The figures of a command that succeeded."""
        assert self.code == 0, self.err
        return strict(self.out)

    def require_error(self, code, message, alone=False):
        """Check exit code and message; ``alone`` if it must be the only output."""
        assert (self.code, message in self.err) == (code, True), self.err
        if alone:
            assert (self.out, self.err.count("\n")) == ("", 1)
            assert self.err.startswith("epifalcon: ")


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
    return (*tiny, *with_set(QUICK))


@pytest.fixture
def no_pictures(monkeypatch, cities_drawn):
    """Drawing takes most of the time of a small run, and has tests of its own.

    Figures are made but not drawn; the largest, that of mobility, once for a city.
    """
    from matplotlib.figure import Figure

    from epifalcon.experiments import run_plots
    from epifalcon.reports import plot_style

    make = run_plots.mobility_plot

    def once(statistics, title):
        name = str(statistics.statistics)
        if name in cities_drawn:
            return Figure()
        cities_drawn.add(name)
        return make(statistics, title)

    monkeypatch.setattr(run_plots, "mobility_plot", once)
    monkeypatch.setattr(plot_style, "save", undrawn)


@pytest.fixture(scope="session")
def cities_drawn():
    """The statistics of cities whose figure was already made."""
    return set()


@pytest.fixture
def run_town(epifalcon, quick, tmp_path):
    """Run on the town into ``tmp_path / "run"``."""

    def call(*words, out="run"):
        chosen = quick if "--resume" not in words and "--city" not in words else ()
        said = epifalcon(
            "run", *chosen, "--out", tmp_path / out, "--checkpoint-seconds", 0, *words
        )
        assert "Traceback" not in said.err
        return said

    return call


@pytest.fixture(scope="session")
def cut_runs(tmp_path_factory):
    """Where runs that were cut are kept by their words, to be copied."""
    return tmp_path_factory.mktemp("cut"), {}


@pytest.fixture
def cut(run_town, cut_runs, tmp_path, monkeypatch):
    """A run that was interrupted after its third round; words are handed on."""
    base, made = cut_runs

    def interrupt(*words):
        from epifalcon.federation.engine import VectorisedEngine

        step = VectorisedEngine.step

        def tired(self):
            if self.round == 3:
                raise KeyboardInterrupt
            return step(self)

        monkeypatch.setattr(VectorisedEngine, "step", tired)
        said = run_town(*words)
        monkeypatch.setattr(VectorisedEngine, "step", step)
        assert said.code == 130
        assert "resume with: epifalcon run --resume --out " in said.err
        return said

    def call(*words):
        if words in made:
            shutil.copytree(made[words], tmp_path / "run")
            own_budget(tmp_path / "run")
        else:
            interrupt(*words)
            made[words] = base / str(len(made))
            shutil.copytree(tmp_path / "run", made[words])

    return call
