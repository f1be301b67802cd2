import dataclasses

import numpy as np
import pytest

from epifalcon import store
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.experiments import run_methods
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import begin
from epifalcon.methods.hbp import begun_by, share_infected
from epifalcon.mobility.reporting import keep_last_days
from epifalcon.progress import silent
from tests.studies import town

QUICK = {"gcn": {"steps": 4, "check_every": 2, "learning_rates": [0.01]}}


@pytest.fixture
def begun(tmp_path):
    made = town.begun(tmp_path / "run", method="gcn", rivals=QUICK)
    begin(made)
    return made


def run(begun, name="gcn", **more):
    progress = more.get("progress", silent)
    listeners = run_methods.Listeners(progress=progress, checkpoint_seconds=0.0)
    return run_methods.run_method(begun, name, listeners)


def test_what_was_found_is_kept_and_read(begun):
    first = run(begun)

    def never(*_):
        raise AssertionError("it is trained again")

    again = run(begun, progress=never)
    for name in ("probability", "masked", "masked_risk"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert again.seconds == first.seconds
    assert again.told == first.told
    assert {"learning_rate", "best_step"} <= again.told.keys()
    assert [path.name for path in begun.method_folder("gcn").iterdir()] == [
        "prediction"
    ]


def test_masked_people_are_tested_people(begun):
    found = run(begun)
    assert begun.known.tested[found.masked].all()
    assert found.masked_risk.shape == found.masked.shape


def test_a_stopped_training_is_gone_on_with(begun, tmp_path):
    whole = dataclasses.replace(begun, folder=tmp_path / "other")
    begin(whole)
    expected = run(whole)
    calls = []

    def stop(*told):
        calls.append(told)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(begun, progress=stop)
    assert (begun.method_folder("gcn") / "training").is_dir()
    np.testing.assert_array_equal(run(begun).probability, expected.probability)


def test_settings_reach_the_method(begun):
    assert run(begun).told["best_step"] <= 4


def test_a_changed_record_is_noticed(begun):
    run(begun)
    place = begun.method_folder("gcn") / "prediction" / "probability.npy"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(content)
    with pytest.raises(CorruptFileError, match="probability"):
        run(begun)


def test_a_record_of_another_run_is_refused(begun):
    run(begun)
    other = dataclasses.replace(begun, seed=begun.seed + 1)
    with pytest.raises(DataError, match="other data, settings or seed"):
        run(other)


def test_a_record_that_lacks_something_is_told(begun):
    place = begun.method_folder("gcn") / "prediction"
    with store.new_directory(place) as scratch:
        arrays = {"risk": np.zeros(3)}
        store.write(scratch, "prediction", arrays, meta={}, origin=begun.origin)
    with pytest.raises(CorruptFileError, match="lacks 'probability'"):
        run(begun)


def test_the_ceiling_alone_is_given_the_truth(begun):
    for name in ("gcn", "hbp", "soft-dct"):
        assert run_methods.context_of(begun, name, silent, 1.0).ground_truth is None
    for name in ("oracle", "hbp-true-factors"):
        scene = run_methods.context_of(begun, name, silent, 1.0)
        assert scene.ground_truth is begun.epidemic.outbreak


def test_methods_are_told_beliefs_and_how_often_tests_err(begun):
    experiment = Experiment.load("hamlet+regional-1.5+beta-half+test-errors")
    prepared = dataclasses.replace(begun.prepared, experiment=experiment)
    begun = dataclasses.replace(begun, prepared=prepared)
    for name in ("hbp", "gcn", "hbp-true-factors"):
        scene = run_methods.context_of(begun, name, silent, 1.0)
        assert scene.rule.even
        assert scene.pathogen.beta == SARS_COV_2.beta / 2
        assert scene.test_errors.false_negative == 0.15


def test_a_ceiling_that_is_told_factors_sees_what_methods_see(begun):
    late = dataclasses.replace(begun, reported=keep_last_days(begun.reported, 2))
    scene = run_methods.context_of(late, "hbp-true-factors", silent, 1.0)
    assert run_methods.traces_of(late, "hbp-true-factors") is late.reported
    assert scene.rule == run_methods.context_of(late, "hbp", silent, 1.0).rule
    assert run_methods.traces_of(late, "oracle") is begun.prepared.traces


def test_the_ceiling_needs_a_simulated_outbreak(begun):
    real = dataclasses.replace(begun, epidemic=None)
    with pytest.raises(SettingsError, match="oracle needs a simulated outbreak"):
        run_methods.context_of(real, "oracle", silent, 1.0)
    run_methods.context_of(real, "gcn", silent, 1.0)


def test_traces_that_begin_later_begin_with_more_infected(begun):
    assert run_methods.rule_of(begun) == begun.prepared.experiment.outbreak
    late = dataclasses.replace(begun, reported=keep_last_days(begun.reported, 2))
    dropped = begun.reported.slots - late.reported.slots
    rule, known = begun.prepared.experiment.outbreak, begun.known
    expected = share_infected(rule, SARS_COV_2, known, dropped)
    assert rule.seed_count / known.people < expected
    assert expected < (known.status == 1).sum() / known.tested.sum()
    # Nothing hidden is needed.
    blind = dataclasses.replace(late, epidemic=None)
    for name in ("hbp", "mean-field", "gcn"):
        found = run_methods.context_of(blind, name, silent, 1.0).rule
        assert found == begun_by(rule, expected)
    # The ceiling sees the outbreak from its first slot.
    scene = run_methods.context_of(late, "oracle", silent, 1.0)
    assert scene.rule is rule
    assert run_methods.traces_of(late, "oracle").slots == begun.reported.slots
