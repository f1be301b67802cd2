"""Shadow runs: half of the tests each, stored when done, resumed when stopped."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon.attacks.membership import infer
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.methods.base import Method
from epifalcon.studies import shadow_runs
from epifalcon.studies.shadow_runs import run_shadows
from tests.scenes import Scene
from tests.studies import town


def scene(seed=3, **more):
    return Scene(town.traces(), seed=seed, **more)


def run(place, at=None, method="soft-dct-ratio", runs=4, known=None):
    at = at or scene()
    settings = shadow_runs.method_class(method).settings_type()
    data = {"traces": at.traces, "known": known or town.known(), "seed": at.seed}
    finished = SimpleNamespace(place=place, method=method, **data)
    return run_shadows(finished, settings, runs, at)


class Remembering(Method):
    """Gives its tested people their results, and notes what it was given."""

    name, title = "remembering", "Remembering"
    seen = ()

    def score(self, traces, known):
        Remembering.seen += ((self.seed, int(known.tested.sum())),)
        rng = np.random.default_rng(self.seed)
        level = np.choose(known.status + 1, [0.5, 0.1, 0.9])
        return np.clip(level + 0.02 * rng.standard_normal(traces.people), 0, 1)


@pytest.fixture
def remembering(monkeypatch):
    monkeypatch.setattr(shadow_runs, "method_class", lambda _: Remembering)
    monkeypatch.setattr(Remembering, "seen", ())


@pytest.mark.usefixtures("remembering")
def test_each_run_gets_another_half_and_memorisation_is_detected(tmp_path):
    found = run(tmp_path / "runs", runs=8)
    tested = town.known().tested
    included, risk = found.included, found.score
    assert (included.sum(axis=1) == round(tested.sum() / 2)).all()
    assert len({row.tobytes() for row in included}) == 8
    assert len({seed for seed, _ in Remembering.seen}) == 8
    # People left out look like anybody untested, in every run.
    assert (np.abs(risk - 0.5)[~included] < 0.2).all()
    assert (np.abs(risk - 0.5)[included] > 0.2).all()
    inferred = infer(found, town.known().status[tested] == 1)
    assert inferred.membership.auc.mean > 0.95
    assert inferred.result.auc.mean > 0.95


@pytest.mark.usefixtures("remembering")
def test_stopped_runs_are_resumed(tmp_path):
    def stop(name, done, total, message=""):
        del name, total, message
        if done == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        run(folder, scene(progress=stop))
    stored = sorted(place.name for place in (folder / "shadows").iterdir())
    assert stored == ["run-000", "run-001"]
    resumed = run(folder)
    assert len(Remembering.seen) == 4
    whole = run(tmp_path / "whole")
    assert np.array_equal(resumed.score, whole.score)
    assert np.array_equal(resumed.included, whole.included)
    assert np.array_equal(run(folder, runs=5).score[:4], whole.score)


def test_runs_of_something_else_and_changed_runs_are_refused(tmp_path):
    run(tmp_path)
    flipped = town.flipped(town.known(), town.known().person[:1])
    for changed in (
        {"at": scene(4)},
        {"method": "dct"},
        {"at": scene(pathogen=replace(scene().pathogen, beta=0.1))},
        {"known": flipped},
    ):
        with pytest.raises(DataError, match="other data, settings or seed"):
            run(tmp_path, **changed)
    place = tmp_path / "shadows" / "run-002" / "risk.npy"
    place.write_bytes(place.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CorruptFileError, match="SHA-256"):
        run(tmp_path)


def test_what_cannot_be_attacked_is_refused(tmp_path):
    few = town.known().of_people(np.arange(town.traces().people) < 3)
    for error, match, words in (
        (SettingsError, "runs", {"runs": 3}),
        (DataError, "too few", {"known": few}),
    ):
        with pytest.raises(error, match=match):
            run(tmp_path, **words)
