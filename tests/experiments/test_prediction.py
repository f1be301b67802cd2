"""People that a run has not seen: the trained model, their places, their tests."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments import prediction
from epifalcon.experiments.prediction import NewPeople, require_inductive, score
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.preparation import (
    RegionFeatures,
    SiteData,
    cohort_of,
    hypergraph,
    validation_split,
)
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.training import TrainingTask, best_model, shared_statistics
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.progress import silent
from tests.experiments.finished_runs import (
    again,
    chosen_people,
    make_run,
    one_flipped,
    some,
)
from tests.oracles.dense_hypergraph import dense_layer


def by_hand(run, new_people, state):
    """The forward pass in float64 with dense matrices."""
    weights = {
        name.removeprefix("parameter/"): one.double()
        for name, one in best_model(run.place).items()
    }
    layer = dense_layer(hypergraph(new_people.traces, run.settings))
    column = torch.from_numpy(new_people.known.status.astype(int)) % 3
    rows = weights["input.weight"].T[column]
    for number in range(run.settings.model.layers):
        rows = layer @ rows
        if state is not None:
            rows = torch.cat([rows, torch.from_numpy(state).double()], dim=1)
        name = f"layer{number}"
        rows = torch.relu(rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])
    logits = rows @ weights["head.weight"].T + weights["head.bias"]
    return torch.softmax(logits, dim=1)[:, 1].numpy()


def state_of(run, people):
    return prediction._cohort(run, people, silent).state.numpy()


def trained_state(run):
    """Return the region states that the run was trained with."""
    task = TrainingTask(run.traces, run.known, run.settings, run.seed)
    shared = shared_statistics(task, RegionFeatures.load(run.place / "features"))
    rng = RunSeeds(run.seed).pseudo(0)
    made = cohort_of(task.site_data, task.split, run.settings, shared, rng)
    return made.state.numpy()


@pytest.mark.parametrize("validation", [False, True])
def test_a_forward_pass_of_the_trained_model(opened, validation):
    run = opened("off", "hgnn")
    people = again(run, validation)
    found = score(run, people)
    assert found.spent is None
    risk, stored = found.risks.probability, run.risks().probability
    np.testing.assert_allclose(risk, by_hand(run, people, None), atol=1e-6)
    assert np.array_equal(found.risks.status, people.known.status)
    # The best round saw nothing of the validation people's tests.
    assert np.array_equal(risk, stored) != validation
    assert (np.abs(risk - stored).max() > 1e-4) == validation


def test_the_region_model_is_that_of_the_training(opened, monkeypatch):
    run = opened("off")
    people = again(run)
    split = validation_split(SiteData(run.traces, run.known), run.settings, run.seed)
    monkeypatch.setattr(NewPeople, "folds", lambda *_: split.fold)
    state = trained_state(run)
    assert np.array_equal(state_of(run, people), state)
    found = score(run, people).risks.probability
    assert np.array_equal(found, run.risks().probability)
    np.testing.assert_allclose(found, by_hand(run, people, state), atol=1e-6)
    monkeypatch.undo()
    # Other folds change the states of tested people alone.
    other, tested = state_of(run, people), people.known.tested
    assert np.array_equal(other[~tested], state[~tested])
    assert not np.array_equal(other[tested], state[tested])


@pytest.mark.parametrize("method", ["falcon", "hgnn"])
def test_the_order_of_people_does_not_matter(opened, method):
    run = opened("off", method)
    order = np.random.default_rng(0).permutation(run.traces.people)
    whole = score(run, some(run, np.arange(run.traces.people))).risks
    mixed = score(run, some(run, order)).risks
    assert np.array_equal(mixed.status, whole.status[order])
    np.testing.assert_allclose(
        mixed.probability, whole.probability[order], atol=1e-6, rtol=0
    )


def test_a_test_does_not_come_back_by_way_of_the_region(opened):
    run = opened("off")
    people = again(run)
    before = state_of(run, people)
    for person in np.flatnonzero(people.known.status == 1)[:3]:
        flipped = one_flipped(people, person)
        after = state_of(run, flipped)
        assert np.array_equal(before[person], after[person])
        assert not np.array_equal(before, after)
        found = score(run, flipped).risks.probability
        assert found[person] != score(run, people).risks.probability[person]


@pytest.mark.parametrize(
    ("name", "people", "days"),
    [("off", 1, 5), ("paper", 7, 1), ("local", 150, 2), ("paper", 40, 11)],
)
def test_any_number_of_people_and_days(copied, name, people, days):
    run = copied(name)
    per_day = run.traces.clock.slots_per_day
    part, known = chosen_people(run.traces, run.known, np.arange(people))
    slots = np.arange(days * per_day) % run.traces.slots
    clock = Clock(run.traces.clock.slot_hours, days)
    traces = Traces(part.by_slot[slots], clock, part.regions)
    late = np.minimum(known.slot, clock.slots - 1)
    known = TestResults.from_tests(people, known.person, known.positive, late)
    found = score(run, NewPeople.of(traces, known, run.traces)).risks.probability
    assert found.shape == (people,)
    assert np.isfinite(found).all()
    score(run, NewPeople.of(traces, None, run.traces))


def test_people_who_were_never_seen_are_scored(opened):
    run = opened("off")
    people = some(run, np.arange(6))
    by_slot = people.traces.by_slot.copy()
    by_slot[:, 2] = -1
    traces = replace(people.traces, by_slot=by_slot)
    assert np.isfinite(score(run, NewPeople(traces, people.known)).risks.probability[2])
    nobody = replace(people.traces, by_slot=np.full_like(by_slot, -1))
    assert (
        len(set(score(run, NewPeople.of(nobody, None, nobody)).risks.probability)) == 1
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.input=embedding",), "train with --set model.input=status"),
        (("region.macro_cases=all",), "unknown for new people"),
        (("region.network.kind=gru",), "train with region.network.kind=dcrnn"),
        (("method=soft-dct-ratio",), "epifalcon run --method soft-dct-ratio --city"),
    ],
)
def test_a_model_with_embeddings_scores_only_its_own_people(tmp_path, words, message):
    make_run(tmp_path / "run", *words, "model.rounds=2")
    run = FinishedRun.open(tmp_path / "run")
    with pytest.raises(SettingsError, match=message):
        require_inductive(run)
    with pytest.raises(SettingsError, match=message):
        score(run, NewPeople.of(run.traces, None, run.traces))


def test_parameters_of_another_model_are_refused(copied):
    run = copied("off")
    shutil.rmtree(run.place / "model")
    hgnn = run.folder / "methods" / "hgnn" / "model"
    shutil.copytree(hgnn, run.place / "model")
    with pytest.raises(DataError, match=r"layer0\.weight"):
        score(run, NewPeople.of(run.traces, run.known, run.traces))
