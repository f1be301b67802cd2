"""The administrator's session: errors in our own words, no traceback of NVFlare's."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

from epifalcon.errors import DataError, EpifalconError
from epifalcon.federation.nvflare.admin import Admin, connect
from epifalcon.federation.nvflare.processes import free_ports
from epifalcon.federation.nvflare.provisioning import Deployment, Kit, provision


class Session:
    """Stands for NVFlare's session."""

    def __init__(self, *sites, error=None):
        self.sites, self.error, self.seen = sites, error, []

    def get_system_info(self):
        clients = [SimpleNamespace(name=name) for name in self.sites]
        server = SimpleNamespace(status="started")
        return SimpleNamespace(client_info=clients, server_info=server)

    def list_jobs(self):
        return [
            {"job_id": "2", "job_name": "b", "status": "RUNNING", "submit_time": "t2"},
            {"job_id": "1", "job_name": "a", "status": "X", "submit_time": "t1"},
        ]

    def submit_job(self, place):
        self.seen.append(json.loads((Path(place) / "meta.json").read_text()))
        return "id"

    def get_job_meta(self, job):
        if self.error:
            raise self.error
        return {"name": job, "status": "FINISHED:COMPLETED", "submit_time_iso": "t"}

    def abort_job(self, job):
        raise RuntimeError(f"{job} is not running")


def admin_of(session):
    deployment = Deployment(project="p", host="localhost", sites=("a", "b"))
    return Admin(session, Kit(Path(), "admin", "admin", deployment))


def test_missing_sites_are_named():
    status = admin_of(Session("b")).status()
    assert (status.connected, status.missing) == (("b",), ("a",))
    assert [job.job for job in status.jobs] == ["1", "2"]
    with pytest.raises(EpifalconError, match=r"1 of 2 sites .* missing: a"):
        admin_of(Session("b")).wait_for_sites(2, 0.0)
    assert admin_of(Session("b", "a")).wait_for_sites(2, 0.0) == ("a", "b")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (JobNotFound("x"), DataError, "cannot look at job x: the server knows no"),
        (NoConnection("x"), EpifalconError, "cannot look at job x: no connection"),
        (OSError("odd"), EpifalconError, "cannot look at job x: odd"),
    ],
)
def test_nvflares_errors_become_ours(error, kind, told):
    with pytest.raises(kind, match=told) as caught:
        admin_of(Session(error=error)).job("x")
    assert caught.value.__suppress_context__


def test_a_server_that_is_not_there_is_told_in_words(tmp_path, capfd):
    port, admin_port = free_ports(2)
    deployment = Deployment(
        project="p", host="localhost", port=port, admin_port=admin_port, sites=("a",)
    )
    kits = provision(deployment, tmp_path / "kits")
    wrong = connect(kits["a"])
    with pytest.raises(DataError, match="is the kit of site, expected that of admin"):
        wrong.__enter__()
    absent = connect(kits["admin"], limit=1.0)
    with pytest.raises(
        EpifalconError, match=f"localhost:{admin_port}: Connection refused"
    ):
        absent.__enter__()
    assert capfd.readouterr() == ("", "")
