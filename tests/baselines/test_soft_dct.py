import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from epifalcon.baselines.dct import TracingSettings
from epifalcon.baselines.method import Scene
from epifalcon.baselines.soft_dct import (
    SoftDct,
    SoftDctRatio,
    exposure,
    soft_contact_tracing,
)
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop
from tests.oracles.tracing_loop import exposure_by_loop
from tests.studies import town

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def statuses(people, seed):
    return np.random.default_rng(seed).choice([-1, 0, 1], people).astype(np.int8)


def status_of(*values):
    return np.array(values, np.int8)


@st.composite
def tracings(draw):
    """A hypergraph and who tested how."""
    inc = draw(incidences())
    return inc, statuses(inc.people, draw(st.integers(0, 2**32)))


def crowd(people=400, edges=40, seed=1):
    """Everybody in two of many edges; some edges burn, and it shows in tests."""
    rng = np.random.default_rng(seed)
    own = np.array([rng.choice(edges, 2, replace=False) for _ in range(people)])
    burning = rng.random(edges) < 0.3
    infected = rng.random(people) < 0.1 + 0.4 * burning[own].sum(1)
    status = np.where(rng.random(people) < 0.5, infected, -1).astype(np.int8)
    members = [np.flatnonzero((own == edge).any(1)).tolist() for edge in range(edges)]
    return by_hand(people, members), status, infected


@CASES
@given(cities(), st.sampled_from([1, 2, 3]), st.integers(0, 2**32))
def test_exposure_is_what_loops_over_the_traces_find(traces, window_slots, seed):
    if traces.slots % window_slots:
        window_slots = 1
    inc = Incidence.of(traces, HypergraphSettings(window_slots=window_slots))
    status = statuses(inc.people, seed)
    expected = exposure_by_loop(traces, status.tolist(), window_slots)
    np.testing.assert_allclose(exposure(inc, status), expected, rtol=1e-14)


def test_exposure_of_a_case_worked_by_hand():
    # 0 and 1 positive, 2 negative, 3 and 4 untested, 5 never seen.
    inc = by_hand(6, [[0, 1, 2, 3], [0, 2], [3], [3, 4], [1, 3]])
    found = exposure(inc, status_of(1, 1, 0, -1, -1, 1))
    # 0 meets 1 and 2, then 2 alone; 3 meets all, nobody, 4, then 1.
    expected = [(1 / 2 + 0) / 2, (1 / 2 + 0) / 2, (1 + 1) / 2, (2 / 3 + 1) / 4, 0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-15)


@CASES
@given(tracings(), st.integers(0, 11))
def test_a_persons_own_result_moves_no_bit_of_its_exposure(case, person):
    inc, status = case
    person %= inc.people
    found = set()
    for own in (-1, 0, 1):
        status[person] = own
        found.add(exposure(inc, status)[person].tobytes())
    assert len(found) == 1


def test_the_results_of_others_do_move_it():
    inc = by_hand(3, [[0, 1, 2]])
    risks = [exposure(inc, status_of(-1, 0, own))[0] for own in (-1, 0, 1)]
    assert risks == [0, 0, 0.5]


@CASES
@given(tracings())
def test_untested_people_change_nothing_even_by_being_there(case):
    inc, status = case
    tested = np.flatnonzero(status >= 0)
    if not len(tested):
        return
    found = exposure(inc, status)[tested]
    alone = exposure(inc.restrict(tested), status[tested])
    # Their lonely edges are gone with the untested, but those were not shared.
    assert found.tobytes() == alone.tobytes()


@CASES
@given(tracings(), st.integers(0, 2**32))
def test_renumbering_people_renumbers_their_exposures(case, seed):
    inc, status = case
    order = np.random.default_rng(seed).permutation(inc.people)
    moved = exposure(inc.restrict(order), status[order])
    assert moved.tobytes() == exposure(inc, status)[order].tobytes()


@CASES
@given(tracings())
def test_exposure_is_a_share(case):
    inc, status = case
    found = exposure(inc, status)
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[inc.degree == 0] == 0).all()


def test_risk_is_the_logistic_curve_of_the_root_of_exposure():
    inc, status, _ = crowd()
    score = np.sqrt(exposure(inc, status))[:, None]
    tested = status >= 0
    centre, spread = score[tested].mean(), score[tested].std()
    scaled = (score - centre) / spread
    theirs = LogisticRegression(C=100, tol=1e-10, solver="newton-cholesky")
    theirs.fit(scaled[tested], status[tested])
    expected = theirs.predict_proba(scaled)[:, 1]
    found = soft_contact_tracing(inc, status)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # So the mean risk of the tested is their share of positive results.
    assert found[tested].mean() == pytest.approx(status[tested].mean(), abs=1e-9)


