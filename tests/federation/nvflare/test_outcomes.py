"""Why a job failed, from its process to the administrator."""

import pytest

from epifalcon import errors
from epifalcon.errors import EpifalconError, SettingsError, TooFewSitesError
from epifalcon.federation.nvflare import outcomes
from epifalcon.federation.nvflare.components import KitStorage
from epifalcon.federation.nvflare.falcon import FalconCoordinator
from epifalcon.federation.nvflare.job_process import JOB


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = KitStorage("jobs")
    made.create_object("/job", b"", {"name": "first", "status": "RUNNING"}, True)
    return made


def test_the_reason_goes_into_the_record_with_the_status(store, tmp_path, monkeypatch):
    monkeypatch.setenv(JOB, "job")
    outcomes.tell(tmp_path, TooFewSitesError("school refused"))
    store.update_meta("/job", {"status": "FINISHED:EXECUTION_EXCEPTION"}, False)
    assert outcomes.why(store.get_meta("/job")) == (
        "TooFewSitesError",
        "school refused",
    )


@pytest.mark.parametrize("status", ["RUNNING", "FINISHED:COMPLETED"])
def test_what_did_not_fail_has_no_reason(store, tmp_path, monkeypatch, status):
    monkeypatch.setenv(JOB, "job")
    outcomes.tell(tmp_path, TooFewSitesError("school refused"))
    store.update_meta("/job", {"status": status}, False)
    assert outcomes.why(store.get_meta("/job")) == ("", "")


def test_a_job_of_another_number_has_another_reason(store, tmp_path, monkeypatch):
    monkeypatch.setenv(JOB, "another")
    outcomes.tell(tmp_path, TooFewSitesError("school refused"))
    store.update_meta("/job", {"status": "FINISHED:ABORTED"}, False)
    assert outcomes.why(store.get_meta("/job")) == ("", "")


def test_a_job_that_was_never_deployed_tells_what_nvflare_knows():
    lines = ["server: OK", "a: no code may come with a job"]
    record = {"status": "FINISHED:FAILED_TO_RUN", "job_deploy_detail": lines}
    assert outcomes.why(record) == ("", "a: no code may come with a job")
    assert outcomes.why({**record, "status": "FINISHED:COMPLETED"}) == ("", "")
    assert outcomes.why({**record, "job_deploy_detail": lines[:1]}) == ("", "")


def test_the_coordinator_leaves_its_reason(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB, "7")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    made = FalconCoordinator(run="one", order={}, conduct={}, resume=False)
    with pytest.raises(SettingsError, match="the run exists"):
        made.coordinate(None, tmp_path)
    record = {"status": "FINISHED:EXECUTION_EXCEPTION"}
    kind, words = outcomes.why({**record, **outcomes.told(tmp_path, "/7")})
    assert kind == "SettingsError"
    assert "the run exists; go on with it by resume" in words


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("TooFewSitesError", "x", 7),
        ("SettingsError", "x", 2),
        ("BudgetExceededError", "x", 4),
        ("StoppedError", "the job was stopped; gone: school", 7),
        ("StoppedError", "the job was stopped", 130),
        ("annotations", "x", 1),
        ("", "", 1),
    ],
)
def test_the_exit_code_is_that_of_the_error(kind, words, code):
    found = outcomes.error_of(kind, words)
    assert isinstance(found, EpifalconError)
    assert found.exit_code == code
    assert errors.EpifalconError.exit_code == 1
