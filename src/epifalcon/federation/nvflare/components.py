"""Programs and components that depend on NVFlare's internals.

``python -m epifalcon.federation.nvflare.components serve KIT [PARENT]`` is the
long-running process of a server or a site: NVFlare's own program in the foreground,
without the kit scripts that restart it indefinitely. ``job PARENT MODULE ARGUMENTS``
instead of ``serve`` is the process of one job. Both end when the process ``PARENT``
ends. They poll it because they have their own sessions, which signals to the parent do
not reach, and Linux's parent-death signal refers to the starting thread, which NVFlare
ends early.

NVFlare instantiates the classes from a kit's settings (``provisioning``) in the
long-running processes. Each use has a test in ``tests/federation/nvflare``.
"""

import importlib
import io
import logging
import os
import re
import resource
import runpy
import shlex
import shutil
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any
from zipfile import ZipFile

import psutil
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedTopic, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import (
    ProcessHandle,
    ProcessJobLauncher,
)
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.collab.api.app import ClientApp
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SyncKey
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.communicator import driver_mgr
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.fuel.utils.log_utils import BaseFormatter
from nvflare.private.admin_defs import Message as Command
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.utils.job_launcher_utils import get_client_job_args, get_server_job_args

from epifalcon.federation.nvflare.endpoints import SiteEndpoint
from epifalcon.federation.nvflare.jobs import JOB, read_reason
from epifalcon.federation.nvflare.messaging import restrict_messages
from epifalcon.federation.nvflare.provisioning import HERE, STATE, open_kit
from epifalcon.text import printable

_JOB_PROGRAMS = (
    "nvflare.private.fed.app.server.runner_process",
    "nvflare.private.fed.app.client.worker_process",
)
SOCKETS = Path(STATE) / "sockets"
"""Folder of a kit with the sockets to which its jobs connect."""
_JOB_COMMANDS = frozenset(
    {
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.ABORT,
        TrainingTopic.NOTIFY_JOB_STATUS,
    }
)
"""The only commands of the server that a site executes."""
_MOST_JOB_BYTES = 2**20
"""Largest job, packed and unpacked; those of epifalcon have some KB."""
_JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERVER_CHANNELS: dict[str, frozenset[str]] = {
    "_net_manager": frozenset(),
    # A process closes its connection after a failed exchange of keys.
    "credential_manager": frozenset(),
    CellChannel.SERVER_PARENT_LISTENER: frozenset(),
    CellChannel.CELLNET: frozenset({CellChannelTopic.Bye}),
    CellChannel.SERVER_COMMAND: frozenset(
        {ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}
    ),
    # No events, which NVFlare would take for its own, such as the end of a run. The
    # administrator sends jobs on this channel.
    CellChannel.AUX_COMMUNICATION: frozenset(
        {
            ReservedTopic.SYNC_RUNNER,
            ReservedTopic.JOB_HEART_BEAT,
            ReservedTopic.TASK_CHECK,
        }
    ),
}
"""Channels of the server's own processes, with the topics that sites may use."""
_MOST_JOBS = 4
"""Most processes of jobs at a site. Servers start one at a time, but they end late."""
_MOST_JOB_FOLDERS = 20
"""Newest jobs at a site whose logs stay; NVFlare removes none."""
_MOST_LOG_CHARACTERS = 4000
_WATCH_SECONDS = 0.3
_DISCONNECT_SECONDS = 4.0
_log = logging.getLogger(__name__)


class KitStorage(FilesystemStorage):
    """NVFlare's file storage, with a path relative to the kit."""

    def __init__(self, folder: str) -> None:
        super().__init__(root_dir=os.path.abspath(folder), uri_root="/")

    def update_meta(self, uri: str, meta: dict[str, Any], replace: bool) -> None:
        """Update a job's record; at its end add the error or the lost sites."""
        if str(meta.get(JobMetaKey.STATUS.value, "")).startswith("FINISHED"):
            meta = {**meta, **read_reason(Path.cwd(), uri)}
        super().update_meta(uri, meta, replace)


