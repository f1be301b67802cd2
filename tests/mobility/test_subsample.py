import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.mobility import subsample
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.subsample import ReportingSettings, keep_last_days, report
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import cities

CASES = settings(max_examples=80, deadline=None, derandomize=True)
SHARES = st.floats(0, 1)


def observed(traces: Traces) -> np.ndarray:
    return np.count_nonzero(traces.by_slot >= 0, axis=0)


def selected(traces: Traces, share: float, seed: int = 0) -> Traces:
    chosen = ReportingSettings(trace_share=share)
    return report(traces, chosen, np.random.default_rng(seed))


def uniform(people: int, slots: int, **clock) -> Traces:
    ids = np.zeros((slots, people), dtype=np.int32)
    names = tuple(map(str, range(people)))
    place = Regions("poi", np.zeros((1, 2)))
    return Traces(ids, Clock(24, slots, **clock), place, names)


@CASES
@given(cities(), SHARES, SHARES)
def test_each_person_keeps_the_whole_number_beside_the_share(traces, one, other):
    small, large = sorted([one, other])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subsample, "_POINTS_PER_BLOCK", 3 * traces.slots)
        few, many = selected(traces, small), selected(traces, large)
    for thinned, share in ((few, small), (many, large)):
        assert ((thinned.by_slot == traces.by_slot) | (thinned.by_slot == -1)).all()
        off = observed(thinned) - share * observed(traces)
        assert (np.abs(off) < 1 + 1e-9).all()
    # A smaller share keeps a part of a larger one.
    seen = few.by_slot >= 0
    assert (few.by_slot[seen] == many.by_slot[seen]).all()


def test_short_traces_keep_their_share_on_average():
    # One observed point: rounding would leave nobody at .4 and everybody at .6.
    for share in (0.4, 0.6):
        total = observed(selected(uniform(people=20_000, slots=1), share)).sum()
        assert stats.binomtest(int(total), 20_000, share).pvalue > 1e-3


def test_every_subset_is_equally_likely():
    thinned = selected(uniform(people=60_000, slots=4), 0.5, seed=3)
    subset = (thinned.by_slot >= 0).T @ np.array([1, 2, 4, 8])
    counts = np.bincount(subset, minlength=16)
    pairs = [0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100]
    assert counts[pairs].sum() == 60_000
    assert stats.chisquare(counts[pairs]).pvalue > 1e-3


@CASES
@given(cities(), st.data())
def test_the_latest_days_are_the_end_of_the_trace(traces, data):
    days = data.draw(st.integers(1, traces.clock.days))
    latest = keep_last_days(traces, days)
    assert latest.clock.days == days
    np.testing.assert_array_equal(latest.by_slot, traces.by_slot[-latest.slots :])
    assert np.shares_memory(latest.by_slot, traces.by_slot)


def test_a_report_takes_the_days_first_and_then_the_share():
    traces = uniform(people=100, slots=10, start="2020-02-27")
    chosen = ReportingSettings(trace_share=0.5, last_days=4)
    reported = report(traces, chosen, np.random.default_rng(0))
    assert (reported.clock.days, reported.clock.start) == (4, "2020-03-04")
    assert (observed(reported) == 2).all()
    assert reported.names == traces.names
    assert report(traces, ReportingSettings(), np.random.default_rng(0)) is traces
