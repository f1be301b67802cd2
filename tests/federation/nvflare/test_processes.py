"""Processes of servers, sites and jobs; what they run is in test_federation."""

import io
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.collab.api.app import ClientApp
from nvflare.collab.runtime.defs import SyncKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from epifalcon.federation.nvflare import components
from epifalcon.federation.nvflare.endpoints import SiteEndpoint
from epifalcon.federation.nvflare.processes import _command, _environment
from epifalcon.federation.nvflare.provisioning import Deployment, Kit
from tests.federation.nvflare.live import LOOPBACK, leaks, until


def test_it_runs_nothing_but_the_programs_of_jobs():
    with pytest.raises(SystemExit, match="is not a job program"):
        components.run_job(1, "os", [])


def test_a_job_that_a_signal_ended_is_no_failure_of_the_whole_job():
    class Ended:
        def poll(self):
            return -signal.SIGKILL

    handle = components.JobHandle(process_adapter=Ended())
    assert handle.poll() == JobReturnCode.UNKNOWN


def test_a_site_runs_few_jobs_at_the_same_time(monkeypatch):
    started = []

    def launch(*_):
        started.append(SimpleNamespace(adapter=object()))
        return started[-1]

    monkeypatch.setattr(components.ProcessJobLauncher, "launch_job", launch)
    site = SimpleNamespace(children=lambda: started)
    monkeypatch.setattr(components.psutil, "Process", lambda: site)
    launcher = components.SiteLauncher()
    for _ in range(4):
        launcher.launch_job({}, None)
    with pytest.raises(RuntimeError, match="too many jobs"):
        launcher.launch_job({}, None)
    assert len(started) == 4


def test_calls_to_lost_sites_do_not_hold_up_the_end_of_a_job():
    made, stop = components.Controller("coordinator"), threading.Event()
    made.outbound_executor.submit(stop.wait, 60)
    began = time.monotonic()
    made.stop_controller(None)
    assert time.monotonic() - began < 10
    stop.set()


@pytest.mark.parametrize(
    ("peer", "origin", "dropped"),
    [
        ("clinic", "clinic", False),
        ("clinic.job", "clinic.job", False),
        ("clinic", "clinic.job", False),
        ("server.job", "server.job", False),
        ("clinic", "server.job", True),
        ("clinic", "server", True),
        ("clinic.job", "school.job", True),
        ("clinic", "clinic2", True),
    ],
)
def test_a_message_has_the_name_of_its_connection(peer, origin, dropped):
    message = Message({MessageHeaderKey.ORIGIN: origin})
    message.set_prop(MessagePropKey.ENDPOINT, Endpoint(peer))
    assert (components.refuse_foreign_origin(message) is not None) == dropped


SERVER_LISTENER = ("server_parent_listener", "get_clients")