class JobHandle(ProcessHandle):
    """Process handle that treats a job killed by a signal as lost, not as failed.

    NVFlare treats both as a failure of the whole job at all sites, regardless of the
    minimum number of sites. Here a killed process removes only its own site: its
    return code becomes ``UNKNOWN``, which is not reported, and the server removes the
    site after the next heartbeat.
    """

    def poll(self) -> Any:  # noqa: ANN401
        code = self.adapter.poll()
        if code is not None and code < 0:
            return JobReturnCode.UNKNOWN
        return super().poll()


class _Launcher(ProcessJobLauncher):
    """Launcher of job processes that end together with their parent process."""

    arguments: tuple[str, ...] = ()

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:  # noqa: ARG002
        options = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        program = options[JobProcessArgs.EXE_MODULE][1]
        words = [sys.executable, "-m", f"{HERE}.components", "job"]
        words += [str(os.getpid()), program]
        for name in self.arguments:
            if name == JobProcessArgs.EXE_MODULE or name not in options:
                continue
            option, value = options[name]
            # Only this option holds several words and must be split.
            split = name == JobProcessArgs.OPTIONS
            words += [option, *(value.split() if split else [str(value)])]
        return shlex.join(words)


class ServerLauncher(_Launcher):
    """Launcher of the server process of a job."""

    arguments = tuple(get_server_job_args())


class SiteLauncher(_Launcher):
    """Launcher of the site process of a job."""

    arguments = tuple(get_client_job_args())

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start a job; refuse it if a server has started many at the same time."""
        if len(psutil.Process().children()) >= _MOST_JOBS:
            raise RuntimeError("too many jobs")
        started = super().launch_job(job_meta, fl_ctx)
        return JobHandle(process_adapter=started.adapter)


class Controller(CollabController):
    """Collab controller that stops without waiting for calls to lost sites.

    All sites receive the list of each site's methods, so no site writes its own.
    """

    def _process_sync_reply(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        methods = ClientApp(SiteEndpoint("", "")).get_collab_interface()
        client_task.result[SyncKey.COLLAB_INTERFACE] = methods
        super()._process_sync_reply(client_task, fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:  # noqa: ARG002
        for threads in (self.inbound_executor, self.outbound_executor):
            threads.shutdown(wait=False, cancel_futures=True)


class AbandonedJobs(FLComponent):
    """Marks the unfinished jobs of a killed server, which NVFlare lists as running."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            fl_ctx.get_engine().job_runner.update_unfinished_jobs(fl_ctx)


class LogFormatter(BaseFormatter):
    """Formatter that cuts long messages and indents all lines but the first.

    NVFlare logs names from messages of others, which may hold lines like those of logs.
    """

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record)[:_MOST_LOG_CHARACTERS].splitlines()
        return "\n    ".join(map(printable, lines))


