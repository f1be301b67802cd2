"""A job names classes and holds no code; why it failed reaches the administrator."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

from epifalcon.errors import (
    CorruptFileError,
    DataError,
    EpifalconError,
    SettingsError,
    TooFewSitesError,
    UnreachableError,
)
from epifalcon.federation.falcon.site_run import FalconRunRequest
from epifalcon.federation.network.site_calls import RunOptions
from epifalcon.federation.nvflare.components import KitStorage
from epifalcon.federation.nvflare.jobs import (
    COMPLETED,
    JOB,
    Admin,
    FederatedJob,
    JobStatus,
    connect,
    error_of,
    job_of,
    server_run,
    write_job,
    write_reason,
)
from epifalcon.federation.nvflare.processes import free_ports
from epifalcon.federation.nvflare.provisioning import (
    PLUMBING,
    Deployment,
    Kit,
    provision,
)
from epifalcon.federation.settings import SiteRules
from tests.studies import town

ORDER = FalconRunRequest(settings=town.FALCON, rules=SiteRules(), seed=1)
FAILED = "FINISHED:EXECUTION_EXCEPTION"


def paths(value):
    """Every class path anywhere in a job's configuration."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item)}
    if isinstance(value, dict):
        inner = {path for item in value.values() for path in paths(item)}
        return inner | ({value["path"]} if "path" in value else set())
    return set()


def test_a_job_is_three_json_files_that_name_no_class_but_the_plumbing(tmp_path):
    place = write_job(job_of("night-run", ORDER, RunOptions(), 2), tmp_path)
    files = {p.relative_to(place).as_posix(): p for p in place.rglob("*.*")}
    configs = {f"app/config/config_fed_{end}.json" for end in ("client", "server")}
    assert set(files) == {"meta.json", *configs}
    meta = json.loads(files["meta.json"].read_text())
    assert (meta["min_clients"], meta["deploy_map"]) == (2, {"app": ["@ALL"]})
    found = [paths(json.loads(files[name].read_text())) for name in configs]
    assert set.union(*found) == {*PLUMBING}


def test_a_jobs_name_can_be_a_folder_and_its_method_runs_over_sites():
    for name in ("", "../x", "a b", "-a"):
        with pytest.raises(SettingsError, match="name="):
            FederatedJob(name=name, args={})
    with pytest.raises(SettingsError, match="method='os' must be one of falcon"):
        server_run("os")


@pytest.mark.parametrize(
    ("job", "status", "found"),
    [
        ("job", FAILED, ("TooFewSitesError", "school")),
        ("job", "RUNNING", ("", "")),
        ("job", COMPLETED, ("TooFewSitesError", "school")),
        ("another", "FINISHED:ABORTED", ("", "")),
    ],
)
def test_the_reason_goes_into_the_record_with_the_status_at_the_end(
    tmp_path, monkeypatch, job, status, found
):
    monkeypatch.chdir(tmp_path)
    store = KitStorage("jobs")
    store.create_object("/job", b"", {"name": "first", "status": "RUNNING"}, True)
    monkeypatch.setenv(JOB, job)
    write_reason(tmp_path, TooFewSitesError("school"))
    store.update_meta("/job", {"status": status}, False)
    read = JobStatus.of("job", store.get_meta("/job"))
    assert (read.kind, read.why) == found


def test_a_job_that_was_never_deployed_tells_what_nvflare_knows():
    lines = ["server: OK", "a: no code may come with a job"]
    for status, listed, why in (
        (FAILED, lines, lines[1]),
        (FAILED, lines[:1], ""),
        (COMPLETED, lines, ""),
    ):
        record = {"status": status, "job_deploy_detail": listed}
        assert JobStatus.of("job", record).why == why


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


class Session:
    """Stands for NVFlare's session."""

    def __init__(self, *sites, error=None):
        self.sites, self.error = sites, error

    def get_system_info(self):
        clients = [SimpleNamespace(name=name) for name in self.sites]
        server = SimpleNamespace(status="stopped")
        return SimpleNamespace(client_info=clients, server_info=server)

    def list_jobs(self):
        return [
            {"job_id": "2", "job_name": "b", "status": "RUNNING", "submit_time": "t2"},
            {"job_id": "1", "job_name": "a", "status": "X", "submit_time": "t1"},
        ]

    def get_job_meta(self, _):
        raise self.error


def admin_of(session):
    deployment = Deployment(project="p", host="localhost", sites=("a", "b"))
    return Admin(session, Kit(Path(), "admin", deployment))


def test_missing_sites_are_named():
    status = admin_of(Session("b")).status()
    assert (status.connected, status.missing) == (("b",), ("a",))
    assert [job.job for job in status.jobs] == ["1", "2"]
    # It answers: that NVFlare calls a server without a job stopped says nothing.
    assert status.server == "running"
    with pytest.raises(EpifalconError, match=r"1 of 2 sites .* missing: a"):
        admin_of(Session("b")).wait_for_sites(2, 0.0)
    assert admin_of(Session("b", "a")).wait_for_sites(2, 0.0) == ("a", "b")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (JobNotFound("x"), DataError, "cannot read job x: the server has no"),
        (NoConnection("x"), UnreachableError, "cannot read job x: no connection"),
        (OSError("odd"), EpifalconError, "cannot read job x: odd"),
    ],
)
def test_nvflares_errors_become_ours(error, kind, message):
    with pytest.raises(kind, match=message) as caught:
        admin_of(Session(error=error)).job("x")
    assert caught.value.__suppress_context__


def test_a_server_that_is_not_there_and_a_wrong_kit_are_one_line(tmp_path, capfd):
    ports = dict(zip(("port", "admin_port"), free_ports(2), strict=True))
    deployment = Deployment(project="p", host="localhost", sites=("a",), **ports)
    kits = provision(deployment, tmp_path / "kits")
    with pytest.raises(DataError, match="is the kit of site, expected that of admin"):
        connect(kits["a"]).__enter__()
    refused = f"localhost:{ports['admin_port']}: Connection refused"
    with pytest.raises(UnreachableError, match=refused):
        connect(kits["admin"], limit=1.0).__enter__()
    assert capfd.readouterr() == ("", "")
    startup, theirs = kits["admin"] / "startup", kits["a"] / "startup"
    mine = {path: path.read_bytes() for path in startup.iterdir()}
    for name, content in (
        ("client.crt", b"nonsense"),
        ("client.crt", (theirs / "client.crt").read_bytes()),
        ("client.crt", (theirs / "rootCA.pem").read_bytes()),
        ("client.key", (theirs / "client.key").read_bytes()),
        ("client.key", None),
    ):
        (startup / name).unlink()
        if content is not None:
            (startup / name).write_bytes(content)
        with pytest.raises(CorruptFileError, match=f"{name}: "):
            connect(kits["admin"], limit=1.0).__enter__()
        for path, before in mine.items():
            path.write_bytes(before)
