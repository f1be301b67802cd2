import doctest
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import SettingsError
from epifalcon.mobility import clock as clock_module
from epifalcon.mobility.clock import Clock
from epifalcon.settings import as_plain, build

CASES = settings(max_examples=80, deadline=None, derandomize=True)
MINUTES = [minutes for minutes in range(1, 1441) if 1440 % minutes == 0]
clocks = st.builds(
    Clock,
    st.sampled_from(MINUTES).map(lambda minutes: minutes / 60),
    st.integers(1, 60),
    st.none() | st.dates(max_value=date(9999, 10, 1)).map(str),
)


@CASES
@given(clocks)
def test_slots_days_and_hours_agree(clock):
    assert clock.slots == clock.days * clock.slots_per_day
    assert clock.slots_per_day * clock.slot_minutes == 1440
    assert clock.slot_days * clock.slots_per_day == pytest.approx(1)
    seen = []
    for day in range(clock.days):
        slots = range(clock.slots)[clock.slots_of_day(day)]
        assert {clock.day_of_slot(slot) for slot in (slots[0], slots[-1])} == {day}
        assert clock.hour_of_slot(slots[0]) == 0
        assert clock.hour_of_slot(slots[-1]) == pytest.approx(24 - clock.slot_hours)
        seen.extend(slots)
    assert seen == list(range(clock.slots))


@CASES
@given(clocks)
def test_a_clock_survives_its_settings(clock):
    assert build(Clock, as_plain(clock)) == clock


@CASES
@given(clocks, st.data())
def test_the_last_days_end_on_the_same_day(clock, data):
    days = data.draw(st.integers(1, clock.days))
    short = clock.last(days)
    assert short.days == days
    assert clock.last(clock.days) == clock
    assert short.last(1) == clock.last(1)


def test_negative_days_count_from_the_end():
    assert Clock(2, 14).slots_of_day(-1) == slice(156, 168)


def test_last_days_across_a_leap_day():
    assert Clock(2, 5, "2020-02-27").last(3).start == "2020-02-29"


@pytest.mark.parametrize(
    "hours",
    [0, -2, 5, 7, 48, 0.01, 0.33, 2.001, float("nan"), float("inf"), "2", None, True],
)
def test_slots_that_do_not_cut_a_day_are_refused(hours):
    with pytest.raises(SettingsError, match="slot_hours="):
        Clock(slot_hours=hours)


@pytest.mark.parametrize("days", [0, -1, 2.5, 2.0, float("nan"), "3", True])
def test_days_that_are_no_whole_number_are_refused(days):
    with pytest.raises(SettingsError, match="days="):
        Clock(days=days)
    with pytest.raises(SettingsError, match="last_days="):
        Clock(days=5).last(days)


@pytest.mark.parametrize("day", [14, -15])
def test_a_day_that_is_not_there_is_refused(day):
    with pytest.raises(SettingsError, match=f"day={day}"):
        Clock(days=14).slots_of_day(day)


@pytest.mark.parametrize("start", ["2020-13-01", "20200301", "2020-W09-7", "", "x", 3])
def test_a_start_that_is_no_date_is_refused(start):
    with pytest.raises(SettingsError, match="start="):
        Clock(start=start)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../x", "Europe", "/etc/passwd"])
def test_a_zone_that_is_none_is_refused(zone):
    with pytest.raises(SettingsError, match="timezone="):
        Clock(timezone=zone)


def test_thirds_of_an_hour_need_not_be_typed_out():
    assert Clock(slot_hours=1 / 3).slots_per_day == 72
    assert Clock(slot_hours=0.33333).slots_per_day == 72


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(clock_module).failed == 0


def test_days_past_the_calendar_are_told_as_such():
    with pytest.raises(SettingsError, match="days=14 from 9999-12-31"):
        Clock(days=14, start="9999-12-31")
    with pytest.raises(SettingsError, match="days=99999999 from 2020-03-01"):
        Clock(days=99_999_999, start="2020-03-01")
