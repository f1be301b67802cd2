import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.errors import SettingsError
from epifalcon.mobility import reporting
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.reporting import (
    ReportingSettings,
    keep_last_days,
    keep_share,
    report,
)
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import cities, random_traces

CASES = settings(max_examples=80, deadline=None, derandomize=True)
SHARES = st.floats(0, 1)


def observed(traces: Traces) -> np.ndarray:
    return np.count_nonzero(traces.by_slot >= 0, axis=0)


def kept(traces: Traces, share: float, seed: int = 0) -> Traces:
    return keep_share(traces, share, np.random.default_rng(seed))


def uniform(people: int, slots: int) -> Traces:
    ids = np.zeros((slots, people), dtype=np.int32)
    return Traces(ids, Clock(24, slots), Regions("poi", np.zeros((1, 2))))


@CASES
@given(cities(), SHARES)
def test_each_person_keeps_the_whole_number_beside_the_share(traces, share):
    thinned = kept(traces, share)
    same = (thinned.by_slot == traces.by_slot) | (thinned.by_slot == -1)
    assert same.all()
    off = observed(thinned) - share * observed(traces)
    assert (np.abs(off) < 1 + 1e-9).all()


@CASES
@given(cities(), SHARES, SHARES)
def test_a_smaller_share_keeps_a_part_of_a_larger_one(traces, one, other):
    small, large = sorted([one, other])
    few, many = kept(traces, small).by_slot, kept(traces, large).by_slot
    assert (few[few >= 0] == many[few >= 0]).all()


def test_whole_numbers_are_met_exactly():
    thinned = kept(uniform(people=500, slots=20), 0.4)
    assert (observed(thinned) == 8).all()


def test_short_traces_keep_their_share_on_average():
    # One observed point: rounding would leave nobody at .4 and everybody at .6.
    for share in (0.4, 0.6):
        total = observed(kept(uniform(people=20_000, slots=1), share)).sum()
        assert stats.binomtest(int(total), 20_000, share).pvalue > 1e-3


def test_every_subset_is_equally_likely():
    thinned = kept(uniform(people=60_000, slots=4), 0.5, seed=3)
    subset = (thinned.by_slot >= 0).T @ np.array([1, 2, 4, 8])
    counts = np.bincount(subset, minlength=16)
    pairs = [0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100]
    assert counts[pairs].sum() == 60_000
    assert stats.chisquare(counts[pairs]).pvalue > 1e-3


def test_the_ends_of_the_range():
    traces = random_traces(5, 20, 5, Clock(4, 3))
    assert kept(traces, 1.0) is traces
    assert kept(traces, 0.0).observed_share == 0
    # Just below 1 may round to everything but never to more.
    almost = kept(traces, np.nextafter(1, 0))
    assert (observed(almost) <= observed(traces)).all()


def test_people_keep_their_names_and_the_input_is_untouched():
    ids = np.zeros((4, 2), dtype=np.int32)
    regions = Regions("poi", np.zeros((1, 2)))
    traces = Traces(ids, Clock(12, 2), regions, ("Ada", "Ben"))
    before = ids.copy()
    thinned = kept(traces, 0.5)
    assert thinned.names == ("Ada", "Ben")
    assert keep_last_days(traces, 1).names == ("Ada", "Ben")
    np.testing.assert_array_equal(ids, before)


def test_work_in_blocks_covers_everybody(monkeypatch):
    monkeypatch.setattr(reporting, "_POINTS_AT_ONCE", 60)
    told = []
    thinned = keep_share(
        uniform(people=50, slots=20),
        0.25,
        np.random.default_rng(0),
        lambda name, done, total: told.append((name, done, total)),
    )
    assert (observed(thinned) == 5).all()
    assert told[-1] == ("reporting", 50, 50)


@CASES
@given(cities(), st.data())
def test_the_latest_days_are_the_end_of_the_trace(traces, data):
    days = data.draw(st.integers(1, traces.clock.days))
    latest = keep_last_days(traces, days)
    assert latest.clock.days == days
    np.testing.assert_array_equal(latest.by_slot, traces.by_slot[-latest.slots :])
    assert np.shares_memory(latest.by_slot, traces.by_slot)


def test_the_latest_days_know_their_date():
    ids = np.zeros((10, 1), dtype=np.int32)
    clock = Clock(12, 5, start="2020-02-27")
    traces = Traces(ids, clock, Regions("poi", np.zeros((1, 2))))
    assert keep_last_days(traces, 2).clock.start == "2020-03-01"


@pytest.mark.parametrize("days", [0, 6, -1, 2.5, True])
def test_days_that_are_not_there_are_refused(days):
    with pytest.raises(SettingsError, match="last_days"):
        keep_last_days(random_traces(1, 3, 3, Clock(4, 5)), days)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_outside_the_unit_interval_are_refused(share):
    with pytest.raises(SettingsError, match="trace_share"):
        kept(random_traces(1, 3, 3, Clock(4, 5)), share)
    with pytest.raises(SettingsError, match="trace_share"):
        ReportingSettings(trace_share=share)


def test_a_report_takes_the_days_first_and_then_the_share():
    traces = uniform(people=100, slots=10)
    chosen = ReportingSettings(trace_share=0.5, last_days=4)
    reported = report(traces, chosen, np.random.default_rng(0))
    assert reported.clock.days == 4
    assert (observed(reported) == 2).all()
    assert report(traces, ReportingSettings(), np.random.default_rng(0)) is traces
    with pytest.raises(SettingsError, match="last_days=0"):
        ReportingSettings(last_days=0)
