"""Region states: kept, refused on another city, and free of a fold's own cases."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon import store
from epifalcon.epidemic.cases import CaseSettings, all_cases, reported_cases
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.mobility.flows import count_flows
from epifalcon.models.coupling import state_of_people
from epifalcon.models.region_model import RegionHistory
from epifalcon.models.settings import DcrnnSettings, RegionSettings
from epifalcon.models.states import (
    RegionStates,
    dcrnn_model,
    fit_states,
    flows_sha256,
)
from epifalcon.settings import as_plain, build
from tests.epidemic.worlds import FAST, mixing_city
from tests.models.regions import QUICK, small_history

SETTINGS = RegionSettings(network=DcrnnSettings(hidden_width=5), training=QUICK)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fit(history=None):
    return fit_states(dcrnn_model(SETTINGS), history or small_history(), seeded())


def test_a_saved_record_comes_back_as_it_was(tmp_path):
    history = small_history(source="all")
    states = fit(history).states
    states.save(tmp_path / "states", store.Origin.now({"a": 1}, 7))
    back = RegionStates.load(tmp_path / "states", history.flows)
    assert np.array_equal(back.hidden, states.hidden)
    assert back.width == 5
    for name in ("source", "flows_sha256", "cases_sha256", "settings_sha256"):
        assert getattr(back, name) == getattr(states, name)
    assert back.source == "all"


def test_states_of_another_city_are_refused(tmp_path):
    fit().states.save(tmp_path, store.Origin())
    other = small_history(seed=4).flows
    with pytest.raises(DataError, match=r"another city.*fit the region model again"):
        RegionStates.load(tmp_path, other)
    with pytest.raises(DataError, match="these flows of 8 regions"):
        RegionStates.load(tmp_path, small_history(regions=8).flows)


def test_a_flipped_bit_is_noticed(tmp_path):
    history = small_history()
    fit(history).states.save(tmp_path, store.Origin())
    file = tmp_path / "hidden.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptFileError):
        RegionStates.load(tmp_path, history.flows)


def test_the_fingerprint_is_of_the_content():
    flows = small_history().flows
    for name in ("stays", "visitors"):
        changed = np.array(getattr(flows, name))
        changed[0, 0] += 1
        other = dataclasses.replace(flows, **{name: changed})
        assert flows_sha256(other) != flows_sha256(flows)
    between = flows.between.copy()
    between.data[0] += 1
    other = dataclasses.replace(flows, between=between)
    assert flows_sha256(other) != flows_sha256(flows)


def test_other_cases_and_other_settings_leave_their_mark():
    history = small_history()
    states = fit(history).states
    more = fit(history.with_cases(history.cases + 1)).states
    assert more.cases_sha256 != states.cases_sha256
    assert more.flows_sha256 == states.flows_sha256
    longer = dataclasses.replace(QUICK, steps=7)
    wider = RegionSettings(network=DcrnnSettings(hidden_width=5), training=longer)
    other = fit_states(dcrnn_model(wider), history, seeded()).states
    assert other.settings_sha256 != states.settings_sha256


@pytest.mark.parametrize(
    ("hidden", "told"),
    [
        (np.zeros((2, 3), np.float32), "of 2 axes"),
        (np.zeros((2, 3, 1)), "float64"),
        (np.full((2, 3, 1), np.nan, np.float32), "not finite"),
    ],
)
def test_what_are_no_states_is_refused(hidden, told):
    with pytest.raises(DataError, match=told):
        RegionStates(hidden, "reported", "", "", "")


def test_states_name_their_source():
    with pytest.raises(SettingsError, match="source"):
        RegionStates(np.zeros((1, 1, 1), np.float32), "some", "", "", "")


def outbreak_with(outbreak, people):
    """The outbreak with everybody's fate among ``people`` turned to its opposite."""
    infected = outbreak.ever_infected()
    changed = {}
    for name, slot in (("infection_slot", 0), ("infectious_slot", 1)):
        array = np.array(getattr(outbreak, name))
        array[people] = np.where(infected[people], -1, slot)
        changed[name] = array
    for name in ("onset_slot", "recovery_slot", "source_person", "source_region"):
        array = np.array(getattr(outbreak, name))
        array[people] = -1
        changed[name] = array
    seeds = np.array(outbreak.seeds)
    seeds[people] = False
    return dataclasses.replace(outbreak, **changed, seeds=seeds)


def people_states(traces, labels, cases):
    """Each person's state, as a run makes it from what is known alone."""
    known = labels.known
    fold = np.full(known.people, -1)
    fold[known.tested] = np.arange(known.tested.sum()) % 3
    told = [
        reported_cases(known.of_people((fold >= 0) & (fold != number)), traces, cases)
        for number in (-1, 0, 1, 2)
    ]
    whole, *others = (
        RegionHistory(
            count_flows(traces), one.by_region_and_day, one.source, one.measure
        )
        for one in told
    )
    model = dcrnn_model(SETTINGS)
    fitted = fit_states(model, whole, seeded())
    inc = Incidence.of(traces, HypergraphSettings())
    return [
        state_of_people(torch.tensor(hidden), inc, traces.clock)
        for hidden in (fitted.states.hidden, *map(model.states, others))
    ]


def everybodys_states(traces, outbreak):
    cases = all_cases(outbreak, traces)
    history = RegionHistory(
        count_flows(traces), cases.by_region_and_day, cases.source, cases.measure
    )
    return fit(history)


@pytest.mark.parametrize("measure", ["count", "share"])
def test_flipping_every_hidden_label_changes_no_bit_of_the_states(measure):
    traces = mixing_city(people=60, days=8)
    outbreak = simulate(
        traces, FAST, OutbreakSettings(seed_count=6), np.random.default_rng(0)
    )
    wished, cases = LabelSettings(label_share=0.5), CaseSettings(measure=measure)
    labels = draw_labels(outbreak, wished, np.random.default_rng(1))
    hidden = np.flatnonzero(~labels.known.tested)
    flipped = outbreak_with(outbreak, hidden)
    assert (flipped.ever_infected() != outbreak.ever_infected())[hidden].all()
    again = draw_labels(flipped, wished, np.random.default_rng(1))
    before, after = (people_states(traces, one, cases) for one in (labels, again))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    # And the test can fail: a tested person's label does matter.
    tested = np.flatnonzero(labels.known.tested)[:5]
    other = draw_labels(
        outbreak_with(outbreak, tested), wished, np.random.default_rng(1)
    )
    assert not torch.equal(before[0], people_states(traces, other, cases)[0])


def test_everybodys_cases_flow_through_and_are_marked_and_do_leak():
    traces = mixing_city(people=60, days=8)
    outbreak = simulate(
        traces, FAST, OutbreakSettings(seed_count=6), np.random.default_rng(0)
    )
    made = everybodys_states(traces, outbreak)
    assert made.states.source == made.forecast.source == "all"
    assert made.states.hidden.shape[:2] == (6, 8)
    hidden = np.arange(30)
    leaked = everybodys_states(traces, outbreak_with(outbreak, hidden))
    assert not np.array_equal(made.states.hidden, leaked.states.hidden)


def test_settings_go_through_plain_words():
    assert build(RegionSettings, as_plain(SETTINGS)) == SETTINGS
    with pytest.raises(SettingsError, match=r"did you mean 'network.hidden_width'"):
        build(RegionSettings, {"network": {"hiden_width": 3}})
