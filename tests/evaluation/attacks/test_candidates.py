import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from tests.evaluation.attacks import claims


def made(seed=0, copies=2, **town):
    rng = np.random.default_rng(seed)
    return claims.pseudo(claims.town(rng, **town), rng, copies)


@given(st.integers(0, 2**16), st.sampled_from([1, 2, 4]))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_both_ways_to_build_agree_with_the_edges_of_all_traces(seed, width):
    some = made(seed)
    found = Candidates.of_pseudo(some, width)
    window = HypergraphSettings(window_slots=width)
    person, key = [], []
    for traces in (some.true, *(some.copy(number) for number in range(2))):
        edges = Incidence.of(traces, window)
        person.append(edges.by_edge.index)
        key.append(np.repeat(edges.edge_key, edges.size))
    pairs = np.unique(np.stack([np.concatenate(person), np.concatenate(key)]), axis=1)
    shuffled = pairs[:, np.random.default_rng(seed).permutation(pairs.shape[1])]
    shape = (some.true.people, len(some.true.regions))
    other = Candidates.of_claims(*shuffled, shape, some.true.clock, width)
    np.testing.assert_array_equal(found.start, other.start)
    np.testing.assert_array_equal(found.region, other.region)
    where = other.where(*shuffled)
    np.testing.assert_array_equal(other.region[where], shuffled[1] % shape[1])
    np.testing.assert_array_equal(np.stack(claims.flat(other))[:, where], shuffled)


def test_the_position_of_a_claim_says_nothing():
    some = made(copies=3, gaps=0.0)
    swapped = claims.PseudoTraces(
        claims.Traces(some.pseudo[1].copy(), some.true.clock, some.true.regions),
        np.stack([some.pseudo[0], some.true.by_slot, some.pseudo[2]]),
    )
    one, other = Candidates.of_pseudo(some), Candidates.of_pseudo(swapped)
    np.testing.assert_array_equal(one.region, other.region)
    np.testing.assert_array_equal(one.start, other.start)


def test_a_gap_has_no_candidates():
    some = made(gaps=0.5)
    size = Candidates.of_pseudo(some).size
    np.testing.assert_array_equal(size == 0, some.true.by_person == -1)
    assert set(np.unique(size)) == {0, 3}


def test_what_is_refused():
    found = Candidates.of_pseudo(made())
    person, key = claims.flat(found)
    shape, clock = (found.people, found.regions), found.clock
    with pytest.raises(DataError, match="twice"):
        Candidates.of_claims(person[[0, 0]], key[[0, 0]], shape, clock)
    with pytest.raises(DataError, match="expected 0 to 5"):
        Candidates.of_claims(person + 1, key, shape, clock)
    with pytest.raises(DataError, match="key runs"):
        Candidates.of_claims(person, key + 1000, shape, clock)
    with pytest.raises(DataError, match="whole numbers"):
        Candidates.of_claims(person, key * 1.0, shape, clock)
    with pytest.raises(SettingsError, match="window_slots=3 must divide"):
        Candidates.of_claims(person, key, shape, clock, 3)
    with pytest.raises(DataError, match="not among these"):
        found.where(person[:1], np.array([(key[0] + 1) % found.regions]))
    parts = (found.start.copy(), found.region[::-1].copy())
    with pytest.raises(DataError, match="different and in order"):
        Candidates(found.people, found.regions, clock, 1, *parts)
    with pytest.raises(DataError, match="one value a claim"):
        found.about_claims("evidence", np.zeros(3))


def test_days_are_compared_only_where_windows_fit_into_them():
    some = Candidates.of_pseudo(made(days=2), 8)
    with pytest.raises(SettingsError, match="must divide the day"):
        _ = some.windows_per_day


@pytest.mark.parametrize("width", [1, 2])
def test_keys_and_the_claims_of_the_first_people(width):
    found = Candidates.of_pseudo(made(4), width)
    person, key = claims.flat(found)
    np.testing.assert_array_equal(found.key, key)
    few = found.of_people(2)
    assert few.people == 2
    np.testing.assert_array_equal(few.key, key[person < 2])
    np.testing.assert_array_equal(few.size, found.size[:2])