def test_risk_ranks_people_as_exposure_does_and_finds_the_infected():
    inc, status, infected = crowd()
    exposed, risk = exposure(inc, status), soft_contact_tracing(inc, status)
    order = np.argsort(exposed, kind="stable")
    apart = np.diff(exposed[order]) > 1e-9
    assert (np.diff(risk[order])[apart] > 0).all()
    hidden = status < 0
    assert risk[hidden & infected].mean() > risk[hidden & ~infected].mean() + 0.05
    assert ((risk > 0) & (risk < 1)).all()


def test_risk_moves_with_people_who_are_renumbered():
    inc, status, _ = crowd()
    order = np.random.default_rng(2).permutation(inc.people)
    moved = soft_contact_tracing(inc.restrict(order), status[order])
    expected = soft_contact_tracing(inc, status)[order]
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("edges", "status", "expected"),
    [
        # Whoever met a positive was negative: tracing must not turn that round.
        ([[0, 1], [2, 3]], (1, 0, 1, 0), 1 / 2),
        # Nobody met anybody: there is nothing to tell people apart by.
        ([[0], [1], [2], [3]], (1, 0, 0, -1), 1 / 3),
        ([], (1, 0, -1, -1), 1 / 2),
    ],
    ids=["falling", "alone", "never seen"],
)
def test_without_a_rising_risk_everybody_gets_the_share_of_positive_tests(
    edges, status, expected
):
    found = soft_contact_tracing(by_hand(4, edges), status_of(*status))
    np.testing.assert_allclose(found, expected)


def test_results_that_exposure_tells_apart_without_error_stay_probabilities():
    inc = by_hand(12, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    status = np.repeat(status_of(1, 0), 6)
    risk = soft_contact_tracing(inc, status)
    assert 0.9 < risk[0] < 1
    assert 0 < risk[6] < 0.1


def test_a_few_exposed_among_many_who_met_nobody_stand_out():
    # The first step of a plain Newton's method leads far uphill here.
    inc = by_hand(102, [[0, 1], *([person] for person in range(2, 102))])
    status = np.repeat(status_of(1, 0), (5, 97))
    risk = soft_contact_tracing(inc, status)
    np.testing.assert_allclose(risk[2:], 0.03, atol=0.001)
    assert (risk[:2] > 0.99).all()


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (status_of(1, -1), "nobody tested negative"),
        (status_of(0, -1), "nobody tested positive"),
        (status_of(-1, -1), "nobody tested positive"),
        (status_of(1, 0, 0), r"status has shape \(3,\), expected \(2,\)"),
        (status_of(1, 2), "status must be 1, 0 or -1"),
    ],
)
def test_what_cannot_be_traced_is_refused(status, told):
    with pytest.raises(DataError, match=told):
        soft_contact_tracing(by_hand(2, [[0, 1]]), status)


def test_the_ratio_method_is_soft_contact_tracing():
    found = SoftDctRatio(Scene(town.traces())).fit(town.known())
    inc, status = Incidence.of(town.traces()), town.known().status
    np.testing.assert_allclose(
        found.predict_proba(), soft_contact_tracing(inc, status), rtol=1e-9
    )
    assert sorted(found.found.masked) == np.flatnonzero(status >= 0).tolist()
    np.testing.assert_array_equal(
        found.found.masked_risk, found.predict_proba(found.found.masked)
    )


def test_the_count_method_ranks_by_slots_with_each_known_case():
    status = town.known().status
    risk = SoftDct(Scene(town.traces())).fit(town.known()).predict_proba()
    count = contacts_by_loop(town.traces()) @ (status == 1)
    order = np.argsort(count, kind="stable")
    assert (np.diff(risk[order]) >= 0).all()
    assert ((np.diff(count[order]) > 0) == (np.diff(risk[order]) > 1e-12)).all()
    tested = status >= 0
    assert risk[tested].mean() == pytest.approx(status[tested].mean(), abs=1e-9)


def test_cases_long_past_their_test_may_count_no_more():
    early = Known.from_tests(
        80, town.known().person, town.known().positive, town.known().slot * 0
    )
    plain = SoftDct(Scene(town.traces())).fit(early).predict_proba()
    short = SoftDct(Scene(town.traces()), TracingSettings(days_after_test=0))
    assert np.ptp(plain) > 0
    assert not np.array_equal(plain, short.fit(early).predict_proba())
