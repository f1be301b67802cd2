import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.attacks import claims as claims_module
from epifalcon.attacks.claims import (
    AttackErrors,
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.incidence import Incidence
from tests.attacks import claims


def made(seed=0, copies=2, **town):
    rng = np.random.default_rng(seed)
    return claims.pseudo(claims.town(rng, **town), rng, copies)


@given(st.integers(0, 2**16), st.sampled_from([1, 2, 4]))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_both_ways_to_build_agree_with_the_edges_of_all_traces(seed, width):
    some = made(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "_PEOPLE_AT_ONCE", 4)
        found = Candidates.of_pseudo(some, width)
    person, key = [], []
    for traces in (some.true, *(some.copy(number) for number in range(2))):
        edges = Incidence.of(traces, window_slots=width)
        person.append(edges.by_edge.index)
        key.append(np.repeat(edges.edge_key, edges.size))
    pairs = np.unique(np.stack([np.concatenate(person), np.concatenate(key)]), axis=1)
    shuffled = pairs[:, np.random.default_rng(seed).permutation(pairs.shape[1])]
    shape = (some.true.people, len(some.true.regions))
    other = Candidates.of_claims(*shuffled, *shape, some.true.clock, width)
    np.testing.assert_array_equal(found.start, other.start)
    np.testing.assert_array_equal(found.region, other.region)
    np.testing.assert_array_equal(np.stack(claims.flat(other)), pairs)


def test_the_position_of_a_claim_says_nothing():
    some = made(copies=3, gaps=0.0)
    swapped = claims.PseudoTraces(
        claims.Traces(some.pseudo[1].copy(), some.true.clock, some.true.regions),
        np.stack([some.pseudo[0], some.true.by_slot, some.pseudo[2]]),
    )
    one, other = Candidates.of_pseudo(some), Candidates.of_pseudo(swapped)
    np.testing.assert_array_equal(one.region, other.region)
    np.testing.assert_array_equal(one.start, other.start)


def test_what_is_refused():
    found = Candidates.of_pseudo(made())
    person, key = claims.flat(found)
    shape, clock = (found.people, found.regions), found.clock
    with pytest.raises(DataError, match="twice"):
        Candidates.of_claims(person[[0, 0]], key[[0, 0]], *shape, clock)
    with pytest.raises(SettingsError, match="window_slots=3 must divide"):
        Candidates.of_claims(person, key, *shape, clock, 3)


@pytest.mark.parametrize("width", [1, 2])
def test_keys_and_the_claims_of_the_first_people(width):
    found = Candidates.of_pseudo(made(4), width)
    person, key = claims.flat(found)
    np.testing.assert_array_equal(found.key, key)
    few = found.of_people(2)
    assert few.people == 2
    np.testing.assert_array_equal(few.key, key[person < 2])
    np.testing.assert_array_equal(few.start, found.start[: len(few.start)])


def two_people():
    """Person 0 claims 0, 1, 2 and then 0, 1; person 1 claims 2, 3 once."""
    clock = claims.Clock(slot_hours=12, days=1)
    person = np.array([0, 0, 0, 0, 0, 1, 1])
    key = np.array([0, 1, 2, 4, 5, 2, 3])
    return Candidates.of_claims(person, key, 2, 4, clock)


def traces_of(by_slot):
    clock = claims.Clock(slot_hours=12, days=1)
    regions = claims.Regions("area", np.arange(8.0).reshape(4, 2))
    return claims.Traces(np.array(by_slot, np.int32), clock, regions)


def test_ties_go_to_the_second_score_and_are_then_split():
    found = two_people()
    score = np.array([2, 2, 1, 5, 5, -np.inf, -np.inf])
    assert name_best(found, score).tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5]
    then = np.array([0, 1, 9, 3, 3, 0, 1.0])
    assert name_best(found, score, then).tolist() == [0, 1, 0, 0.5, 0.5, 0, 1]


def test_the_error_counts_ties_in_expectation_person_by_person():
    found = two_people()
    truth = true_claims(found, traces_of([[1, 2], [0, -1]]))
    assert truth.tolist() == [False, True, False, True, False, True, False]
    guess = name_best(found, np.array([1, 1, 0, 0, 1, 1, 0.0]))
    verdict = localisation_error(guess, found, truth)
    np.testing.assert_allclose(verdict.wrong, [0.5 + 1, 0])
    np.testing.assert_array_equal(verdict.pairs, [2, 1])
    assert verdict.error == pytest.approx(1.5 / 3)
    assert verdict.random == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)


def test_naming_any_true_place_of_a_window_is_right():
    clock = claims.Clock(slot_hours=12, days=1)
    found = Candidates.of_claims(np.zeros(3, int), np.arange(3), 1, 4, clock, 2)
    truth = true_claims(found, traces_of([[0], [2]]))
    for region, wrong in ((0, 0), (1, 1), (2, 0)):
        guess = name_best(found, np.eye(3)[region])
        assert localisation_error(guess, found, truth).error == wrong
    assert localisation_error(guess, found, truth).random == pytest.approx(1 / 3)


def test_a_blind_guess_errs_as_often_as_random_says():
    rng = np.random.default_rng(0)
    some = claims.pseudo(claims.town(rng, people=50), rng, 3)
    found = Candidates.of_pseudo(some)
    truth = true_claims(found, some.true)
    assert truth.sum() == (some.true.by_slot >= 0).sum()
    verdict = localisation_error(name_best(found, np.zeros(found.claims)), found, truth)
    assert verdict.error == pytest.approx(verdict.random)
    assert verdict.random == pytest.approx(0.75)


def test_the_interval_draws_people_not_slots():
    rng = np.random.default_rng(1)
    some = claims.pseudo(claims.town(rng, people=200, days=10, gaps=0.0), rng, 1)
    found = Candidates.of_pseudo(some)
    truth = true_claims(found, some.true)
    # All or nothing: half of the people are guessed in every slot.
    person, _ = claims.flat(found)
    score = np.where(person % 2 == 0, truth, ~truth).astype(float)
    verdict = localisation_error(name_best(found, score), found, truth)
    interval = verdict.interval(np.random.default_rng(0))
    assert interval.estimate == pytest.approx(0.5)
    half = 1.96 * np.sqrt(0.25 / 200)
    assert interval.low == pytest.approx(0.5 - half, abs=0.02)
    assert interval.high == pytest.approx(0.5 + half, abs=0.02)
    again = verdict.interval(np.random.default_rng(0))
    assert (again.low, again.high) == (interval.low, interval.high)


def test_guesses_that_do_not_fit_are_refused():
    found = two_people()
    good = name_best(found, np.zeros(7))
    with pytest.raises(DataError, match="1 true places are not"):
        true_claims(found, traces_of([[3, 2], [0, -1]]))
    with pytest.raises(DataError, match="nothing to evaluate"):
        localisation_error(good, found, np.zeros(7, bool))


def test_no_wrong_guess_among_few_people_proves_little():
    verdict = AttackErrors(np.zeros(20), np.full(20, 9.0), np.full(20, 10))
    found = verdict.interval(np.random.default_rng(0))
    assert (found.estimate, found.low) == (0.0, 0.0)
    # With more such people among all, none of 20 would be seen in 1 of 40 draws.
    assert (1 - found.high) ** 20 == pytest.approx(0.025)