class OriginCheck(FLComponent):
    """Drops messages at the server that a site or administrator may not send.

    NVFlare compares the sender's name in a message with its token, but not with that of
    a site which registered again. The connection's name is that of the certificate. And
    it forwards messages of any site to any other, which executes them as commands.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            cell = fl_ctx.get_engine().get_cell().core_cell
            cell.add_incoming_filter("*", "*", refuse_foreign_origin)
            cell.add_incoming_filter("*", "*", refuse_command)


def refuse_foreign_origin(message: Message) -> Message | None:
    """Return a reply, which drops the message, if its connection has another origin."""
    peer = message.get_prop(MessagePropKey.ENDPOINT)
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    if FqcnInfo(origin).root == FqcnInfo(peer.name).root:
        return None
    _log.warning("dropped a message of %s in the name of %s", peer.name, origin)
    return make_reply(ReturnCode.AUTHENTICATION_ERROR)


def refuse_command(message: Message) -> Message | None:
    """Return a reply, which drops the message, unless its sender may command this.

    Only processes of the server send messages to other sites, and use the channels of
    its own commands and of NVFlare's network manager. Only the administrator logs in:
    NVFlare opens a session without rights for sites, but some commands need none.
    """
    sender = FqcnInfo(message.get_prop(MessagePropKey.ENDPOINT).name)
    receiver = FqcnInfo(message.get_header(MessageHeaderKey.DESTINATION))
    if sender.is_on_server or sender.root == receiver.root:
        return None
    channel = message.get_header(MessageHeaderKey.CHANNEL)
    topic = message.get_header(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL:
        channel = message.get_header(StreamHeaderKey.CHANNEL)
        topic = message.get_header(StreamHeaderKey.TOPIC)
    refused = channel in _SERVER_CHANNELS and topic not in _SERVER_CHANNELS[channel]
    if channel == CellChannel.CELLNET:
        # The server's process of a job would take a goodbye for that of its parent.
        refused = refused or not receiver.is_root
    if channel == CellChannel.HCI or (
        refused and channel == CellChannel.AUX_COMMUNICATION
    ):
        # No name of a site or host has this character.
        refused = "@" not in str(message.get_prop(MessagePropKey.COMMON_NAME))
    if receiver.is_on_server and not refused:
        return None
    _log.warning("dropped a command of %s to %s", sender.fqcn, receiver.fqcn)
    return make_reply(ReturnCode.AUTHENTICATION_ERROR)


class JobCommand(RequestProcessor):
    """A command of the server that a site executes, for a job and nothing else."""

    turn = threading.Lock()
    """Commands run one at a time: a job starts only after its files were checked."""

    def __init__(self, command: RequestProcessor) -> None:
        self._command = command

    def get_topics(self) -> list[str]:
        """Return the topics of this command."""
        return [one for one in self._command.get_topics() if one in _JOB_COMMANDS]

    def process(self, req: Command, app_ctx: Any) -> Command:  # noqa: ANN401
        """Execute the command; refuse what is not a job of epifalcon."""
        job = req.get_header(RequestHeader.JOB_ID)
        meta = req.get_header(RequestHeader.JOB_META) or {}
        named = {str(one) for one in (job, meta.get(JobMetaKey.JOB_ID, job)) if one}
        if len(named) > 1 or not all(map(_JOB_ID.fullmatch, named)):
            return error_reply("not a job")
        if req.topic == TrainingTopic.DEPLOY and not holds_settings_only(req.body):
            return error_reply("not a job of epifalcon")
        with self.turn:
            remove_old_jobs(Path.cwd())
            return self._command.process(req, app_ctx)


def remove_old_jobs(kit: Path) -> None:
    """Remove the folders of all but the newest jobs, so that they fill no disk."""
    jobs = [one for one in kit.iterdir() if _JOB_ID.fullmatch(one.name)]
    for old in sorted(jobs, key=os.path.getmtime)[:-_MOST_JOB_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)


def holds_settings_only(job: bytes) -> bool:
    """Return True if the files of a packed job are few settings and signatures.

    NVFlare unpacks a job before it verifies its signature, and after some errors
    leaves its code in the folder from which the job would start.
    """
    if len(job) > _MOST_JOB_BYTES:
        return False
    with ZipFile(io.BytesIO(job)) as packed:
        files = packed.infolist()
    folders = {PurePosixPath(file.filename).parent.as_posix() for file in files}
    size = sum(file.file_size for file in files)
    return folders <= {".", "config"} and size <= _MOST_JOB_BYTES


def restrict_commands() -> None:
    """Remove all commands of the server, except those of jobs, from this process.

    NVFlare compares them with the rights in a kit only if the sender requests it, and
    some read or delete files of the site.
    """
    processors = map(JobCommand, ClientRequestProcessors.request_processors)
    ClientRequestProcessors.request_processors = [
        one for one in processors if one.get_topics()
    ]


class UnixDriver(BaseDriver):
    """Connections of jobs to their parent process, by a socket in the kit.

    The folder of the socket can be entered by its owner only. Its path is relative to
    the kit, the current folder: longer paths are not possible.
    """

    def __init__(self) -> None:
        super().__init__()
        self._server: _UnixServer | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        return ["unix"]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        return {
            DriverCap.SEND_HEARTBEAT.value: True,
            DriverCap.SUPPORT_SSL.value: False,
        }

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:  # noqa: ARG004
        url = f"{scheme}://0/{os.getpid()}"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        SOCKETS.mkdir(parents=True, exist_ok=True)
        SOCKETS.chmod(0o700)
        for old in SOCKETS.iterdir():
            if old.name == str(os.getpid()) or not psutil.pid_exists(int(old.name)):
                old.unlink()
        with _UnixServer(str(_socket_of(connector)), ConnectionHandler) as server:
            server.driver, server.connector, self._server = self, connector, server
            server.serve_forever()

    def connect(self, connector: ConnectorInfo) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.connect(str(_socket_of(connector)))
            connection = SocketConnection(one, connector)
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    def shutdown(self) -> None:
        self.close_all()
        if self._server is not None:
            self._server.shutdown()


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    # Attributes that ConnectionHandler reads.
    driver: UnixDriver
    connector: ConnectorInfo
    ssl_context = None
    daemon_threads = True


def _socket_of(connector: ConnectorInfo) -> Path:
    return SOCKETS / Path(connector.params[DriverParams.PATH.value]).name


class CleanStop(FLComponent):
    """Ends the process and its children after SIGTERM or SIGINT.

    A server stops its jobs. A site disconnects, so that its server does not wait for a
    timeout. After ``_DISCONNECT_SECONDS`` the process ends in any case.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.SYSTEM_START:
            return
        engine = fl_ctx.get_engine()

        def end(number: int, _: FrameType | None) -> None:
            for known in (signal.SIGTERM, signal.SIGINT):
                signal.signal(known, signal.SIG_IGN)
            _log.info("stopping after %s", signal.Signals(number).name)
            # NVFlare's loops block the main thread, so another thread ends it.
            threading.Thread(target=_end, args=(engine,), daemon=True).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)


