import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility import markov
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.markov import (
    MobilityModel,
    MobilityModelSettings,
    mobility_model,
    person_model,
)
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin
from tests.oracles import markov_loop
from tests.oracles.cities import cities, random_traces

CASES = settings(max_examples=60, deadline=None, derandomize=True)
CLOCK = Clock(slot_hours=4, days=5)


def learn(traces: Traces, epsilon: float = 1e-3, share: float = 1.0, seed: int = 0):
    chosen = MobilityModelSettings(epsilon=epsilon, people_share=share)
    return mobility_model(traces, chosen, np.random.default_rng(seed))


def line(ids: list[list[int]], regions: int, slot_hours: float = 12) -> Traces:
    """Traces given person by person; regions 1 km apart on a line."""
    by_slot = np.ascontiguousarray(np.array(ids, dtype=np.int32).T)
    centre = np.column_stack([np.arange(regions), np.zeros(regions)]).astype(float)
    days = len(by_slot) * slot_hours / 24
    return Traces(by_slot, Clock(slot_hours, int(days)), Regions("area", centre))


@CASES
@given(cities(), st.sampled_from([0.0, 1e-6, 0.3]))
def test_the_aggregate_equals_the_loop_over_people(traces, epsilon):
    model = learn(traces, epsilon)
    expected = markov_loop.aggregate(traces, list(range(traces.people)), epsilon)
    everywhere = np.arange(len(traces.regions), dtype=np.int32)
    for slot in range(traces.clock.slots_per_day):
        got = model.transition(slot, everywhere[:, None], everywhere[None, :])
        np.testing.assert_allclose(got, expected[slot], rtol=1e-12, atol=1e-15)
        rows = [model.transition_row(slot, region) for region in everywhere]
        np.testing.assert_allclose(rows, expected[slot], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(
            model.row_totals(slot), expected[slot].sum(axis=1), rtol=1e-12, atol=1e-15
        )


@CASES
@given(cities())
def test_blocks_of_people_do_not_change_the_model(traces):
    whole = learn(traces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markov, "_POINTS_AT_ONCE", 2 * traces.slots)
        parts = learn(traces)
    np.testing.assert_allclose(
        parts.joint.toarray(), whole.joint.toarray(), rtol=1e-12, atol=1e-15
    )
    np.testing.assert_allclose(parts.visits, whole.visits, rtol=1e-12)
    np.testing.assert_array_equal(parts.moves.toarray(), whole.moves.toarray())


@CASES
@given(cities())
def test_the_person_model_equals_the_loop(traces):
    for person in range(traces.people):
        model = person_model(traces, person)
        visits = markov_loop.person_visits(traces, person)
        moves = markov_loop.person_moves(traces, person)
        np.testing.assert_allclose(model.visits, visits[:, model.region], rtol=1e-14)
        inside = moves[np.ix_(model.region, model.region)]
        np.testing.assert_allclose(model.moves, inside, rtol=1e-14)
        assert visits.sum() == pytest.approx(model.visits.sum())
        np.testing.assert_allclose(
            model.transition(1),
            visits[1 % len(visits)][model.region][:, None] * inside,
            rtol=1e-14,
        )


@CASES
@given(cities())
def test_visit_shares_are_means_over_the_people_seen_at_that_slot(traces):
    model = learn(traces)
    each = [markov_loop.person_visits(traces, u) for u in range(traces.people)]
    seen = np.sum([table.sum(axis=1) > 0 for table in each], axis=0)
    expected = np.sum(each, axis=0) / np.maximum(seen, 1)[:, None]
    np.testing.assert_allclose(model.visits, expected, rtol=1e-12, atol=1e-15)


@CASES
@given(cities())
def test_pooled_moves_are_the_shares_of_all_moves(traces):
    counts = markov_loop.flows(traces).sum(axis=0)
    total = counts.sum(axis=1, keepdims=True)
    expected = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    np.testing.assert_allclose(
        learn(traces).moves.toarray(), expected, rtol=1e-14, atol=1e-15
    )


def test_a_gap_is_no_move_and_unknown_is_not_the_last_region():
    traces = line([[0, -1, 1, 1]], regions=3)
    model = learn(traces, epsilon=0)
    assert model.moves.toarray().tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    # Region 0 was seen in the morning but never left under observation.
    assert model.transition_row(0, 0).sum() == 0
    # Mornings: regions 0 and 1 once each; evenings: region 1 in one of one.
    assert model.visits.tolist() == [[0.5, 0.5, 0], [0, 1, 0]]
    assert model.transition_row(0, 1).tolist() == [0, 0.5, 0]
    assert model.transition_row(1, 1).tolist() == [0, 1, 0]


def test_two_people_worked_by_hand():
    # Anna: 0 1 0 1, Ben: 2 2 2 2; two slots a day.
    traces = line([[0, 1, 0, 1], [2, 2, 2, 2]], regions=4)
    model = learn(traces, epsilon=0.01)
    floor = 0.01 / np.array([1, 1, 4, 9])
    np.testing.assert_allclose(
        model.transition_row(0, 0), np.array([0, 0.5, 0, 0]) + floor, rtol=1e-14
    )
    # A slot of the traces is taken modulo the day.
    np.testing.assert_array_equal(
        model.transition_row(2, 0), model.transition_row(0, 0)
    )
    assert model.slot_moves(1)[2, 2] == 0.5
    assert model.people == 2


def test_a_normalised_row_is_a_distribution():
    traces = random_traces(3, 20, 8, CLOCK)
    model = learn(traces)
    everywhere = np.arange(8, dtype=np.int32)
    for slot in range(6):
        row = model.transition_row(slot, 2, normalised=True)
        assert row.sum() == pytest.approx(1, abs=1e-14)
        pairs = model.transition(slot, np.int32(2), everywhere, normalised=True)
        np.testing.assert_allclose(pairs, row, rtol=1e-12)
        np.testing.assert_allclose(
            model.log_transition(slot, np.int32(2), everywhere),
            np.log(row),
            rtol=1e-12,
        )
        assert np.exp(model.log_visits(slot)).sum() == pytest.approx(1, abs=1e-12)


def test_logarithms_of_what_cannot_be_are_minus_infinity_without_a_warning():
    model = learn(line([[0, 1, 0, 1]], regions=3), epsilon=0)
    here = np.array([0, 0, 2], dtype=np.int32)
    there = np.array([1, 0, 2], dtype=np.int32)
    assert model.log_transition(0, here, there).tolist() == [0, -np.inf, -np.inf]
    assert model.log_visits(0).tolist() == [0, -np.inf, -np.inf]


@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.02])
def test_samples_follow_the_normalised_row(epsilon):
    # Regions without a place and of uneven number, so that groups end unevenly.
    traces = random_traces(11, 30, 23, CLOCK)
    model = learn(traces, epsilon)
    rng = np.random.default_rng(5)
    draws = 40_000
    for region in np.flatnonzero(model.row_totals(1) > 0)[[0, 7, -1]]:
        row = model.transition_row(1, int(region), normalised=True)
        here = np.full(draws, region, dtype=np.int32)
        got = np.bincount(model.sample_next(1, here, rng), minlength=23)
        assert (got[row == 0] == 0).all()
        likely = row * draws > 5
        kept = np.append(got[likely], got[~likely].sum())
        wanted = np.append(row[likely], row[~likely].sum()) * draws
        busy = wanted > 0
        test = stats.chisquare(kept[busy], wanted[busy] * kept.sum() / wanted.sum())
        assert test.pvalue > 1e-3 or busy.sum() == 1


