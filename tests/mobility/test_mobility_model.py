import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.mobility import mobility_model as module
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.mobility_model import (
    distance_weight,
    find_move,
    mobility_model,
    points_km,
    tally_mobility,
)
from epifalcon.mobility.regions import Regions
from tests.epidemic.worlds import traces_of
from tests.oracles import markov_loop
from tests.oracles.cities import cities, random_traces

CASES = settings(max_examples=60, deadline=None, derandomize=True)
CLOCK = Clock(slot_hours=4, days=5)


@CASES
@given(cities(), st.sampled_from([0.0, 1e-6, 0.3]))
def test_the_aggregate_equals_the_loop_over_people(traces, epsilon):
    model = mobility_model(traces, epsilon)
    expected = markov_loop.aggregate(traces, list(range(traces.people)), epsilon)
    count = len(traces.regions)
    everywhere = np.arange(count, dtype=np.int32)
    table = model.transitions
    for slot in range(traces.clock.slots_per_day):
        got = markov_loop.transition(model, slot, everywhere[:, None], everywhere)
        np.testing.assert_allclose(got, expected[slot], rtol=1e-12, atol=1e-15)
        total = expected[slot].sum(axis=1)
        rows = slice(slot * count, (slot + 1) * count)
        np.testing.assert_allclose(table.total[rows], total, rtol=1e-12, atol=1e-15)
        for here in range(count):
            for there in range(count):
                low, past = table.first[rows.start + here : rows.start + here + 2]
                cell = find_move(table.there, low, past, there)
                stored = cell < past and table.there[cell] == there
                known = table.weight[cell] if stored else 0.0
                near = distance_weight(table.point_km, table.spherical, here, there)
                assert known + epsilon * near == pytest.approx(got[here, there])


@CASES
@given(cities())
def test_groups_and_blocks_of_people_add_up_to_the_model(traces):
    whole = mobility_model(traces, 1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_POINTS_PER_BLOCK", 2 * traces.slots)
        half = np.arange(traces.people) < traces.people // 2
        parts = [tally_mobility(traces, np.flatnonzero(one)) for one in (half, ~half)]
    made = (parts[0] + parts[1]).model(traces.regions, 1e-3)
    joint = whole.joint.toarray()
    np.testing.assert_allclose(made.joint.toarray(), joint, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(made.visits, whole.visits, rtol=1e-12)
    assert made.people == whole.people
    assert made.joint.has_canonical_format


@CASES
@given(cities())
def test_visit_shares_are_means_over_the_people_seen_at_that_slot(traces):
    model = mobility_model(traces, 1e-3)
    each = [markov_loop.person_visits(traces, u) for u in range(traces.people)]
    seen = np.sum([table.sum(axis=1) > 0 for table in each], axis=0)
    expected = np.sum(each, axis=0) / np.maximum(seen, 1)[:, None]
    np.testing.assert_allclose(model.visits, expected, rtol=1e-12, atol=1e-15)
    for slot in range(traces.slots):
        weight = expected[slot % len(expected)] + 1e-3
        share = np.exp(model.log_visits[slot % len(expected)])
        np.testing.assert_allclose(share, weight / weight.sum(), rtol=1e-9)


def test_a_normalised_row_is_a_distribution_or_empty():
    model = mobility_model(random_traces(3, 20, 8, CLOCK), 1e-3)
    for slot in range(6):
        row = markov_loop.transition(model, slot, 2, np.arange(8), normalised=True)
        assert row.sum() == pytest.approx(1, abs=1e-14)
        assert np.exp(model.log_visits[slot]).sum() == pytest.approx(1, abs=1e-12)
    bare = mobility_model(traces_of([[0], [1], [0], [1]], 3, 12), epsilon=0)
    move = markov_loop.transition(bare, 0, 2, np.arange(3), normalised=True)
    assert move.tolist() == [0, 0, 0]
    assert bare.log_visits[0].tolist() == [0, -np.inf, -np.inf]
    never = mobility_model(traces_of([[-1], [-1]], 2, 12), epsilon=0.5)
    assert never.joint.nnz == 0
    assert markov_loop.transition(never, 0, 0, np.arange(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("degrees", [False, True])
def test_distance_weights_equal_the_dense_matrix(degrees):
    centre = np.random.default_rng(40).uniform(0, 30, size=(40, 2))
    centre[:7] = np.nan
    centre[8] = centre[9] + 0.001
    lonlat = centre / 100 + [179.9, -17] if degrees else None
    regions = Regions("area", centre, lonlat=lonlat)
    point_km = points_km(regions)
    for here in range(40):
        apart = regions.distance_km(np.int32(here), np.arange(40))
        got = [distance_weight(point_km, degrees, here, there) for there in range(40)]
        expected = np.where(apart > 1, apart, 1.0) ** -2
        np.testing.assert_allclose(got, expected, rtol=1e-9)


@CASES
@given(cities())
def test_flows_and_visitors_equal_the_loop(traces):
    counted = count_flows(traces)
    expected = markov_loop.flows(traces)
    for day in range(traces.clock.days):
        stays = np.diag(expected[day])
        bare = expected[day] - np.diag(stays)
        np.testing.assert_array_equal(counted.stays[day], stays)
        np.testing.assert_array_equal(counted.moves(day).toarray(), bare)
        assert counted.moves(day).nnz == np.count_nonzero(bare)
    np.testing.assert_array_equal(counted.visitors, markov_loop.visitors(traces))
