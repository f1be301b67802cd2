"""Falcon Field's ends of a job, without a job around them."""

import json

import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.nvflare.falcon_field import (
    CLASSES,
    FieldCoordinator,
    FieldSite,
    job_of,
)
from epifalcon.federation.sites.coordinating import SUMMARY, Conduct
from epifalcon.federation.sites.one_process import split
from epifalcon.settings import as_plain
from epifalcon.studies.rehearsing import lay_out_site
from tests.federation.field.field_sites import PRIVATE, order_of, task_of
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
            self._ends[name] = FieldSite()
            self._ends[name].open(name, folder / name)

    def ask(self, calls, _seconds):
        return {site: self._ends[site].answer(call) for site, call in calls.items()}, {}


def coordinator(**changes):
    order = as_plain(order_of(task_of(privacy=PRIVATE["sums"])))
    words = {"run": "one", "conduct": as_plain(Conduct()), "resume": False}
    return FieldCoordinator(**{**words, "order": order, **changes})


def test_a_job_of_plain_values_is_a_whole_run(tmp_path):
    coordinator().coordinate(Between(tmp_path), tmp_path / "server")
    told = json.loads((tmp_path / "server" / "runs" / "one" / SUMMARY).read_text())
    assert (told["method"], told["finished"]) == ("falcon-field", True)
    for name in SITES:
        assert (tmp_path / name / "runs" / "one" / "risks.csv").exists()
    with pytest.raises(SettingsError, match="the run exists"):
        coordinator().coordinate(Between(tmp_path), tmp_path / "server")


def test_an_order_with_an_unknown_setting_is_refused(tmp_path):
    order = {**as_plain(order_of()), "x": 1}
    with pytest.raises(SettingsError, match="x"):
        coordinator(order=order).coordinate(Between(tmp_path), tmp_path / "server")


def test_a_job_names_installed_classes_and_plain_values_only():
    job = job_of("one", {"a": 1}, {}, 2)
    assert {job.coordinator.path, job.site.path} == set(CLASSES)
    with pytest.raises(DataError, match="not opened"):
        FieldSite().answer(b"")