def test_a_region_nobody_left_is_walked_by_the_floor_alone():
    traces = line([[0, 0, 0, 0]], regions=12)
    model = learn(traces, epsilon=1e-9)
    here = np.full(30_000, 11, dtype=np.int32)
    got = np.bincount(model.sample_next(0, here, np.random.default_rng(1)))
    row = model.transition_row(0, 11, normalised=True)
    assert stats.chisquare(got, row * here.size).pvalue > 1e-3


def test_samples_of_different_regions_are_told_apart():
    traces = line([[0, 1] * 4, [2, 3] * 4], regions=5)
    model = learn(traces, epsilon=0)
    here = np.array([2, 0, 2, 0], dtype=np.int32)
    got = model.sample_next(0, here, np.random.default_rng(0))
    assert got.dtype == np.int32
    assert got.tolist() == [3, 1, 3, 1]
    empty = model.sample_next(0, here[:0], np.random.default_rng(0))
    assert empty.size == 0


def test_nowhere_to_go_is_refused():
    model = learn(line([[0, 1] * 2], regions=3), epsilon=0)
    with pytest.raises(DataError, match="region 2"):
        model.sample_next(0, np.array([0, 2], np.int32), np.random.default_rng(0))


@pytest.mark.parametrize("bad", [-1, 3])
def test_ids_that_are_no_regions_are_refused(bad):
    model = learn(line([[0, 1] * 2], regions=3))
    ids = np.array([0, bad], dtype=np.int32)
    with pytest.raises(DataError, match=f"{bad}"):
        model.sample_next(0, ids, np.random.default_rng(0))
    with pytest.raises(DataError, match=f"{bad}"):
        model.transition(0, ids, np.zeros(2, np.int32))
    with pytest.raises(DataError, match=f"{bad}"):
        model.transition(0, np.zeros(2, np.int32), ids)
    with pytest.raises(DataError, match=f"{bad}"):
        model.transition_row(0, bad)
    with pytest.raises(SettingsError, match="slot=-1"):
        model.transition_row(-1, 0)
    with pytest.raises(DataError, match="person=-1"):
        person_model(line([[0, 1] * 2], regions=3), -1)


