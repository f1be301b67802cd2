"""The ends of a job: whole runs of plain values, calls at once, no text of an error."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from nvflare.collab import CollabCallError
from nvflare.collab.api.app import ClientApp, ServerApp
from nvflare.collab.api.context import set_call_context
from nvflare.collab.api.exceptions import RunAborted

from epifalcon.cli.federate import _require_success
from epifalcon.errors import DataError, SettingsError, StoppedError, TooFewSitesError
from epifalcon.federation.falcon.site_run import FalconRunRequest
from epifalcon.federation.network.signed_calls import SignedTransport
from epifalcon.federation.network.site_calls import (
    SUMMARY,
    InMemoryTransport,
    RunOptions,
)
from epifalcon.federation.nvflare.endpoints import (
    GONE,
    CollabTransport,
    ServerEndpoint,
    SiteEndpoint,
)
from epifalcon.federation.nvflare.jobs import JOB, JobStatus, job_of, read_reason
from epifalcon.federation.nvflare.provisioning import Deployment, open_kit, provision
from epifalcon.federation.preparation import split_sites
from epifalcon.federation.settings import SiteRules
from epifalcon.studies.federation_rehearsal import write_site
from tests.federation.field.field_sites import PRIVATE, task_of
from tests.federation.field.field_sites import request_of as field_request_of
from tests.studies import town

SITES, SECRET = ("a", "b"), "SECRET-REGION-17"
RUN_REQUESTS = {
    "falcon": FalconRunRequest(
        settings=replace(town.FALCON, model=replace(town.FALCON.model, rounds=2)),
        rules=SiteRules(),
        seed=3,
    ),
    "falcon-field": field_request_of(task_of(privacy=PRIVATE["sums"])),
}


def sites_in(folder, method):
    ends = {}
    parts = split_sites(town.traces(), town.known(), len(SITES))
    for name, data in zip(SITES, parts, strict=True):
        if not (folder / name).exists():
            write_site(folder / name, data, 0)
        ends[name] = SiteEndpoint(method, "one").prepare(name, folder / name)
    return InMemoryTransport(ends)


def coordinator(method, run="one", **changes):
    args = job_of(run, RUN_REQUESTS[method], RunOptions(), 2).args
    return ServerEndpoint(**{**args, **changes})


@pytest.mark.parametrize("method", RUN_REQUESTS)
def test_a_job_of_plain_values_is_a_whole_run_resumed_only_on_request(
    tmp_path, method, monkeypatch
):
    monkeypatch.setenv(JOB, "7")
    server = tmp_path / "server"
    coordinator(method).coordinate(sites_in(tmp_path, method), server)
    path = server / "runs" / "one" / SUMMARY
    summary = json.loads(path.read_text())
    assert (summary["method"], summary["finished"]) == (method, True)
    for name in SITES:
        assert (tmp_path / name / "runs" / "one" / "risks.csv").exists()
    before = path.read_text()
    with pytest.raises(SettingsError, match="the run exists"):
        coordinator(method).coordinate(sites_in(tmp_path, method), server)
    assert path.read_text() == before
    record = {"status": "FINISHED:EXECUTION_EXCEPTION", **read_reason(server, "/7")}
    assert JobStatus.of("7", record).kind == "SettingsError"


class Lossy(InMemoryTransport):
    """The first site answers nothing after the first calls."""

    def call(self, calls, seconds):
        self.done = getattr(self, "done", 0) + 1
        here = {s: c for s, c in calls.items() if self.done < 8 or s != SITES[0]}
        failures = dict.fromkeys(calls.keys() - here.keys(), "away")
        return super().call(here, seconds)[0], failures


def test_a_run_that_lost_a_site_names_it_in_summary_and_job_record(
    tmp_path, monkeypatch
):
    method = "falcon"
    monkeypatch.setenv(JOB, "7")
    server = tmp_path / "server"
    lossy = Lossy(sites_in(tmp_path, method)._answers)
    coordinator(method).coordinate(lossy, server)
    summary = json.loads((server / "runs" / "one" / SUMMARY).read_text())
    assert (summary["finished"], summary["sites"]["lost"]) == (True, [SITES[0]])
    record = {"status": "FINISHED:COMPLETED", **read_reason(server, "/7")}
    status = JobStatus.of("7", record)
    assert status.why == f"the run was completed without {SITES[0]}"
    with pytest.raises(TooFewSitesError):
        _require_success(status)


@pytest.mark.parametrize("method", RUN_REQUESTS)
def test_a_request_with_an_unknown_setting_is_refused(tmp_path, method):
    args = job_of("one", RUN_REQUESTS[method], RunOptions(), 2).args
    made = coordinator(method, request={**args["request"], "unheard": 1})
    with pytest.raises(SettingsError, match="unheard"):
        made.coordinate(None, tmp_path / "server")


@pytest.mark.parametrize("run", ["../up", "", "a/b"])
def test_a_name_that_leads_out_of_the_kit_is_refused(tmp_path, run):
    made = coordinator("falcon")
    made._run = run
    with pytest.raises(DataError, match="must be letters"):
        made.coordinate(None, tmp_path / "server")


@pytest.fixture
def in_context(tmp_path):
    deployment = Deployment(project="p", host="localhost", sites=("clinic-a",))
    kits = provision(deployment, tmp_path / "kits")

    def enter(app, name):
        app.name = name
        app._workspace = SimpleNamespace(get_root_dir=lambda: str(kits[name]))
        app._client_proxies = []
        set_call_context(app.new_context(name, name))
        return app

    yield enter
    set_call_context(None)


class Broken(SiteEndpoint):
    """A site that fails before or during its first call."""

    def prepare(self, *_):
        if self._run == "unready":
            raise FileNotFoundError(SECRET)
        return raising(ValueError(SECRET))


@pytest.mark.parametrize(
    ("run", "kind"), [("unready", "FileNotFoundError"), ("ready", "ValueError")]
)
def test_of_a_sites_error_only_the_kind_leaves(in_context, caplog, tmp_path, run, kind):
    end = in_context(ClientApp(Broken("falcon", run)), "clinic-a").obj
    end.open()
    assert end.answer(b"") == {"ready": "UnsignedError"}.get(run, kind)
    own = open_kit(tmp_path / "kits" / "server").credentials()
    transport = SignedTransport(transport_of(**{"clinic-a": end.answer}), run, own)
    failed = {"clinic-a": f"the site failed with {kind}"}
    assert transport.call({"clinic-a": b"call"}, LIMIT) == ({}, failed)
    assert f"{kind} at" in caplog.text
    assert SECRET not in caplog.text


class Failing(ServerEndpoint):
    def __init__(self, error):
        super().__init__("falcon", "one", {}, {}, resume=False)
        self.error = error

    def coordinate(self, *_):
        raise self.error


def test_a_site_holds_few_calls_at_the_same_time():
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(call):
        begun.release()
        assert go_on.wait(10.0)
        return call

    end = SiteEndpoint("falcon", "one")
    end._answer = slow
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(end.answer, b"call") for _ in range(4)]
        assert all(begun.acquire(timeout=10.0) for _ in calls)
        assert {end.answer(b"call") for _ in range(3)} == {"TooManyCalls"}
        go_on.set()
        assert {one.result() for one in calls} == {b"call"}
    assert end.answer(b"call") == b"call"


def test_a_coordinators_error_fails_the_job_without_its_text(in_context, caplog):
    end = in_context(ServerApp(Failing(ValueError(SECRET))), "server")
    with pytest.raises(RuntimeError, match="ValueError") as caught:
        end.obj.run()
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    assert SECRET not in caplog.text
    # To be stopped is no failure.
    in_context(ServerApp(Failing(StoppedError("s"))), "server").obj.run()


LIMIT = 30.0


class Proxy:
    """Stands for NVFlare's proxy of a site: called with a limit, then with a call."""

    def __init__(self, name, answer):
        self.name = name
        self.answer = answer

    def __call__(self, timeout):
        assert timeout > 0
        return self


