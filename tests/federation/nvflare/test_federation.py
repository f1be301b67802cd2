"""A real server and two real sites over mutual TLS, as processes on loopback.

One federation serves all tests, in the order of this file: to start one takes longer
than most of what is done with it.
"""

import contextlib
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from epifalcon.cli.federate import _require_success
from epifalcon.errors import DataError, TooFewSitesError, UnreachableError
from epifalcon.federation.falcon.server_run import MODEL
from epifalcon.federation.falcon.site_run import FalconRunRequest
from epifalcon.federation.field.privacy_plan import FieldPlan
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.federation.messages import MessageHeader, pack
from epifalcon.federation.network.site_calls import FAILURES, RunOptions
from epifalcon.federation.network.site_files import SITE_FILE
from epifalcon.federation.network.site_session import LEDGER, RISKS
from epifalcon.federation.nvflare.components import SOCKETS
from epifalcon.federation.nvflare.endpoints import GONE
from epifalcon.federation.nvflare.jobs import RUNS, connect, job_of, write_job
from epifalcon.federation.nvflare.processes import ChildProcess, wait_for_port
from epifalcon.federation.nvflare.provisioning import provision
from epifalcon.federation.preparation import split_sites
from epifalcon.federation.settings import PrivacySettings, SiteRules
from epifalcon.models.tensor_files import read_tensors
from epifalcon.privacy.ledger import Ledger
from epifalcon.studies.federation_rehearsal import run_request_of
from tests.federation.local_sites import sites_oracle
from tests.federation.nvflare.live import (
    PATIENCE,
    SITES,
    federation,
    leaks,
    processes_of,
    until,
)
from tests.studies import town

pytestmark = pytest.mark.xdist_group("federation")
PAPER = PrivacySettings(mode="paper", upload_sigma=0.1, gradient_sigma=0.1)
FIRST, SECOND = SITES
SPY = Path(__file__).with_name("spy.py")
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
"""First bytes of a connection, with default settings."""
MORE_MB = 300
"""More than a message may have."""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with federation(folder) as started:
        yield started
    assert processes_of(folder) == []


@pytest.fixture
def admin(live):
    with live.admin() as session:
        yield session


def test_no_code_comes_with_a_job_and_no_shell_command_runs(admin, tmp_path):
    place = write_job(job_of("unheard", request_of(1), RunOptions(), 1), tmp_path)
    (place / "app" / "custom").mkdir()
    (place / "app" / "custom" / "shipped.py").write_text("")
    job = admin._session.submit_job(str(place))
    assert admin.wait(job, PATIENCE).status == "FINISHED:FAILED_TO_RUN"
    with pytest.raises(Exception, match="not authorized"):
        admin._session.cat_target("server", file="epifalcon.json")
    found = str(admin._session.cat_target(FIRST, file="epifalcon.json"))
    assert "invalid_request" in found
    assert "deployment" not in found
    with pytest.raises(DataError, match="no such job"):
        admin.job("unknown")
    status = admin.status()
    assert status.connected == SITES
    assert [one.job for one in status.jobs] == [job]


def first_words(live, certificate=None):
    """What the server says first to one who knocks with this certificate.

    Under TLS 1.3 a refusal comes only after the client takes itself to be in.
    """
    deployment = live.processes["server"].kit.deployment
    root = live.kits["server"] / "startup" / "rootCA.pem"
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    place = ("127.0.0.1", deployment.port)
    with (
        socket.create_connection(place, PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=deployment.host) as safe,
    ):
        with contextlib.suppress(OSError):
            return safe.recv(100)
        return b""


def test_the_server_speaks_only_to_those_with_a_certificate_of_its_root(
    live, tmp_path, capfd
):
    assert first_words(live, live.kits[FIRST] / "startup")
    deployment = live.processes["server"].kit.deployment
    strangers = provision(deployment, tmp_path / "other")
    assert first_words(live, None) == b""
    assert first_words(live, strangers[FIRST] / "startup") == b""
    capfd.readouterr()
    with pytest.raises(UnreachableError, match="is the kit of this federation"):
        connect(strangers["admin"], 5.0).__enter__()
    said, noise = capfd.readouterr()
    # gRPC's own lines are off where it is not loaded before, as on the command line.
    assert (said, "Traceback" in noise) == ("", False)


