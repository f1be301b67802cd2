"""Shadow runs: half of the tests each, kept when done, gone on with when stopped."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.attacks.membership import infer
from epifalcon.methods.base import Method
from epifalcon.studies import shadow_runs
from epifalcon.studies.shadow_runs import Attacked, ShadowSettings, run_shadows
from tests.scenes import Scene
from tests.studies import town

SOFT = Attacked("soft-dct-ratio")
FOUR = ShadowSettings(runs=4)


def scene(seed=3, **more):
    return Scene(town.traces(), seed=seed, **more)


def run(folder, at=None, attacked=SOFT, settings=FOUR):
    at = at or scene()
    return run_shadows(
        folder,
        at.traces,
        town.known(),
        attacked,
        settings,
        context=at,
        seed=at.seed,
    )


class Remembering(Method):
    """Gives its tested people their results, and notes what it was told."""

    name, title = "remembering", "Remembering"
    told = ()

    def score(self, traces, known):
        Remembering.told += ((self.seed, int(known.tested.sum())),)
        rng = np.random.default_rng(self.seed)
        level = np.choose(known.status + 1, [0.5, 0.1, 0.9])
        return np.clip(level + 0.02 * rng.standard_normal(traces.people), 0, 1)


@pytest.fixture
def remembering(monkeypatch):
    monkeypatch.setattr(shadow_runs, "method_class", lambda _: Remembering)
    monkeypatch.setattr(Remembering, "told", ())
    return SOFT


def test_each_run_is_given_another_half_of_the_tests(tmp_path, remembering):
    found = run(tmp_path / "runs", attacked=remembering)
    tested = town.known().tested
    assert np.array_equal(found.person, np.flatnonzero(tested))
    assert np.array_equal(found.infected, town.known().status[tested] == 1)
    included = found.shadows.included
    assert included.shape == (4, tested.sum())
    assert (included.sum(axis=1) == round(tested.sum() / 2)).all()
    assert len({row.tobytes() for row in included}) == 4
    # People left out look like anybody untested, in every run.
    risk = found.shadows.score
    assert (np.abs(risk - 0.5)[~included] < 0.2).all()
    assert (np.abs(risk - 0.5)[included] > 0.2).all()
    assert len({seed for seed, _ in Remembering.told}) == 4


def test_a_method_that_remembers_is_caught(tmp_path, remembering):
    found = run(
        tmp_path / "runs", attacked=remembering, settings=ShadowSettings(runs=8)
    )
    told = infer(found.shadows, found.infected)
    assert told.membership.auc.mean > 0.95
    assert told.result.auc.mean > 0.95


def test_stopped_runs_are_gone_on_with(tmp_path, remembering):
    def stop(name, done, total, told=""):
        del name, total, told
        if done == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        run(folder, scene(progress=stop), remembering)
    assert sorted(place.name for place in folder.iterdir()) == ["run-000", "run-001"]
    resumed = run(folder, attacked=remembering)
    assert len(Remembering.told) == 4
    whole = run(tmp_path / "whole", attacked=remembering)
    assert np.array_equal(resumed.shadows.score, whole.shadows.score)
    assert np.array_equal(resumed.shadows.included, whole.shadows.included)
    more = run(folder, attacked=remembering, settings=ShadowSettings(runs=5))
    assert np.array_equal(more.shadows.score[:4], whole.shadows.score)


def test_methods_of_the_catalogue_are_run(tmp_path):
    told = []
    found = run(
        tmp_path / "runs",
        scene(progress=lambda name, done, total, *_: told.append((name, done, total))),
    )
    assert ((found.shadows.score >= 0) & (found.shadows.score <= 1)).all()
    assert told == [("shadow runs", number, 4) for number in range(5)]


def test_falcon_is_run_with_its_settings(tmp_path):
    falcon = Attacked("falcon", town.with_mode("local"))
    found = run(tmp_path / "runs", attacked=falcon)
    assert found.shadows.score.std() > 0


def test_runs_of_something_else_are_refused(tmp_path):
    folder = tmp_path / "runs"
    run(folder)
    others = {
        "seed": {"at": scene(4)},
        "share": {"settings": ShadowSettings(runs=4, share=0.25)},
        "method": {"attacked": Attacked("dct")},
        "rates": {"at": scene(pathogen=replace(scene().pathogen, beta=0.1))},
    }
    for changed in others.values():
        with pytest.raises(DataError, match="other data, settings or seed"):
            run(folder, **changed)
    flipped = town.flipped(town.known(), town.known().person[:1])
    with pytest.raises(DataError, match="other data"):
        run_shadows(folder, town.traces(), flipped, SOFT, FOUR, seed=3)


def test_a_changed_run_is_refused(tmp_path):
    folder = tmp_path / "runs"
    run(folder)
    place = folder / "run-002" / "risk.npy"
    place.write_bytes(place.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CorruptFileError, match="SHA-256"):
        run(folder)


def test_what_cannot_be_attacked_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="truth"):
        run(tmp_path, attacked=Attacked("oracle"))
    few = town.known().of_people(np.arange(town.traces().people) < 3)
    with pytest.raises(DataError, match="too few"):
        run_shadows(tmp_path, town.traces(), few, SOFT, FOUR)
    with pytest.raises(SettingsError, match="runs"):
        ShadowSettings(runs=3)
    with pytest.raises(SettingsError, match="both sides"):
        ShadowSettings(share=1.0)