def transport_of(lost=None, stopped=lambda: False, **answers):
    proxies = [Proxy(name, answer) for name, answer in answers.items()]
    return CollabTransport(proxies, set() if lost is None else lost, stopped)


def raising(error):
    def answer(_):
        raise error

    return answer


def test_each_site_gets_its_own_call_and_all_at_the_same_time():
    # Nobody passes before all have arrived, so calls in turn would never end.
    together = threading.Barrier(5, timeout=LIMIT)

    def answer(name):
        return lambda call: together.wait() * b"" + name.encode() + call

    sites = {f"s{number}": answer(f"s{number}") for number in range(5)}
    transport = transport_of(**sites)
    assert transport.sites == tuple(sites)
    answers, failed = transport.call({name: name.encode() for name in sites}, LIMIT)
    assert answers == {name: 2 * name.encode() for name in sites}
    assert failed == {}
    assert transport.call({}, LIMIT) == ({}, {})


def test_a_lost_site_is_not_called_until_it_is_back():
    lost, calls = {"a"}, []
    transport = transport_of(lost, a=lambda call: calls.append(call) or b"ok")
    assert transport.call({"a": b"1"}, LIMIT) == ({}, {"a": GONE})
    assert calls == []
    lost.discard("a")
    assert transport.call({"a": b"2"}, LIMIT) == ({"a": b"ok"}, {})


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (TimeoutError("SECRET"), "no answer within 30 s"),
        ("remote call returned rc='target_unreachable'", GONE),
        ("remote call returned rc='comm_error'", "the connection failed"),
        ("SECRET", "the call failed (str)"),
    ],
)
def test_nvflares_reasons_become_words_without_the_sites_text(cause, message):
    error = CollabCallError("a", "answer", cause, remote_traceback="SECRET")
    found = transport_of(a=raising(error)).call({"a": b""}, LIMIT)
    assert found == ({}, {"a": message})


def test_a_stopped_job_asks_nobody_and_waits_for_nobody():
    calls = []
    transport = transport_of(stopped=lambda: True, a=calls.append)
    with pytest.raises(StoppedError):
        transport.call({"a": b""}, LIMIT)
    assert calls == []
    stop, go_on = threading.Event(), threading.Event()
    transport = transport_of(stopped=stop.is_set, a=lambda _: go_on.wait(LIMIT))
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(StoppedError):
        transport.call({"a": b""}, LIMIT)
    go_on.set()
    with pytest.raises(StoppedError):
        transport_of(a=raising(RunAborted())).call({"a": b""}, LIMIT)


def test_what_is_not_bytes_and_a_name_that_is_no_site_are_refused():
    transport = transport_of(a=lambda _: [1], b=lambda _: "ValueError")
    assert transport.call({"a": b"", "b": b""}, LIMIT)[1] == {
        "a": "the site sent list, expected bytes",
        "b": "the site failed with ValueError",
    }
    with pytest.raises(SettingsError, match="'c'"):
        transport.call({"c": b""}, LIMIT)
