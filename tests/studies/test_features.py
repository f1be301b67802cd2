from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import hold_back, without
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.preparing import StateScaling, hypergraph, state_by_fold
from epifalcon.federation.settings import StoppingSettings
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.studies import features as features_module
from epifalcon.studies.features import (
    Features,
    Task,
    make_features,
    pseudo_places,
    public_mobility,
)
from tests.oracles import markov_loop
from tests.studies import town

EVERY = pytest.mark.parametrize(
    "settings",
    [town.FALCON, town.with_mode("paper"), town.with_cases("none"), town.CENTRAL],
    ids=["reported", "paper", "none", "hgnn"],
)


def made(task):
    return make_features(task, task.incidence)


def held_back(tests=None, stopping=town.FALCON.stopping):
    tests = town.known() if tests is None else tests
    rng = Streams(3).numpy("validation people")
    return hold_back(tests, stopping.validation_share, rng)


def assert_equal(one, other):
    np.testing.assert_array_equal(one.held_back, other.held_back)
    assert one.forecast == other.forecast
    assert (one.state is None) == (other.state is None)
    if one.state is not None:
        np.testing.assert_array_equal(one.state, other.state)


@EVERY
def test_equal_tasks_give_equal_bits(settings):
    assert_equal(made(town.task(settings)), made(town.task(settings)))


@EVERY
def test_features_come_back_from_disk(settings, tmp_path):
    task = town.task(settings)
    features = made(task)
    features.save(tmp_path / "features", task.origin)
    assert_equal(Features.load(tmp_path / "features"), features)


@EVERY
def test_held_back_results_reach_no_feature(settings, monkeypatch):
    people = held_back()
    monkeypatch.setattr("epifalcon.studies.features.hold_back", lambda *_: people)
    opposite = town.flipped(town.known(), people)
    assert_equal(made(town.task(settings)), made(town.task(settings, opposite)))


def test_held_back_results_reach_no_pseudo_trace():
    people, settings = held_back(), town.with_mode("paper")
    copies = [
        pseudo_places(town.task(settings, tests), without(tests, people))
        for tests in (town.known(), town.flipped(town.known(), people))
    ]
    for one, other in zip(*copies, strict=True):
        np.testing.assert_array_equal(one.edge_key, other.edge_key)
        np.testing.assert_array_equal(one.by_edge.index, other.by_edge.index)


