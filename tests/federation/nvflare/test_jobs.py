"""A job names classes and holds no code; why it failed reaches the administrator."""

import json

import pytest

from epifalcon import errors
from epifalcon.errors import EpifalconError, SettingsError, TooFewSitesError
from epifalcon.federation.nvflare.components import KitStorage
from epifalcon.federation.nvflare.jobs import (
    COORDINATOR,
    JOB,
    PLUMBING,
    SITE,
    Job,
    Part,
    Reason,
    error_of,
    job_of,
    server_run,
    write_job,
    write_reason,
)
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.sites.server_run import Conduct
from tests.studies import town

ORDER = FalconOrder(settings=town.FALCON, rules=SiteRules(), seed=1)
NIGHT = job_of("night-run", ORDER, Conduct(), 2)


def paths(value):
    """Every class path anywhere in a job's configuration."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item)}
    if isinstance(value, dict):
        inner = {path for item in value.values() for path in paths(item)}
        return inner | ({value["path"]} if "path" in value else set())
    return set()


def test_a_job_is_three_json_files_that_name_no_class_but_the_plumbing(tmp_path):
    place = write_job(NIGHT, tmp_path)
    files = sorted(p.relative_to(place).as_posix() for p in place.rglob("*.*"))
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    meta = json.loads((place / "meta.json").read_text())
    assert (meta["min_clients"], meta["deploy_map"]) == (2, {"app": ["@ALL"]})
    found = set()
    for path in (place / "app" / "config").iterdir():
        found |= paths(json.loads(path.read_text()))
    assert found == {*PLUMBING}
    assert {NIGHT.coordinator.path, NIGHT.site.path} == {COORDINATOR, SITE}


@pytest.mark.parametrize("path", ["", "os", "os.system('x')", ".a", "a b.c", "a/b.c"])
def test_a_part_is_a_dotted_path(path):
    with pytest.raises(SettingsError, match="path="):
        Part(path=path)


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a"])
def test_a_jobs_name_can_be_a_folder(name):
    with pytest.raises(SettingsError, match="name="):
        Job(name=name, coordinator=NIGHT.coordinator, site=NIGHT.site)


def test_a_method_that_does_not_run_over_sites_is_refused():
    with pytest.raises(SettingsError, match="method='os' must be one of falcon"):
        server_run("os")


@pytest.mark.parametrize(
    ("job", "status", "found"),
    [
        ("job", "FINISHED:EXECUTION_EXCEPTION", ("TooFewSitesError", "school")),
        ("job", "RUNNING", ("", "")),
        ("job", "FINISHED:COMPLETED", ("", "")),
        ("another", "FINISHED:ABORTED", ("", "")),
    ],
)
def test_the_reason_goes_into_the_record_with_the_status_of_a_failure(
    tmp_path, monkeypatch, job, status, found
):
    monkeypatch.chdir(tmp_path)
    store = KitStorage("jobs")
    store.create_object("/job", b"", {"name": "first", "status": "RUNNING"}, True)
    monkeypatch.setenv(JOB, job)
    write_reason(tmp_path, TooFewSitesError("school"))
    store.update_meta("/job", {"status": status}, False)
    assert Reason.of(store.get_meta("/job")) == Reason(*found)


def test_a_job_that_was_never_deployed_tells_what_nvflare_knows():
    lines = ["server: OK", "a: no code may come with a job"]
    record = {"status": "FINISHED:FAILED_TO_RUN", "job_deploy_detail": lines}
    assert Reason.of(record).why == "a: no code may come with a job"
    assert Reason.of({**record, "status": "FINISHED:COMPLETED"}) == Reason()
    assert Reason.of({**record, "job_deploy_detail": lines[:1]}) == Reason()


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("TooFewSitesError", "x", 7),
        ("SettingsError", "x", 2),
        ("StoppedError", "the job was stopped; gone: school", 7),
        ("StoppedError", "the job was stopped", 130),
        ("annotations", "x", 1),
        ("", "", 1),
    ],
)
def test_the_exit_code_is_that_of_the_error(kind, words, code):
    found = error_of(kind, words)
    assert isinstance(found, EpifalconError)
    assert found.exit_code == code
    assert errors.EpifalconError.exit_code == 1
