import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.method import Scene
from epifalcon.baselines.ordering import own_order
from epifalcon.epidemic.known import Known
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.baselines import tiny
from tests.oracles.cities import cities, random_traces
from tests.studies import town


def renumbered(traces, seed):
    """The city with other numbers, and the new number of each person."""
    rng = np.random.default_rng(seed)
    person = rng.permutation(traces.people)
    region = rng.permutation(len(traces.regions))
    names = np.append(region, -1).astype(np.int32)
    by_slot = np.empty_like(traces.by_slot)
    by_slot[:, person] = names[traces.by_slot]
    centre = np.empty_like(traces.regions.centre_km)
    centre[region] = traces.regions.centre_km
    regions = Regions(traces.regions.kind, centre)
    return Traces(by_slot, traces.clock, regions), person


def renumbered_tests(known, person):
    new = person[known.person].astype(np.int32)
    return Known.from_tests(known.people, new, known.positive, known.slot)


def placed(traces):
    """The same traces with a place for each region, all different."""
    count = len(traces.regions)
    centre = np.random.default_rng(count).permutation(2 * count)
    centre = centre.reshape(-1, 2).astype(float)
    return Traces(traces.by_slot.copy(), traces.clock, Regions("area", centre))


@settings(deadline=None, derandomize=True)
@given(cities(), st.integers(0, 2**32))
def test_numbers_play_no_part_in_the_order(city, seed):
    city = placed(city)
    other, _ = renumbered(city, seed)
    one, two = own_order(city).traces(city), own_order(other).traces(other)
    assert (one.by_slot == two.by_slot).all()
    assert (one.regions.centre_km == two.regions.centre_km).all()


@settings(deadline=None, derandomize=True)
@given(cities(), st.integers(0, 2**32))
def test_an_order_names_everybody_once_and_changes_no_meeting(city, seed):
    order = own_order(city)
    assert sorted(order.people) == list(range(city.people))
    assert sorted(order.regions) == list(range(len(city.regions)))
    own = order.traces(city)
    names = np.append(order.regions, -1)
    assert (names[own.by_slot] == city.by_slot[:, order.people]).all()
    rng = np.random.default_rng(seed)
    person = rng.integers(city.people, size=6).astype(np.int32)
    slot = rng.integers(city.slots, size=6).astype(np.int32)
    known = Known.from_tests(city.people, person, rng.random(6) < 0.5, slot)
    assert (order.known(known).status == known.status[order.people]).all()
    first = known.first_positive_slot[order.people]
    assert (order.known(known).first_positive_slot == first).all()


def test_regions_without_a_place_are_told_apart_by_their_crowds():
    city = random_traces(3, 40, 6, Clock(4.0, 4))
    nowhere = Regions("area", np.full((6, 2), np.nan))
    city = Traces(city.by_slot.copy(), city.clock, nowhere)
    other, _ = renumbered(city, 5)
    one, two = own_order(city).traces(city), own_order(other).traces(other)
    assert (one.by_slot == two.by_slot).all()


@pytest.mark.parametrize("cls", [tiny.Tiny, tiny.Reader])
@pytest.mark.parametrize("kind", [tiny.QUICK, tiny.EMBEDDED])
def test_other_numbers_change_nothing_but_the_order_of_a_fit(cls, kind):
    known, traces = town.known(), town.traces()
    before = tiny.fitted(cls, kind).found
    other, person = renumbered(traces, 8)
    method = cls(Scene(other, seed=3), kind).fit(renumbered_tests(known, person))
    after = method.found
    assert (after.risk[person] == before.risk).all()
    assert set(after.masked) == set(person[before.masked])
    assert after.told == before.told


def test_results_move_nobody():
    known = town.known()
    flipped = town.flipped(known, np.flatnonzero(known.tested)[::2])
    order = own_order(town.traces())
    assert (order.known(known).person == order.known(flipped).person).all()
    assert (order.known(known).slot == order.known(flipped).slot).all()


def test_people_of_one_trace_go_by_when_they_were_tested():
    regions = Regions("area", np.zeros((1, 2)))
    city = Traces(np.zeros((12, 5), np.int32), Clock(days=1), regions)
    slot = np.array([4, 9, 2], np.int32)
    positive = np.array([True, False, True])
    tests = Known(5, np.array([0, 2, 3], np.int32), positive, slot)
    turned = Known(5, tests.person, ~positive, slot)
    order = own_order(city, tests)
    np.testing.assert_array_equal(order.people, own_order(city, turned).people)
    back = np.arange(5)[::-1]
    moved = Known.from_tests(5, back[tests.person], positive, slot)
    slots = [
        _test_slots(city_tests, own_order(city, city_tests))
        for city_tests in (tests, moved)
    ]
    assert slots[0] == slots[1]


def _test_slots(known, order):
    """When the people of the order were tested, -1 for never."""
    at = np.full(known.people, -1)
    at[known.person] = known.slot
    return at[order.people].tolist()