def _end(engine: Any) -> None:  # noqa: ANN401
    leave = threading.Thread(target=_disconnect, args=(engine,), daemon=True)
    leave.start()
    leave.join(_DISCONNECT_SECONDS)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    logging.shutdown()
    os._exit(0)


def _disconnect(engine: Any) -> None:  # noqa: ANN401
    try:
        if hasattr(engine, "stop_all_jobs"):
            engine.stop_all_jobs()
        else:
            engine.client.close()
    except Exception as error:
        _log.warning("could not disconnect: %s", type(error).__name__)


def end_with(parent: int) -> None:
    """End this process and its children once the process ``parent`` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        if os.getpgid(0) == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_job(parent: int, program: str, arguments: list[str]) -> None:
    """Run one of NVFlare's job programs in this process."""
    if program not in _JOB_PROGRAMS:
        raise SystemExit(f"{program!r} is not a job program")
    end_with(parent)
    restrict_messages()
    driver_mgr.register(UnixDriver)
    # NVFlare formats every message as text for a DEBUG log line: this costs 20 ms per
    # MB even if DEBUG is off, and writes data to the log if it is on.
    ConsumableBufferList.__repr__ = object.__repr__
    sys.argv = [program, *arguments]
    module = importlib.import_module(program)
    options = module.parse_arguments()
    os.environ[JOB] = options.job_id
    # Same as the end of NVFlare's program, but without its six seconds of grace time:
    # all calls have been answered when a job ends.
    code = MainProcessMonitor.run(
        main_func=module.main,
        run_dir=os.path.join(options.workspace, options.job_id),
        shutdown_grace_time=0.2,
        cleanup_grace_time=2.0,
        args=options,
    )
    raise SystemExit(code)


def serve(folder: Path, parent: int | None) -> None:
    """Run NVFlare's server or site program for the kit in ``folder``."""
    kit = open_kit(folder, "server", "site")
    if parent is not None:
        end_with(parent)
    # Usually 1,024 files, connections included, of several 100,000 that are possible.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    restrict_messages()
    driver_mgr.register(UnixDriver)
    # Until NVFlare has started (see CleanStop), both signals end the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    role, program, options = "server", "server_train", []
    if kit.kind == "site":
        role, program = "client", "client_train"
        restrict_commands()
        beat = kit.deployment.heartbeat_seconds
        options = [f"uid={kit.name}", f"heart_beat_interval={beat}"]
    module = f"nvflare.private.fed.app.{role}.{program}"
    sys.argv = [module, "-m", str(kit.folder), "-s", f"fed_{role}.json", "--set"]
    sys.argv += ["secure_train=true", "org=epifalcon", "config_folder=config", *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "job":
        run_job(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        serve(Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
