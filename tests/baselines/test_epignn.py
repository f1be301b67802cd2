import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.epignn import Epignn, EpignnSettings, days_in_state
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.studies import town

TESTS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 23)), max_size=12
)


def known_of(tests):
    columns = zip(*tests, strict=True) if tests else ([], [], [])
    person, positive, slot = columns
    return Known.from_tests(
        4,
        np.array(person, np.int32),
        np.array(positive, np.bool_),
        np.array(slot, np.int32),
    )


def day_by_day(tests, person, clock, recent_days):
    """The states of a person by day, told one by one."""
    own = [
        (slot // clock.slots_per_day, positive)
        for who, positive, slot in tests
        if who == person
    ]
    counts = [0, 0]
    first = min((day for day, positive in own if positive), default=None)
    for day in range(max(clock.days - recent_days, 0), clock.days):
        negative_later = any(
            not positive and when >= day and (first is None or when < first)
            for when, positive in own
        )
        recovered = any(
            not positive and first is not None and first < when <= day
            for when, positive in own
        )
        counts[0] += negative_later
        counts[1] += first is not None and day >= first and not recovered
    return counts


@settings(deadline=None, derandomize=True)
@given(TESTS, st.integers(1, 9))
def test_days_in_each_state_are_counted_as_by_hand(tests, recent_days):
    clock = Clock(6.0, 6)
    found = days_in_state(known_of(tests), clock, recent_days)
    by_hand = [day_by_day(tests, person, clock, recent_days) for person in range(4)]
    assert found.tolist() == by_hand


def features(tests, days=6, **more):
    city = tiny.city(np.zeros((4 * days, 4)), Clock(6.0, days), 1)
    return Epignn(Scene(city), EpignnSettings(**more)).features(city, known_of(tests))


def test_features_are_scaled_by_the_known_people():
    tests = [(0, False, 23), (1, False, 11), (2, True, 15)]
    # Susceptible on 6, 3 and 0 days, infected on 0, 0 and 3; nobody knows the last.
    expected = [[1, 0], [0.5, 0], [0, 1], [0, 0]]
    assert features(tests)[:, 0].tolist() == expected


def test_the_same_for_all_known_people_is_told_from_nothing_known():
    tests = [(0, False, 23), (1, False, 23)]
    assert features(tests)[:, 0].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert features([])[:, 0].tolist() == [[0, 0]] * 4


def test_only_recent_days_count():
    tests = [(0, False, 23), (1, False, 15), (2, True, 23)]
    assert features(tests, recent_days=2)[:, 0].tolist() == [
        [1, 0],
        [0, 0],
        [0, 1],
        [0, 0],
    ]


def test_the_network_is_one_convolution_of_64_and_three_in_the_paper():
    for kind, further in ((EpignnSettings(), 0), (EpignnSettings(layers=3), 2)):
        method = Epignn(Scene(town.traces()), kind)
        network = method.network(Ground(town.traces()), 2)
        shapes = [tuple(layer.weight.shape) for layer in network.layers]
        assert shapes == [(2, 64), *[(64, 64)] * further]
        assert network(torch.zeros(80, 1, 2), torch.zeros(80)).shape == (80,)


def test_impossible_settings_are_refused():
    with pytest.raises(SettingsError, match="recent_days=0"):
        EpignnSettings(recent_days=0)
    with pytest.raises(SettingsError, match="layers=0"):
        EpignnSettings(layers=0)


@pytest.mark.parametrize("kind", ["exposure", "embedding"])
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_have_risks(name, kind):
    settings_ = EpignnSettings(input=kind, steps=4, learning_rates=(0.01,))
    method = Epignn(Scene(tiny.odd_cities()[name]), settings_).fit(tiny.odd_tests())
    assert ((method.predict_proba() >= 0) & (method.predict_proba() <= 1)).all()


def test_who_kept_company_with_the_infected_is_at_risk():
    method = Epignn(Scene(tiny.sixteen_houses()), EpignnSettings(**tiny.SHORT))
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())