def request_of(rounds, privacy=PAPER, **rules):
    model = replace(town.FALCON.model, precision="double", rounds=rounds)
    stopping = replace(town.FALCON.stopping, patience=rounds, check_every=10)
    settings = replace(town.FALCON, model=model, privacy=privacy, stopping=stopping)
    return FalconRunRequest(settings=settings, rules=SiteRules(**rules), seed=3)


def reference(run_request, rounds):
    sites_data = split_sites(town.traces(), town.known(), len(SITES))
    engine = sites_oracle(sites_data, run_request)
    for _ in range(rounds):
        engine.step()
    return engine


def ledger(place):
    return Ledger.from_lines((place / LEDGER).read_text())


def test_a_killed_server_goes_on_as_if_unbroken_and_as_in_one_process(live, admin):
    run_request = request_of(20)
    live.submit(admin, run_request, "broken")
    live.reached("broken", 12)
    own = live.job_process("server")
    live.processes["server"].kill()
    until(lambda: not psutil.pid_exists(own), "the server's part of the job to end")
    at_break = len(ledger(live.place("broken")).releases)
    party = ChildProcess(live.kits["server"], live.environment)
    live.processes["server"] = party
    wait_for_port(party, PATIENCE)
    with live.admin() as again:
        job = live.submit(again, run_request, "broken", resume=True)
        assert again.wait(job, PATIENCE).succeeded
    summary = live.summary("broken")
    engine = reference(run_request, summary["best_round"])
    tensors = engine.state().tensors
    for name, one in read_tensors(live.place("broken") / MODEL).items():
        assert (one - tensors[f"parameter/{name}"]).abs().max() < 1e-9
    table = (live.place("broken") / "scores.csv").read_text().splitlines()[1:]
    found = np.array([float(line.split(",")[2]) for line in table])
    assert np.abs(found - engine.scores()).max() < 1e-9
    while engine.round < 20:
        engine.step()
    expected = set(engine.ledger.releases)
    own = [live.kits[one] / RUNS / "broken" for one in SITES]
    for place in (live.place("broken"), *own):
        listed = [one for one in ledger(place).releases if one in expected]
        assert len(listed) == len(expected) > at_break / 2
        assert set(listed) == expected


def test_messages_may_be_longer_than_a_piece_of_nvflares_stream(live, admin):
    run_request = request_of(1, PrivacySettings())
    model = replace(run_request.settings.model, width=1100)
    settings = replace(run_request.settings, model=model)
    job = live.submit(admin, replace(run_request, settings=settings), "wide")
    assert admin.wait(job, PATIENCE).succeeded
    summary = live.summary("wide")
    assert summary["sites"]["troubles"] == []
    # The parameters are sent to each site, and a gradient of their size comes back.
    for name in ("bytes_sent", "bytes_received"):
        assert summary[name] > len(SITES) * 8 * 2**20


@contextlib.contextmanager
def held_up(process):
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_site_that_is_held_up_is_late_and_then_goes_on(live, admin):
    rules = {"answer_seconds": 2.0, "most_missed": 1000}
    run_request = request_of(40, PrivacySettings(), **rules)
    job = live.submit(admin, run_request, "late")
    live.reached("late", 2)
    failures = live.place("late") / FAILURES
    with held_up(live.job_process(FIRST)):
        until(lambda: failures.exists() and failures.read_text(), "a late site")
    assert admin.wait(job, PATIENCE).succeeded
    found = live.summary("late")["sites"]
    assert found["sites"] == list(SITES)
    assert found["troubles"][0]["why"] == "no answer within 2 s"
    assert {one["site"] for one in found["troubles"]} == {FIRST}


def test_a_site_killed_in_mid_run_is_named_and_the_other_goes_on(live, admin):
    run_request = request_of(40, PrivacySettings(), least_sites=1)
    job = live.submit(admin, run_request, "bereft", least=1)
    live.reached("bereft", 2)
    os.kill(live.job_process(SECOND), signal.SIGKILL)
    status = admin.wait(job, PATIENCE)
    summary = live.summary("bereft")
    assert summary["rounds"] == 40
    assert summary["sites"]["sites"] == [FIRST]
    assert summary["sites"]["lost"] == [SECOND]
    # The results are there, but the administrator's command fails.
    assert status.succeeded
    with pytest.raises(TooFewSitesError, match=f"completed without {SECOND}"):
        _require_success(status)
    troubles = summary["sites"]["troubles"]
    assert {(one["site"], one["why"]) for one in troubles} == {(SECOND, GONE)}
    assert (live.kits[FIRST] / RUNS / "bereft" / RISKS).exists()
    assert not (live.kits[SECOND] / RUNS / "bereft" / RISKS).exists()


