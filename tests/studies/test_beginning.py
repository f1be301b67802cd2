"""Runs that share a simulation are those that would be made alone."""

import json
from dataclasses import replace

import pytest

from epifalcon.errors import DataError
from epifalcon.studies import beginning
from epifalcon.studies.beginning import Simulations, begin_folder, begin_run, is_begun
from tests.studies.measured_figures import plan


def plans(folder):
    """Four comparisons: two of one city and outbreak, then others of each."""
    one = plan(folder / "one", ["dct"], [0, 1])
    settings = one.experiment
    changed = {
        "two": {"reporting": replace(settings.reporting, trace_share=0.5)},
        "labels": {"labels": replace(settings.labels, label_share=0.3)},
        "city": {"city": replace(settings.city, people=90)},
    }
    return [one] + [
        replace(one, folder=folder / name, experiment=replace(settings, **values))
        for name, values in changed.items()
    ]


@pytest.fixture
def made(monkeypatch):
    """Every city and outbreak that is made, by name and seed."""
    calls = []
    cities, outbreaks = beginning.prepare, beginning.run_epidemics

    def prepare(name, experiment, seed):
        calls.append(("city", seed))
        return cities(name, experiment, seed)

    def run_epidemics(experiment, traces, seed):
        calls.append(("outbreak", seed))
        return outbreaks(experiment, traces, seed)

    monkeypatch.setattr(beginning, "prepare", prepare)
    monkeypatch.setattr(beginning, "run_epidemics", run_epidemics)
    return calls


def contents(folder):
    """Every file of a run, manifests without the seconds that things took."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "manifest.json":
            told = json.loads(path.read_text())
            del told["manifest_sha256"]
            if path.parent == folder:
                for key in ("city_seconds", "outbreak_seconds"):
                    del told["meta"][key]
                # The hashes of the manifests within, which are compared themselves.
                names = [one for one in told["files"] if one.endswith("manifest.json")]
                for name in names:
                    del told["files"][name]
            found[path.relative_to(folder)] = told
        elif path.is_file():
            found[path.relative_to(folder)] = path.read_bytes()
    return found


def test_what_is_shared_is_equal_to_the_last_bit(tmp_path, made):
    simulated = Simulations()
    together = plans(tmp_path / "together")
    for seed in (0, 1):
        for one in together:
            assert begin_folder(one, 1, simulated) == 1
            begin_run(one, seed, 1, simulated)
    # Of each seed two cities and three outbreaks, not four of each.
    assert sorted(made) == sorted(
        [("city", 0), ("city", 1)] * 2 + [("outbreak", 0), ("outbreak", 1)] * 3
    )
    for one, other in zip(together, plans(tmp_path / "alone"), strict=True):
        begin_folder(other, 1, Simulations())
        begin_run(other, 1, 1, Simulations())
        for seed in (0, 1):
            first, second = one.run_folder(seed), other.run_folder(seed)
            assert contents(first) == contents(second)


def test_what_is_impossible_leaves_nothing(tmp_path):
    one = plan(tmp_path / "one", ["dct"], [0])
    labels = replace(one.experiment.labels, label_share=1.0)
    one = replace(one, experiment=replace(one.experiment, labels=labels))
    with pytest.raises(DataError, match="everybody is tested"):
        begin_folder(one, 1, Simulations())
    assert not one.folder.exists()
    assert not is_begun(one, 0)
