"""Sums over sites, and the region model that is fitted to them."""

from dataclasses import replace

import pytest
import torch

from epifalcon.errors import DataError
from epifalcon.federation.preparing import divide
from epifalcon.federation.settings import PrivacySettings
from epifalcon.federation.sites import tallies
from tests.federation.sites.test_coordinating import homes, order


def counted(settings):
    return [
        tallies.count(home, divide(home, settings, 3), settings) for home in homes()
    ]


def test_one_thread_alone_fits_what_must_be_rounded_alike(monkeypatch):
    """A town is too small for threads to round otherwise; a city is not."""
    settings = order("off").settings
    tally, clock = tallies.total(counted(settings)), homes()[0].traces.clock
    before, seen, fit = torch.get_num_threads(), [], tallies.states_by_fold

    def watched(*given, **named):
        seen.append(torch.get_num_threads())
        return fit(*given, **named)

    monkeypatch.setattr(tallies, "states_by_fold", watched)
    torch.set_num_threads(3)
    try:
        tallies.fit_region_states(tally, clock, settings, 3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
def test_what_sites_count_is_taken_and_what_they_cannot_is_not(kind):
    settings = order(kind).settings
    traces = homes()[0].traces
    tally = counted(settings)[0]
    tallies.require_counted(tally, settings, traces.people, traces.clock)
    other = replace(settings, privacy=PrivacySettings(mode="off"))
    if kind == "off":
        other = replace(settings, privacy=PrivacySettings(mode="paper"))
    with pytest.raises(DataError, match=r"a tally (has|lacks)"):
        tallies.require_counted(tally, other, traces.people, traces.clock)
    if kind != "local":
        visitors = tally.flows.visitors + 1e9
        wrong = replace(tally, flows=replace(tally.flows, visitors=visitors))
        with pytest.raises(DataError, match="more than 27 people"):
            tallies.require_counted(wrong, settings, traces.people, traces.clock)


def test_no_cases_leave_in_mode_local_unless_a_region_model_is_asked_for():
    settings = order("local").settings
    assert counted(settings)[0].reported is None
    assert counted(settings)[0].mobility is not None
    region = replace(settings.region, macro_cases="reported")
    assert tallies.needs_reported(replace(settings, region=region))
    assert counted(order("paper").settings)[0].reported is not None