def credentials(live, party):
    """What the party's part of a job got from NVFlare, to send messages."""
    found = psutil.Process(live.job_process(party)).environ()
    return {name: one for name, one in found.items() if name.startswith("NVFLARE_JOB_")}


def spy(live, own, origin, target, what, site=FIRST):
    """Send a message in the name of ``origin``; return what became of it."""
    deployment = live.processes["server"].kit.deployment
    startup, port = live.kits[site] / "startup", str(deployment.port)
    return subprocess.run(
        [sys.executable, SPY, startup, port, origin, target, str(what)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **live.environment, **own},
        timeout=PATIENCE,
        check=True,
    ).stdout


def forged_hello(run, site, seed):
    other = replace(request_of(40, PrivacySettings()), seed=seed)
    # A round that is not over yet.
    return pack(other.hello.encode(MessageHeader(run, site, 1000, "hello")))


def test_no_site_can_speak_as_the_server_or_fill_a_memory(live, admin, tmp_path):
    job = live.submit(admin, request_of(2, PrivacySettings()), "before")
    live.reached("before", 1)
    old = credentials(live, FIRST)
    assert admin.wait(job, PATIENCE).succeeded
    # After a restart the site has a new token; the old one is bound to no name.
    live.processes[FIRST].stop()
    live.processes[FIRST] = ChildProcess(live.kits[FIRST], live.environment)
    until(lambda: admin.connected() == SITES, "the site to be back")
    job = live.submit(admin, request_of(40, PrivacySettings()), "spied")
    live.reached("spied", 2)
    new = credentials(live, FIRST)
    assert {*old} == {*new}
    assert old != new
    call = tmp_path / "call"
    call.write_bytes(forged_hello("spied", SECOND, seed=99))
    processes = [live.job_process(name) for name in ("server", SECOND)]
    before = [psutil.Process(one).memory_info().rss for one in processes]
    target, own = f"{SECOND}.{job}", f"{FIRST}.spy"
    with held_up(processes[0]):
        spy(live, old, f"server.{job}", target, call)
        spy(live, new, f"{FIRST}.{job}", target, call)
    with held_up(processes[1]):
        said = spy(live, new, own, f"server.{job}", MORE_MB)
    assert "exceeds configured limit" in said
    after = [psutil.Process(one).memory_info().rss for one in processes]
    assert max(np.subtract(after, before)) < 100 * 2**20
    status = admin.wait(job, PATIENCE)
    assert (status.succeeded, status.why) == (True, "")
    found = live.summary("spied")["sites"]
    assert (found["lost"], found["troubles"]) == ([], [])
    _require_success(status)
    assert spy(live, new, own, SECOND, "cat startup/client.key") == "None\n"
    text = live.texts()
    assert f"dropped a message of {FIRST}.spy in the name of server.{job}" in text
    assert f"dropped a command of {own} to {SECOND}" in text


def test_no_message_opens_a_connection_writes_a_file_or_holds_up_a_run(live, admin):
    job = live.submit(admin, request_of(40, PrivacySettings()), "abused")
    live.reached("abused", 2)
    own, target = f"{FIRST}.spy", f"server.{job}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with held_up(live.job_process("server")):
            spy(live, credentials(live, FIRST), own, target, f":{port}")
        listener.settimeout(3.0)
        with pytest.raises(TimeoutError):
            listener.accept()
    status = admin.wait(job, PATIENCE)
    assert (status.succeeded, status.why) == (True, "")
    assert live.summary("abused")["sites"]["troubles"] == []
    assert not live.received.exists()
    assert f"too many unfinished messages of {FIRST}" in live.texts()


def test_an_unfinished_message_does_not_hold_up_the_end_of_a_run(live, admin):
    job = live.submit(admin, request_of(40, PrivacySettings()), "unended")
    live.reached("unended", 2)
    with held_up(live.job_process("server")):
        spy(live, credentials(live, FIRST), f"{FIRST}.spy", f"server.{job}", "-")
    assert admin.wait(job, PATIENCE).succeeded


