"""Sums over sites, and the region model that is fitted to them."""

from dataclasses import replace

import pytest

from epifalcon.errors import DataError
from epifalcon.federation import preparing
from epifalcon.federation.preparing import divide
from epifalcon.federation.settings import PrivacySettings
from tests.federation.sites.test_coordinating import homes, order


def counted(settings):
    return [
        preparing.count_tally(home, divide(home, settings, 3), settings)
        for home in homes()
    ]


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
def test_what_sites_count_is_taken_and_what_they_cannot_is_not(kind):
    settings = order(kind).settings
    traces = homes()[0].traces
    tally = counted(settings)[0]
    preparing.require_counted(tally, settings, traces.people, traces.clock)
    other = replace(settings, privacy=PrivacySettings(mode="off"))
    if kind == "off":
        other = replace(settings, privacy=PrivacySettings(mode="paper"))
    with pytest.raises(DataError, match=r"a tally (has|lacks)"):
        preparing.require_counted(tally, other, traces.people, traces.clock)
    if kind != "local":
        visitors = tally.flows.visitors + 1e9
        wrong = replace(tally, flows=replace(tally.flows, visitors=visitors))
        with pytest.raises(DataError, match="more than 27 people"):
            preparing.require_counted(wrong, settings, traces.people, traces.clock)


def test_no_cases_leave_in_mode_local_unless_a_region_model_is_asked_for():
    settings = order("local").settings
    assert counted(settings)[0].reported is None
    assert counted(settings)[0].mobility is not None
    region = replace(settings.region, macro_cases="reported")
    assert replace(settings, region=region).pseudo_follows_cases
    assert counted(order("paper").settings)[0].reported is not None