def test_a_share_of_the_people_is_a_model_of_that_group():
    traces = random_traces(2, 40, 6, CLOCK)
    model = learn(traces, share=0.25, seed=9)
    assert model.people == 10
    group = np.random.default_rng(9).choice(40, size=10, replace=False)
    expected = markov_loop.aggregate(traces, sorted(group.tolist()), 0.0)
    np.testing.assert_allclose(
        model.joint.toarray().reshape(expected.shape), expected, atol=1e-15
    )
    again = learn(traces, share=0.25, seed=9)
    np.testing.assert_array_equal(again.joint.data, model.joint.data)


def test_everybody_draws_nothing_and_is_told_of():
    rng = np.random.default_rng(0)
    told = []
    mobility_model(
        random_traces(2, 7, 6, CLOCK),
        MobilityModelSettings(),
        rng,
        lambda name, done, total: told.append((name, done, total)),
    )
    assert rng.random() == np.random.default_rng(0).random()
    assert told[-1][1:] == (7, 7)


def test_nobody_ever_observed_leaves_the_floor():
    traces = line([[-1, -1]], regions=2)
    model = learn(traces, epsilon=0.5)
    assert model.joint.nnz == 0
    assert model.transition_row(0, 0).tolist() == [0.5, 0.5]
    assert person_model(traces, 0).region.size == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"people_share": 0.0},
        {"people_share": 1.1},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        MobilityModelSettings(**wrong)


def test_saved_and_loaded_it_is_the_same_model(tmp_path):
    traces = random_traces(4, 25, 7, CLOCK)
    model = learn(traces)
    model.save(tmp_path / "model", Origin.now({}, 1))
    loaded = MobilityModel.load(tmp_path / "model")
    here = np.arange(7, dtype=np.int32)
    for slot in range(6):
        np.testing.assert_array_equal(
            loaded.transition(slot, here[:, None], here),
            model.transition(slot, here[:, None], here),
        )
        np.testing.assert_array_equal(
            loaded.sample_next(slot, here, np.random.default_rng(3)),
            model.sample_next(slot, here, np.random.default_rng(3)),
        )
    np.testing.assert_array_equal(loaded.visits, model.visits)
    np.testing.assert_array_equal(loaded.moves.toarray(), model.moves.toarray())
    assert (loaded.epsilon, loaded.people) == (model.epsilon, model.people)
    with (tmp_path / "model" / "joint_data.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x00")
    with pytest.raises(CorruptFileError, match="joint_data"):
        MobilityModel.load(tmp_path / "model")