def test_connections_that_start_nothing_are_closed(live):
    server = live.processes["server"]
    root = live.kits["server"] / "startup" / "rootCA.pem"
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    own = live.kits[FIRST] / "startup"
    context.load_cert_chain(own / "client.crt", own / "client.key")
    deployment, process = server.kit.deployment, psutil.Process(server.process.pid)
    before = process.num_fds()
    with contextlib.ExitStack() as stack:
        for port in [deployment.port, deployment.admin_port] * 20:
            for safe in (False, True):
                one = socket.create_connection(("127.0.0.1", port), PATIENCE)
                if safe:
                    one = context.wrap_socket(one, server_hostname=deployment.host)
                    one.sendall(HTTP2)
                stack.enter_context(one)
        until(lambda: process.num_fds() > before + 40, "the connections")
        until(lambda: process.num_fds() < before + 20, "the connections to be closed")


def test_nothing_listens_but_the_server_and_no_command_line_holds_a_secret(live, admin):
    deployment = live.processes["server"].kit.deployment
    job = live.submit(admin, request_of(40, PrivacySettings()), "watched")
    live.reached("watched", 1)
    listening, secrets, lines = set(), set(), []
    for name in ("server", *SITES):
        secrets |= {*credentials(live, name).values()}
        for number in (live.processes[name].process.pid, live.job_process(name)):
            process = psutil.Process(number)
            lines.append(process.cmdline())
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    listening.add((name, one.laddr.port))
        folder = live.kits[name] / SOCKETS
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len([one for one in folder.iterdir() if one.is_socket()]) == 1
    admin.stop(job)
    ports = deployment.port, deployment.admin_port
    assert listening == {("server", port) for port in ports}
    # The server's own token is the number of the job; only its signature is secret.
    secrets.remove(job)
    assert len(secrets) > 4
    assert not [word for line in lines for word in line if word in secrets]
    admin.wait(job, PATIENCE)


def test_falcon_field_with_noise_leaves_the_receipts_of_its_plan(live, admin):
    sums = FieldPrivacySettings(mode="sums", epsilon=20.0)
    experiment = replace(town.experiment(), field_privacy=sums)
    run_request = run_request_of("falcon-field", experiment, SiteRules(), 3)
    job = live.submit(admin, run_request, "field")
    assert admin.wait(job, PATIENCE).succeeded
    summary = live.summary("field")
    assert (summary["rounds"], summary["sites"]["troubles"]) == (1, [])
    assert summary["epsilon"]["person"] == pytest.approx(sums.epsilon)
    plan = FieldPlan(sums, town.traces().clock)
    for name in ("server", *SITES):
        found = ledger(live.kits[name] / RUNS / "field")
        assert found.releases == (*plan.opening(), *plan.exchange(1))
        assert found.spent().unprotected == ()


def test_why_a_run_never_began_comes_to_the_administrator(live, admin):
    path = live.kits[SECOND] / SITE_FILE
    before = path.read_text()
    path.write_text(f'{before}modes = ["local"]\n')
    try:
        job = live.submit(admin, request_of(3, least_sites=2), "unwanted")
        status = admin.wait(job, PATIENCE)
    finally:
        path.write_text(before)
    assert not status.succeeded
    assert status.kind == "TooFewSitesError"
    where = f"{SECOND} in round 0, hello: the site reports"
    assert f"{where}: it does not allow" in status.why
    assert "policy.modes" in status.why
    (listed,) = [one for one in admin.jobs() if one.job == job]
    assert listed.why == status.why
    with pytest.raises(TooFewSitesError, match=r"policy\.modes"):
        _require_success(status)
    assert not live.summary("unwanted")["finished"]


def test_no_log_line_reveals_anything_and_nobody_connected_outside(live):
    text = live.texts()
    assert len(text) > 1000
    assert leaks(text, []) == []
    assert not live.outside.exists() or live.outside.read_text() == ""


def test_a_process_does_not_outlive_the_program_that_started_it(live):
    program = (
        "import sys, time; from pathlib import Path;"
        "from epifalcon.federation.nvflare.processes import ChildProcess;"
        f"print(ChildProcess(Path({str(live.kits[FIRST])!r})).process.pid, flush=True);"
        "time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **live.environment},
    )
    with parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    until(lambda: not psutil.pid_exists(child), "the process to end")
