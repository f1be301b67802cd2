"""The record of pseudo traces, and the conformance suite of all generators."""

import typing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_generators import GENERATORS, generate
from epifalcon.privacy.pseudo_traces import Method, PseudoTraces
from tests.oracles.cities import cities, random_traces
from tests.privacy.pseudo_worlds import World, settings_for, world_of

CASES = settings(max_examples=40, deadline=None, derandomize=True)
every_method = pytest.mark.parametrize("method", GENERATORS)


def make(method, world: World, copies=2, seed=0):
    rng = np.random.default_rng(seed)
    chosen = settings_for(method, copies)
    return generate(world.traces, world.model, world.cases, chosen, rng)


def town(seed=3, people=300):
    return world_of(random_traces(seed, people, 40, Clock(slot_hours=4, days=3)))


def test_there_is_a_generator_for_each_method_of_the_settings():
    assert set(GENERATORS) == set(typing.get_args(Method))


@every_method
@CASES
@given(cities(), st.sampled_from([0.0, 1e-8, 0.3]), st.integers(0, 4))
def test_claims_are_valid_distinct_and_observed(method, traces, epsilon, copies):
    made = make(method, world_of(traces, epsilon), copies)
    regions = len(traces.regions)
    assert made.pseudo.shape == (copies, *traces.by_slot.shape)
    for slot in range(traces.slots):
        for person in range(traces.people):
            true = int(traces.by_slot[slot, person])
            claimed = made.pseudo[:, slot, person].tolist()
            places = [region for region in claimed if region != -1]
            if true == -1:
                assert not places
                continue
            assert all(0 <= region < regions for region in places)
            assert len({true, *places}) == 1 + len(places)
            # Nobody goes without a place while there is one.
            assert len(places) == min(copies, regions - 1)


@every_method
def test_more_copies_begin_with_the_fewer_ones_and_the_seed_decides(method):
    world, result = town(), []
    chosen = settings_for(method, 4)
    rng = np.random.default_rng(0)
    many = generate(
        world.traces,
        world.model,
        world.cases,
        chosen,
        rng,
        lambda *step: result.append(step),
    )
    assert result[-1] == ("pseudo traces", 300, 300)
    few = replace(chosen, pseudo_copies=2)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        made = generate(world.traces, world.model, world.cases, few, rng)
        assert np.array_equal(made.pseudo, many.pseudo[:2]) == (seed == 0)


@every_method
def test_a_model_of_another_city_or_clock_is_refused(method):
    world = town()
    for regions, hours in ((39, 4), (40, 8)):
        other = random_traces(0, 10, regions, Clock(slot_hours=hours, days=3))
        strange = World(world.traces, world_of(other).model, world.cases)
        with pytest.raises(DataError, match="mobility model has"):
            make(method, strange)


@pytest.mark.parametrize("method", ["plausible", "recurring"])
@pytest.mark.parametrize(
    "cases",
    [
        np.zeros((39, 2)),
        np.zeros(40),
        np.zeros((40, 0)),
        np.full((40, 2), -1.0),
        np.full((40, 2), np.nan),
    ],
)
def test_wrong_cases_are_refused(method, cases):
    world = town()
    with pytest.raises(DataError, match="cases"):
        make(method, World(world.traces, world.model, cases))


TRUE = Traces(
    np.array([[0, 1], [2, -1]], dtype=np.int32),
    Clock(slot_hours=12, days=1),
    Regions("area", np.zeros((4, 2))),
    ("ann", "bob"),
)


def beside(*copies):
    return PseudoTraces(TRUE, np.array(copies, dtype=np.int32))


def test_a_good_record_is_read_only():
    made = beside([[1, 2], [3, -1]], [[2, -1], [-1, -1]])
    assert made.copies == 2
    with pytest.raises(ValueError, match="read-only"):
        made.pseudo[0, 0, 0] = 3


@pytest.mark.parametrize(
    ("copies", "result"),
    [
        ([[[0, 2], [3, -1]]], "true place in slot 0"),
        ([[[1, 2], [3, 0]]], "slot 1, which was not observed"),
        ([[[1, 2], [4, -1]]], "-1 to 3"),
        ([[[1, -2], [3, -1]]], "-1 to 3"),
        ([[[1, 2], [3, -1]], [[2, 2], [0, -1]]], "two copies claim one place in"),
        ([[[1, 2, 3], [3, -1, -1]]], "shape"),
    ],
)
def test_an_invalid_record_is_refused(copies, result):
    with pytest.raises(DataError, match=result):
        beside(*copies)
