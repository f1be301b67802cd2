import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.attacks.claims import Candidates
from epifalcon.attacks.localisation import forward_backward
from epifalcon.errors import DataError
from tests.attacks import claims
from tests.oracles import localisation_loop as plain
from tests.studies import town


def attacked(seed, width=1, copies=2, **more):
    rng = np.random.default_rng(seed)
    epsilon = more.pop("epsilon", 1e-3)
    traces = claims.town(rng, **more)
    found = Candidates.of_pseudo(claims.pseudo(traces, rng, copies), width)
    return found, claims.model_of(traces, epsilon), rng


def assert_as_enumerated(found, model, evidence, width=1):
    got = forward_backward(found, model, evidence)
    for person in range(found.people):
        own = plain.claims_of(found, person), claims.ragged(found, evidence, person)
        wanted = plain.enumerate_paths(*own, model, width)
        claims.assert_same(claims.ragged(found, got, person), wanted)


@given(st.integers(0, 2**16), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=10)
def test_it_is_the_sum_over_all_paths(seed, degrees):
    found, model, rng = attacked(seed, people=3, gaps=0.3, degrees=degrees)
    assert_as_enumerated(found, model, rng.normal(0, 2, found.claims))


def test_windows_of_several_slots_move_at_their_border():
    found, model, rng = attacked(2, width=2, people=3, gaps=0.1)
    assert_as_enumerated(found, model, rng.normal(0, 1, found.claims), 2)


def test_places_that_are_not_known_are_one_kilometre_away():
    found, model, _ = attacked(3, people=3)
    model.regions.centre_km[:4] = np.nan
    assert_as_enumerated(found, model, np.zeros(found.claims))


def test_it_is_the_plain_recursion_on_whole_lives():
    traces = town.traces()
    model = claims.model_of(traces, 1e-8)
    made = claims.pseudo(traces, np.random.default_rng(0), 4)
    found = Candidates.of_pseudo(made)
    got = forward_backward(found, model)
    for person in range(0, found.people, 8):
        wanted = plain.forward_backward(plain.claims_of(found, person), model)
        claims.assert_same(claims.ragged(found, got, person), wanted)


def rows_of(found, values):
    filled = found.start[:-1][np.diff(found.start) > 0]
    return np.add.reduceat(values, filled)


@given(st.integers(0, 2**16), st.sampled_from([0.0, 1e-8]))
@settings(deadline=None, derandomize=True, max_examples=15)
def test_strong_evidence_and_dead_ends_still_add_up_to_one(seed, epsilon):
    found, model, rng = attacked(seed, epsilon=epsilon, days=5, copies=3)
    evidence = rng.normal(0, 3000, found.claims)
    got = forward_backward(found, model, evidence)
    assert np.isfinite(got).all()
    assert (got >= 0).all()
    np.testing.assert_allclose(rows_of(found, got), 1)


def test_a_dead_end_cuts_a_life_in_two():
    # People go from region 0 to 1 and back; claims of 2 and 3 come from nowhere.
    clock = claims.Clock(slot_hours=12, days=2)
    centre = np.arange(8.0).reshape(4, 2)
    walk = np.array([[0], [1], [0], [1]], np.int32)
    traces = claims.Traces(walk, clock, claims.Regions("area", centre))
    model = claims.model_of(traces, epsilon=0.0)
    key = np.array([0, 1, 4 + 2, 4 + 3, 8 + 0, 8 + 1, 12 + 1, 12 + 2])
    found = Candidates.of_claims(np.zeros(8, int), key, 1, 4, clock)
    got = forward_backward(found, model)
    # By visits in slot 0; nothing known of 2 and 3; a fresh start in slot 2.
    np.testing.assert_allclose(got, [1, 0, 0.5, 0.5, 1, 0, 1, 0], atol=1e-12)


@given(st.integers(0, 2**16))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_what_is_ruled_out_is_the_last_resort(seed):
    found, model, rng = attacked(seed, people=2, regions=8, epsilon=0.0)
    evidence = np.where(rng.random(found.claims) < 0.3, -np.inf, 0.0)
    evidence[found.start[:-1][np.diff(found.start) > 0]] = 0.0
    assert_as_enumerated(found, model, evidence)


def test_a_model_of_another_city_is_refused():
    _, model, _ = attacked(0)
    other, _, _ = attacked(0, regions=5)
    with pytest.raises(DataError, match=r"\(12, 4\), the claims \(5, 4\)"):
        forward_backward(other, model)