def test_pseudo_traces_are_drawn_from_the_model_of_the_sampled_group(monkeypatch):
    used = []
    generate = features_module.generate

    def spy(traces, model, *rest):
        used.append(model)
        return generate(traces, model, *rest)

    monkeypatch.setattr(features_module, "generate", spy)
    pseudo = replace(town.FALCON.pseudo, people_share=0.5)
    task = town.task(replace(town.with_mode("paper"), pseudo=pseudo))
    pseudo_places(task, task.known)
    rng = Streams(task.seed).numpy("mobility model")
    group = rng.choice(task.traces.people, task.traces.people // 2, replace=False)
    expected = markov_loop.aggregate(task.traces, group.tolist(), 0.0)
    public = public_mobility(task.traces, pseudo, task.seed)
    for model in (*used, public):
        assert model.people == len(group) == 40
        joint = model.joint.toarray().reshape(expected.shape)
        np.testing.assert_allclose(joint, expected, atol=1e-12)
    assert len(used) == 1


def test_a_trained_result_reaches_the_features():
    others = np.setdiff1d(town.known().person[town.known().positive], held_back())
    changed = made(town.task(tests=town.flipped(town.known(), others[:3])))
    assert not np.array_equal(changed.state, made(town.task()).state)


def test_each_fold_reads_the_states_made_without_it():
    traces = town.traces()
    fold = np.arange(traces.people) % 4 - 1
    shape = len(traces.regions), traces.clock.days, 2
    whole = np.zeros(shape, np.float32)
    own = [np.full(shape, 1.0 + number, np.float32) for number in range(3)]
    incidence = hypergraph(traces, town.FALCON)
    state = state_by_fold(whole, own, fold, incidence, traces)
    np.testing.assert_allclose(state, np.repeat(fold[:, None] + 1.0, 2, axis=1))


def test_other_settings_leave_other_cases_out():
    assert made(town.task(town.with_cases("none"))).state is None
    assert made(town.task(town.CENTRAL)).forecast is None
    reported, leaking = (
        made(town.task(town.with_cases(name))) for name in ("reported", "all")
    )
    assert reported.forecast["source"] == "reported"
    assert leaking.forecast["source"] == "all"
    assert not np.array_equal(reported.state, leaking.state)


def test_all_cases_need_an_outbreak():
    task = replace(town.task(town.with_cases("all")), all_cases=None)
    with pytest.raises(SettingsError, match="needs a simulated outbreak"):
        made(task)


def test_validation_people_are_of_both_kinds_and_tested():
    people = held_back()
    assert set(town.known().status[people]) == {0, 1}
    assert len(people) == pytest.approx(0.1 * town.known().tested.sum(), abs=1)
    np.testing.assert_array_equal(people, np.unique(people))
    training = without(town.known(), people)
    assert not training.tested[people].any()
    assert training.tested.sum() + len(people) == town.known().tested.sum()


@pytest.mark.parametrize("positive", [True, False])
def test_one_kind_of_result_is_not_enough(positive):
    one_kind = town.known().of_people((town.known().status == 1) == positive)
    word = "negative" if positive else "positive"
    with pytest.raises(DataError, match=f"0 people tested {word}: at least 2"):
        held_back(one_kind)


def test_somebody_must_be_left_to_learn_from():
    with pytest.raises(SettingsError, match=r"validation_share=1\.0 holds back all"):
        held_back(stopping=StoppingSettings(validation_share=1.0))
    assert len(held_back(stopping=StoppingSettings(validation_share=0.0))) == 2


def test_tests_of_other_people_are_refused():
    none = np.zeros(0, np.int32)
    tests = Known(79, none, none.astype(np.bool_), none)
    with pytest.raises(DataError, match="79 people, but traces of 80"):
        Task(town.traces(), tests, town.FALCON, 3)


def test_the_origin_tells_data_settings_and_seed_apart():
    task, tests = town.task(), town.known()
    others = [
        replace(task, seed=4),
        replace(task, settings=town.CENTRAL),
        replace(task, known=town.flipped(tests, tests.person[:1])),
        replace(task, traces=town.traces(6)),
        replace(task, all_cases=np.zeros((20, 5))),
    ]
    moved = task.traces.by_slot.copy()
    moved[0, 0] = (moved[0, 0] + 1) % len(task.traces.regions)
    moved = Traces(moved, task.traces.clock, task.traces.regions)
    others.append(replace(task, traces=moved))
    prints = {one.origin.fingerprint for one in [task, *others]}
    assert len(prints) == 1 + len(others)
    same = Traces(task.traces.by_slot.copy(), task.traces.clock, task.traces.regions)
    assert replace(task, traces=same).origin == task.origin


def test_a_record_without_its_parts_is_corrupt(tmp_path):
    from epifalcon import store

    store.write(tmp_path, "features", {}, meta={}, origin=town.task().origin)
    with pytest.raises(CorruptFileError, match="lacks 'held_back'"):
        Features.load(tmp_path)


def test_scaled_states_have_one_spread_and_unit_length():
    rng = np.random.default_rng(3)
    raw = (5 + rng.normal(size=(400, 6)) * [1e-2, 1, 3, 0, 1e-9, 7]).astype(np.float32)
    scaled = StateScaling.of(raw).apply(raw)
    assert np.mean(np.sum(scaled**2, axis=1)) == pytest.approx(1, rel=1e-3)
    spread = scaled.std(axis=0)
    np.testing.assert_allclose(spread[[0, 1, 2, 5]], 0.5, rtol=1e-3)
    assert (scaled[:, [3, 4]] == 0).all()
