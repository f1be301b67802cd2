"""Falcon's ends of a job, without a job around them."""

from dataclasses import replace

import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.nvflare.falcon import (
    CLASSES,
    FalconCoordinator,
    FalconSite,
    job_of,
)
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.coordinating import SUMMARY, Conduct
from epifalcon.federation.sites.one_process import split
from epifalcon.federation.sites.run import Order
from epifalcon.settings import as_plain
from epifalcon.studies.rehearsing import lay_out_site
from tests.studies import town

SITES = ("a", "b")


class Between:
    """Calls of a coordinator answered by sites, without a network."""

    sites = SITES

    def __init__(self, folder):
        homes = split(town.traces(), town.known(), 2)
        self._ends = {}
        for name, home in zip(SITES, homes, strict=True):
            lay_out_site(folder / name, home, 0)
            self._ends[name] = FalconSite()
            self._ends[name].open(name, folder / name)

    def ask(self, calls, _seconds):
        return {site: self._ends[site].answer(call) for site, call in calls.items()}, {}


def coordinator(**changes):
    model = replace(town.FALCON.model, rounds=2)
    settings = replace(town.FALCON, model=model)
    order = Order(settings=settings, rules=SiteRules(), seed=3)
    words = {"run": "one", "conduct": as_plain(Conduct()), "resume": False}
    return FalconCoordinator(**{**words, "order": as_plain(order), **changes})


def test_a_job_of_plain_values_is_a_whole_run(tmp_path):
    coordinator().coordinate(Between(tmp_path), tmp_path / "server")
    assert (tmp_path / "server" / "runs" / "one" / SUMMARY).exists()
    for name in SITES:
        assert (tmp_path / name / "runs" / "one" / "risks.csv").exists()


def test_a_run_of_the_same_name_is_gone_on_with_only_if_told(tmp_path):
    coordinator().coordinate(Between(tmp_path), tmp_path / "server")
    before = (tmp_path / "server" / "runs" / "one" / SUMMARY).read_text()
    with pytest.raises(SettingsError, match="the run exists"):
        coordinator().coordinate(Between(tmp_path), tmp_path / "server")
    assert (tmp_path / "server" / "runs" / "one" / SUMMARY).read_text() == before


@pytest.mark.parametrize("run", ["../up", "", "a/b"])
def test_a_name_that_leads_out_of_the_kit_is_refused(tmp_path, run):
    with pytest.raises(DataError, match="must be letters"):
        coordinator(run=run).coordinate(Between(tmp_path), tmp_path / "server")


def test_an_order_with_an_unknown_setting_is_refused(tmp_path):
    order = {**as_plain(Order(settings=town.FALCON, rules=SiteRules(), seed=1)), "x": 1}
    with pytest.raises(SettingsError, match="x"):
        coordinator(order=order).coordinate(Between(tmp_path), tmp_path / "server")


def test_a_job_names_installed_classes_and_plain_values_only():
    job = job_of("one", {"a": 1}, {}, 2)
    assert {job.coordinator.path, job.site.path} == set(CLASSES)
    assert job.site.args == {}


def test_a_site_that_was_never_opened_says_so():
    with pytest.raises(DataError, match="not opened"):
        FalconSite().answer(b"")