@pytest.mark.parametrize(
    ("peer", "receiver", "channel", "topic", "dropped"),
    [
        ("clinic", "server", "task", "heart_beat", False),
        ("clinic.job", "server.job", "server_command", "get_task", False),
        ("clinic.job", "clinic", "admin", "sys.shell", False),
        ("server", "clinic", "admin", "train.deploy", False),
        ("server.job", "server", *SERVER_LISTENER, False),
        ("_admin_1", "server", "hci_channel", "", False),
        ("clinic", "server", "hci_channel", "", True),
        ("clinic", "school", "admin", "sys.shell", True),
        ("clinic", "school.job", "client_command", "abort", True),
        ("_admin_1", "school", "admin", "sys.shell", True),
        ("clinic", "server", *SERVER_LISTENER, True),
        ("_admin_1", "server", *SERVER_LISTENER, True),
        ("clinic", "server.job", "server_command", "abort", True),
        ("clinic", "server", "cellnet.channel", "bulk", True),
        ("clinic", "server", "cellnet.channel", "bye", False),
        ("clinic", "server.job", "cellnet.channel", "bye", True),
        ("clinic", "server.job", "credential_manager", "key_exchange", True),
        ("clinic", "server", "_net_manager", "stress", True),
        ("clinic.job", "server.job", "aux_communication", "__job_heartbeat__", False),
        ("clinic.job", "server.job", "aux_communication", "fed.event", True),
        ("_admin_1", "server", "aux_communication", "a job", False),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_sites_command_nobody(peer, receiver, channel, topic, dropped, streamed):
    headers = {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    if streamed:
        inner = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
        headers = {MessageHeaderKey.CHANNEL: STREAM_CHANNEL, **inner}
    message = Message({MessageHeaderKey.DESTINATION: receiver, **headers})
    message.set_prop(MessagePropKey.ENDPOINT, Endpoint(peer))
    name = "admin@town.org" if peer == "_admin_1" else peer
    message.set_prop(MessagePropKey.COMMON_NAME, name)
    assert (components.refuse_command(message) is not None) == dropped


def test_a_site_executes_the_commands_of_jobs_and_no_others(monkeypatch):
    known = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", known)
    components.restrict_commands()
    left = ClientRequestProcessors.request_processors
    topics = {topic for one in left for topic in one.get_topics()}
    assert len(left) == len(topics) == 6
    assert not topics & {"sys.shell", "train.delete_run", "train.shutdown"}
    done = []

    class Deploy(RequestProcessor):
        def get_topics(self):
            return [TrainingTopic.DEPLOY]

        def process(self, req, app_ctx):  # noqa: ARG002
            done.append(req.get_header("job_id"))

    job, other = str(uuid.uuid4()), str(uuid.uuid4())
    for named, meta in (("runs", {}), (job, {"job_id": other}), (job, {"job_id": job})):
        command = Command(TrainingTopic.DEPLOY, packed(config=10))
        command.set_headers({"job_id": named, "job_meta": meta})
        components.JobCommand(Deploy()).process(command, None)
    assert done == [job]


def test_a_site_keeps_few_folders_of_jobs(tmp_path):
    jobs = [tmp_path / str(uuid.uuid4()) for _ in range(25)]
    for number, one in enumerate([tmp_path / "runs", *jobs]):
        one.mkdir()
        os.utime(one, (number, number))
    components.remove_old_jobs(tmp_path)
    assert {*tmp_path.iterdir()} == {tmp_path / "runs", *jobs[5:]}


def packed(**sizes):
    """A packed job with one file of this size in each of these folders."""
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as job:
        for folder, size in sizes.items():
            job.writestr(f"{folder}/file.py", bytes(size))
    return made.getvalue()


def test_a_site_unpacks_settings_and_neither_code_nor_much():
    assert components.holds_settings_only(packed(config=10_000))
    assert not components.holds_settings_only(packed(config=10, custom=10))
    assert not components.holds_settings_only(packed(**{"config/more": 10}))
    bomb = packed(config=2**21)
    assert len(bomb) < 2**13
    assert not components.holds_settings_only(bomb)
    assert not components.holds_settings_only(bytes(2**21))


def test_only_the_owner_can_enter_the_folder_of_sockets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    components.SOCKETS.mkdir(parents=True, mode=0o755)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (components.SOCKETS / str(ended.pid)).touch()
    (components.SOCKETS / "1").touch()
    driver = components.UnixDriver()
    url, _ = driver.get_urls("unix", {})
    connector = SimpleNamespace(params={"path": urlsplit(url).path})
    listening = threading.Thread(target=driver.listen, args=(connector,))
    listening.start()
    mine = components.SOCKETS / str(os.getpid())
    until(mine.is_socket, "the socket")
    assert stat.S_IMODE(components.SOCKETS.stat().st_mode) == 0o700
    assert {one.name for one in components.SOCKETS.iterdir()} == {"1", mine.name}
    driver.shutdown()
    listening.join()


def test_messages_are_not_formatted_for_the_log():
    program = (
        "import sys; from epifalcon.federation.nvflare import components;"
        "components.end_with = lambda _: None;"
        "from nvflare.fuel.utils.buffer_list import ConsumableBufferList as one;"
        "components.importlib.import_module = lambda _: sys.exit("
        "'SECRET' in repr(one([b'SECRET'])));"
        "components.run_job(1, components._JOB_PROGRAMS[0], [])"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_in_messages_of_others_are_no_lines_of_a_log():
    name = "clinic\n2026-11-16 - JobRunner - INFO - the job ended\r\x1b[2J"
    record = logging.makeLogRecord({"name": "n", "msg": name + "x" * 9999})
    text = components.LogFormatter("%(fl_ctx)s - %(message)s").format(record)
    assert {line[:4] for line in text.splitlines()[1:]} == {"    "}
    assert "\r" not in text
    assert "\x1b" not in text
    assert len(text) < 5000


def test_temporary_files_stay_in_the_kit_and_no_proxy_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org")
    monkeypatch.setenv("grpc_proxy", "http://proxy.example.org")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    deployment = Deployment(project="p", host="localhost", sites=("a",))
    kit = Kit(tmp_path, "a", deployment)
    found, place = _environment(kit), tmp_path / "state" / "tmp"
    assert found["TMPDIR"] == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert found["NVFLARE_SECURE_LOGGING"] == "true"
    assert "proxy.example.org" not in str(found)
    # Threads that wait rest unless the owner says otherwise.
    assert found["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert _environment(kit)["OMP_WAIT_POLICY"] == "active"


def test_no_module_of_the_working_directory_is_imported(tmp_path):
    # A folder that others can write to must not bring code to the keys of a kit.
    (tmp_path / "selectors.py").write_text("raise SystemExit('planted')")
    deployment = Deployment(project="p", host="localhost", sites=("a",))
    kit = Kit(tmp_path / "kit", "a", deployment)
    ran = subprocess.run(
        _command(kit), env=_environment(kit), cwd=tmp_path, capture_output=True
    )
    assert b"planted" not in ran.stderr
    assert b"kit: not a start-up kit" in ran.stderr


# What the tests of a federation rely on.

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 0.2)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(("host", "outside"), [("192.0.2.1", 1), ("127.0.0.1", 0)])
def test_a_connection_outside_is_refused_and_written_down(tmp_path, host, outside):
    notes = tmp_path / "connections.txt"
    message = {"PYTHONPATH": str(LOOPBACK), "EPIFALCON_CONNECTIONS": str(notes)}
    said = subprocess.run(
        [sys.executable, "-c", CONNECT, host],
        env={**os.environ, **message},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("in a test" in said.stdout) == outside
    assert notes.exists() == outside


def test_log_lines_that_reveal_people_are_found():
    calm = "2026-11-16 INFO the job was stopped\n2026-11-16 INFO round 3 of 4\n"
    assert leaks(calm, ["region-0012"]) == []
    lines = [
        "person 7: infected=True",
        "status=[1 0 -1]",
        "rows tensor([[0.1, 0.2]])",
        "by_slot array([3, 4])",
        "2026 INFO region-0012 has 3 cases",
        "refused: person 12 was there",
        "probability 0.8134 of person 3",
    ]
    assert leaks("\n".join([calm, *lines]), ["region-0012"]) == lines


def test_no_site_writes_the_list_of_methods_that_all_sites_receive():
    controller, known = components.Controller("server"), SiteEndpoint("falcon", "one")
    reply = Shareable({SyncKey.COLLAB_INTERFACE: {"client": {"any": ["x"] * 1000}}})
    task = SimpleNamespace(client=SimpleNamespace(name="clinic"), result=reply)
    controller._process_sync_reply(task, FLContext())
    found = controller.client_info["clinic"].publish_interface
    assert found == ClientApp(known).get_collab_interface()
