import numpy as np
import pytest

from epifalcon.baselines.dct import Dct, DctSettings, TracingSettings, case_until
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines.small_cities import ODD, RESULTS, city_of, results_of
from tests.oracles.contacts_loop import contacts_by_loop
from tests.studies import town


def fitted(traces, known, **settings):
    return Dct(Scene(traces), DctSettings(**settings)).fit(known)


def contacts(method):
    risk = method.predict_proba()
    assert len(set(risk)) == 2
    return np.flatnonzero(risk == risk.max()).tolist()


@pytest.mark.parametrize("days", [None, 1, 3, 9])
def test_contacts_are_who_met_a_known_case_in_the_window(days):
    traces, known = town.traces(), town.known()
    days_seen = range(traces.clock.days)[-(days or 99) :]
    met = sum(contacts_by_loop(traces, day) for day in days_seen)
    expected = met @ (known.status == 1) > 0
    risk = fitted(traces, known, window_days=days).predict_proba()
    assert len(set(risk[expected])) == 1
    assert len(set(risk[~expected])) <= 1
    if (~expected).any():
        assert risk[expected].min() >= risk[~expected].max()


@pytest.mark.parametrize(
    ("days", "expected"),
    [(1, [0, 3]), (2, [0, 2, 3]), (3, [0, 1, 2, 3]), (None, [0, 1, 2, 3])],
)
def test_the_window_ends_with_the_last_day(days, expected):
    # 0 meets 1 on the first day, 2 on the second, 3 on the last.
    traces = city_of([[0, 0, 1, 2, 3], [0, 1, 0, 2, 3], [0, 1, 2, 0, 3]], days=3)
    method = fitted(traces, results_of(1, 1, 1, 1, 0), window_days=days)
    assert contacts(method) == expected


def test_risks_are_shares_of_tested_people():
    # 0 positive meets 1 to 4; 5 to 9 are by themselves.
    traces = city_of([[0] * 5 + [1, 2, 3, 4, 5]])
    known = results_of(1, 1, 1, 0, -1, 0, 0, 0, 0, -1)
    risk = fitted(traces, known).predict_proba()
    np.testing.assert_allclose(risk[:5], 3.5 / 5)
    np.testing.assert_allclose(risk[5:], 0.5 / 5)


def test_a_case_is_no_contact_of_itself():
    traces = city_of([[0, 0, 0, 1, 2, 3]])
    method = fitted(traces, results_of(1, 1, 0, 0, 0, 0))
    assert contacts(method) == [0, 1, 2]
    alone = fitted(traces, results_of(1, 1, 0, 1, 0, 0))
    assert contacts(alone) == [0, 1, 2]


def test_an_alarm_that_means_nothing_gives_everybody_the_same():
    # Who met the case is negative, who met nobody positive.
    traces = city_of([[0, 0, 0, 1, 2]])
    risk = fitted(traces, results_of(1, 0, 0, 1, 1)).predict_proba()
    np.testing.assert_allclose(risk, 3.5 / 6)


def test_without_positives_everybody_has_a_small_risk():
    risk = fitted(town.traces(), results_of(*[0] * 80)).predict_proba()
    np.testing.assert_allclose(risk, 0.5 / 81)


def test_without_tests_it_refuses():
    with pytest.raises(DataError, match="nobody was tested"):
        fitted(town.traces(), results_of(*[-1] * 80))


def test_a_case_counts_until_some_days_after_its_first_positive_test():
    known = Known.from_tests(
        4,
        np.array([0, 0, 1, 2]),
        np.array([True, True, True, False]),
        np.array([6, 3, 20, 4]),
    )
    clock = Clock(8.0, 7)
    assert case_until(known, clock, None).tolist() == [20, 20, -1, -1]
    assert case_until(known, clock, 2).tolist() == [9, 20, -1, -1]
    assert case_until(known, clock, 0).tolist() == [3, 20, -1, -1]


def test_long_after_its_test_a_case_may_be_met_without_alarm():
    # On day 0 the case meets 1, on day 2 it meets 2.
    traces = city_of([[0, 0, 1, 2], [0, 1, 2, 3], [0, 1, 0, 2]], days=3)
    known = results_of(1, 1, 1, 0)
    assert contacts(fitted(traces, known, window_days=None)) == [0, 1, 2]
    soon = fitted(traces, known, window_days=None, days_after_test=1)
    assert contacts(soon) == [0, 1]


def test_tested_people_are_masked():
    found = fitted(town.traces(), town.known()).found
    assert sorted(found.masked) == np.flatnonzero(town.known().tested).tolist()
    np.testing.assert_array_equal(found.masked_risk, found.risk[found.masked])


@pytest.mark.parametrize("name", ODD)
def test_odd_cities_have_probabilities(name):
    risk = fitted(ODD[name], results_of(*RESULTS)).predict_proba()
    assert ((risk > 0) & (risk < 1)).all()


@pytest.mark.parametrize(
    "wrong", [{"window_days": 0}, {"window_days": 1.5}, {"days_after_test": -1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DctSettings(**wrong)
    with pytest.raises(SettingsError, match="days_after_test"):
        TracingSettings(days_after_test=-1)
