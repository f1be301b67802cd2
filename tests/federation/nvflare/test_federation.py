"""A real server and two real sites over mutual TLS, as processes on loopback.

One job serves all tests, in the order of this file: to start and end one takes
longer than everything that is done with it.
"""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys

import psutil
import pytest

from epifalcon.errors import DataError
from epifalcon.federation.nvflare.frames import MOST_BYTES
from epifalcon.federation.nvflare.jobs import write_job
from epifalcon.federation.nvflare.kits import provision
from epifalcon.federation.nvflare.transport import GONE
from tests.federation.nvflare.echo import SECRET
from tests.federation.nvflare.live import (
    ENVIRONMENT,
    JOB,
    PATIENCE,
    federation,
    processes_of,
    until,
)

pytestmark = pytest.mark.xdist_group("federation")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with federation(folder, sites=2) as started:
        yield started
    assert processes_of(folder) == []


def test_no_code_comes_with_a_job_and_no_shell_command_runs(live, tmp_path):
    place = write_job(JOB, tmp_path)
    (place / "app" / "custom").mkdir()
    (place / "app" / "custom" / "shipped.py").write_text("")
    job = live.admin._session.submit_job(str(place))
    assert live.admin.wait(job, PATIENCE).status == "FINISHED:FAILED_TO_RUN"
    with pytest.raises(Exception, match="not authorized"):
        live.admin._session.cat_target(live.sites[0], file="epifalcon.json")
    with pytest.raises(DataError, match="no such job"):
        live.admin.job("unknown")
    status = live.admin.status()
    assert status.connected == live.sites
    assert [one.job for one in status.jobs] == [job]


def first_words(live, certificate=None):
    """What the server says first to one who knocks with this certificate.

    Under TLS 1.3 a refusal comes only after the client takes itself to be in.
    """
    deployment = live.parties["server"].kit.deployment
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


def test_the_server_speaks_only_to_those_with_a_certificate_of_its_root(live, tmp_path):
    site = live.kits[live.sites[0]] / "startup"
    assert first_words(live, site)
    deployment = live.parties["server"].kit.deployment
    stranger = provision(deployment, tmp_path / "other")[live.sites[0]] / "startup"
    assert first_words(live, None) == b""
    assert first_words(live, stranger) == b""


def test_each_site_answers_its_own_call(live):
    live.begin()
    first, second = live.sites
    found = live.ask({first: "echo one", second: "echo two"})
    assert found["answers"] == {first: f"{first}:one", second: f"{second}:two"}
    assert found["failures"] == {}
    # Too large for a frame, and more than one piece of NVFlare's stream and a rest.
    size = MOST_BYTES + 17
    assert live.ask({first: f"size {size}"})["answers"] == {first: size}


def test_of_an_error_only_its_kind_leaves_the_site(live):
    live.begin()
    first, second = live.sites
    found = live.ask({first: "fail", second: "echo x"})
    assert found["failures"] == {first: "the site failed with ValueError"}
    assert found["answers"] == {second: f"{second}:x"}
    assert "ValueError at" in live.texts()
    assert SECRET not in live.texts()


def test_a_site_that_is_held_up_is_late_and_then_goes_on(live):
    live.begin()
    first, second = live.sites
    process = live.process_of(first)
    os.kill(process, signal.SIGSTOP)
    try:
        found = live.ask(dict.fromkeys(live.sites, "echo x"), timeout=3.0)
    finally:
        os.kill(process, signal.SIGCONT)
    assert found["failures"] == {first: "no answer within 3 s"}
    assert found["answers"] == {second: f"{second}:x"}
    assert live.ask(dict.fromkeys(live.sites, "echo y"))["failures"] == {}


def test_a_killed_process_takes_only_its_own_site_away(live):
    live.begin()
    first, second = live.sites
    process = live.process_of(first)
    outcome = live.send({first: f"sleep {PATIENCE}", second: "echo x"})
    os.kill(process, signal.SIGKILL)
    found = outcome()
    assert found["failures"] == {first: GONE}
    assert found["answers"] == {second: f"{second}:x"}
    assert found["seconds"] < PATIENCE / 2
    assert live.ask({second: "echo y"})["answers"] == {second: f"{second}:y"}
    assert live.end() == "FINISHED:COMPLETED"


def test_a_party_does_not_outlive_the_program_that_started_it(live):
    kit = live.kits[live.sites[0]]
    program = (
        "import sys, time; from pathlib import Path;"
        "from epifalcon.federation.nvflare.processes import Party;"
        f"print(Party(Path({str(kit)!r})).process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    with parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    until(lambda: not psutil.pid_exists(child), "the party to end")
