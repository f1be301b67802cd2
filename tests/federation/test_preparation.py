"""What a site makes for its own people, whatever the split into sites."""

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest

from epifalcon.epidemic.cases import COUNTS, reported_cases, tally_cases
from epifalcon.errors import DataError
from epifalcon.federation import preparation
from epifalcon.federation.preparation import (
    StateMoments,
    StateScaling,
    hypergraph,
    raw_state,
    split_sites,
    validation_split,
)
from epifalcon.federation.settings import PrivacySettings
from epifalcon.federation.training import public_mobility
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.mobility_model import mobility_model
from tests.federation.falcon.test_server_run import run_request
from tests.oracles import markov_loop
from tests.studies import town

SHARE = replace(town.FALCON.stopping, validation_share=0.3)
SETTINGS = replace(town.FALCON, stopping=SHARE)


def sites_data(sites):
    return split_sites(town.traces(), town.known(), sites)


def divided(sites, seed=4):
    parts = [validation_split(data, SETTINGS, seed) for data in sites_data(sites)]
    firsts = [data.first for data in sites_data(sites)]
    held = [part.held_back + first for part, first in zip(parts, firsts, strict=True)]
    return np.concatenate(held), np.concatenate([part.fold for part in parts])


@pytest.mark.parametrize("sites", [2, 7, 80])
def test_who_is_held_back_and_the_folds_do_not_depend_on_the_split(sites):
    one, other = divided(1), divided(sites)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.tolist() == theirs.tolist()


def test_held_back_are_a_share_of_the_tested_and_folds_cover_the_others():
    held, fold = divided(1)
    tested = town.known().tested
    assert tested[held].all()
    assert 0 < len(held) < tested.sum()
    assert (fold[held] == -1).all()
    assert ((fold >= 0) == (tested & ~np.isin(np.arange(80), held))).all()
    assert set(fold[fold >= 0]) <= set(range(SETTINGS.region.folds))
    assert not np.array_equal(held, divided(1, seed=5)[0])


def test_a_result_moves_nobody():
    known = town.known()
    flipped = replace(known, positive=~known.positive)
    (data,) = sites_data(1)
    other = replace(data, known=flipped)
    one, another = (validation_split(each, SETTINGS, 4) for each in (data, other))
    assert one.held_back.tolist() == another.held_back.tolist()
    assert one.fold.tolist() == another.fold.tolist()


@pytest.mark.parametrize("sites", [1, 3, 9])
def test_tallies_of_sites_add_up_to_those_of_the_city(sites):
    private = PrivacySettings(mode="paper")
    settings = replace(SETTINGS, privacy=private)
    first, *others = (
        preparation.count_tally(data, validation_split(data, settings, 4), settings)
        for data in sites_data(sites)
    )
    (whole,) = sites_data(1)
    sent = preparation.pack_tally(sum(others, first))
    size, clock = len(whole.traces.regions), whole.traces.clock
    names = preparation.tally_names(settings)
    total = preparation.unpack_tally(sent, names, size, clock)
    split = validation_split(whole, settings, 4)
    flows = count_flows(whole.traces)
    assert (total["flows"].between != flows.between).nnz == 0
    assert (total["flows"].stays == flows.stays).all()
    wanted = settings.region.cases
    made = preparation.histories(total, whole.traces.clock, wanted)
    for number, history in enumerate(made):
        others = (split.fold >= 0) & (split.fold != number - 1)
        some = split.training.of_people(others)
        cases = reported_cases(some, whole.traces, wanted)
        assert np.allclose(history.cases, cases.by_region_and_day, rtol=1e-12)
    reported = tally_cases(split.training, whole.traces, COUNTS)
    assert np.allclose(total["reported"].cases, reported.cases, rtol=1e-12)
    expected = mobility_model(whole.traces)
    made = total["mobility"].model(whole.traces.regions, expected.epsilon)
    assert np.allclose(made.joint.toarray(), expected.joint.toarray(), rtol=1e-12)
    assert np.allclose(made.visits, expected.visits, rtol=1e-12)
    assert made.people == expected.people


@pytest.mark.parametrize("scaled", [True, False])
def test_scaled_states_have_one_spread_and_unit_length(scaled):
    region = replace(SETTINGS.region, scale_states=scaled)
    rng = np.random.default_rng(3)
    raw = (5 + rng.normal(size=(400, 6)) * [1e-2, 1, 3, 0, 1e-9, 7]).astype(np.float32)
    moments = reduce(add, map(StateMoments.of, np.array_split(raw, 4)))
    made = StateScaling.of(moments, replace(SETTINGS, region=region)).apply(raw)
    if not scaled:
        np.testing.assert_array_equal(made, raw)
        return
    assert np.mean(np.sum(made**2, axis=1)) == pytest.approx(1, rel=1e-3)
    spread = made.std(axis=0)
    np.testing.assert_allclose(spread[[0, 1, 2, 5]], 0.5, rtol=1e-3)
    assert (made[:, [3, 4]] == 0).all()


def test_each_fold_reads_the_states_made_without_it():
    (data,) = sites_data(1)
    fold = np.arange(80) % 4 - 1
    shape = 4, len(data.traces.regions), data.traces.clock.days, 2
    states = np.broadcast_to(np.arange(4.0)[:, None, None, None], shape)
    split = replace(validation_split(data, SETTINGS, 4), fold=fold)
    incidence = hypergraph(data.traces, SETTINGS)
    state = raw_state(data, split, incidence, states.astype(np.float32))
    np.testing.assert_allclose(state, np.repeat(fold[:, None] + 1.0, 2, axis=1))


def test_the_mobility_model_is_that_of_the_sampled_group():
    pseudo = replace(town.FALCON.pseudo, people_share=0.5)
    settings = replace(town.with_mode("paper"), pseudo=pseudo)
    (data,) = sites_data(1)
    group = validation_split(data, settings, 4).mobility_group
    assert 25 < len(group) < 55
    splits = [(one, validation_split(one, settings, 4)) for one in sites_data(3)]
    parts = [split.mobility_group + one.first for one, split in splits]
    np.testing.assert_array_equal(group, np.concatenate(parts))
    expected = markov_loop.aggregate(data.traces, group.tolist(), 0.0)
    model = public_mobility(data.traces, pseudo, 4)
    joint = model.joint.toarray().reshape(expected.shape)
    np.testing.assert_allclose(joint, expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
def test_what_sites_count_is_taken_and_what_they_cannot_is_not(kind):
    settings = run_request(kind).settings
    data = sites_data(3)[0]
    traces = data.traces
    tally = preparation.count_tally(data, validation_split(data, settings, 3), settings)
    size, clock, most = len(traces.regions), traces.clock, traces.by_slot.size
    names = preparation.tally_names(settings)
    sent = preparation.pack_tally(tally)
    preparation.unpack_tally(sent, names, size, clock, most)
    other = replace(settings, privacy=PrivacySettings(mode="off"))
    if kind == "off":
        other = replace(settings, privacy=PrivacySettings(mode="paper"))
    with pytest.raises(DataError, match=r"a tally (has|lacks)"):
        preparation.unpack_tally(sent, preparation.tally_names(other), size, clock)
    if kind != "local":
        sent["flows/visitors"] = sent["flows/visitors"] + 10**9
        with pytest.raises(DataError, match="flows/visitors exceeds"):
            preparation.unpack_tally(sent, names, size, clock, most)
