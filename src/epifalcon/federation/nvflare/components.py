"""Parts that NVFlare builds from a kit: how jobs start, where they are kept, the end.

Named in ``kit_files``. They live in the long-running process of a server or a
site, not in that of a job.
"""

import logging
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import (
    ProcessHandle,
    ProcessJobLauncher,
)
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.utils.job_launcher_utils import get_client_job_args, get_server_job_args

from epifalcon.federation.nvflare import outcomes

_WRAPPER = "epifalcon.federation.nvflare.job_process"
_FAREWELL_SECONDS = 4.0
_log = logging.getLogger(__name__)


class KitStorage(FilesystemStorage):
    """NVFlare's storage in a folder of the kit, wherever the kit stands.

    NVFlare wants an absolute path, which a kit cannot know before it is moved to
    its machine; its processes run in the kit's folder.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(root_dir=os.path.abspath(folder), uri_root="/")

    def update_meta(self, uri: str, meta: dict[str, Any], replace: bool) -> None:
        """With a status that tells of a failure goes the reason."""
        status = str(meta.get(JobMetaKey.STATUS.value, ""))
        if status.startswith("FINISHED") and status != outcomes.COMPLETED:
            meta = {**meta, **outcomes.told(Path.cwd(), uri)}
        super().update_meta(uri, meta, replace)


class JobHandle(ProcessHandle):
    """Tells a job process that a signal ended from one whose own code failed.

    NVFlare takes both for a failure of the whole job, on all sites, whatever the
    minimum of sites. A process that was killed only takes its own site away: its
    code becomes ``UNKNOWN``, which is not reported, and the server learns from the
    next heartbeat that this site no longer runs the job.
    """

    def poll(self) -> Any:  # noqa: ANN401
        code = self.adapter.poll()
        if code is not None and code < 0:
            return JobReturnCode.UNKNOWN
        return super().poll()


class _Launcher(ProcessJobLauncher):
    """Starts a job's process so that it cannot outlive the process that started it."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:  # noqa: ARG002
        given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        words = [sys.executable, "-m", _WRAPPER, given[JobProcessArgs.EXE_MODULE][1]]
        for name in self.arguments():
            if name == JobProcessArgs.EXE_MODULE or name not in given:
                continue
            option, value = given[name]
            # One option stands for many words, and only that one is to be split.
            split = name == JobProcessArgs.OPTIONS
            words += [option, *(value.split() if split else [str(value)])]
        return shlex.join(words)

    def arguments(self) -> list[str]:
        raise NotImplementedError


class ServerLauncher(_Launcher):
    """Starts the server's part of a job."""

    def arguments(self) -> list[str]:
        return list(get_server_job_args())


class SiteLauncher(_Launcher):
    """Starts a site's part of a job."""

    def arguments(self) -> list[str]:
        return list(get_client_job_args())

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        started = super().launch_job(job_meta, fl_ctx)
        return JobHandle(process_adapter=started.adapter)


class AbandonedJobs(FLComponent):
    """Marks jobs of a server that was killed; NVFlare lists them as running."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            fl_ctx.get_engine().job_runner.update_unfinished_jobs(fl_ctx)


class CleanStop(FLComponent):
    """Ends the process, and what it started, on SIGTERM or SIGINT.

    Jobs are stopped and a site takes leave of its server, so that the server need
    not wait for its silence; after ``_FAREWELL_SECONDS`` it ends in any case.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.SYSTEM_START:
            return
        engine = fl_ctx.get_engine()

        def end(number: int, _: FrameType | None) -> None:
            for known in (signal.SIGTERM, signal.SIGINT):
                signal.signal(known, signal.SIG_IGN)
            _log.info("asked to stop by %s", signal.Signals(number).name)
            # NVFlare's own loops hold the main thread, so another one ends it.
            threading.Thread(target=_end, args=(engine,), daemon=True).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)


def _end(engine: Any) -> None:  # noqa: ANN401
    leave = threading.Thread(target=_take_leave, args=(engine,), daemon=True)
    leave.start()
    leave.join(_FAREWELL_SECONDS)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    logging.shutdown()
    os._exit(0)


def _take_leave(engine: Any) -> None:  # noqa: ANN401
    try:
        if hasattr(engine, "stop_all_jobs"):
            engine.stop_all_jobs()
        else:
            engine.client.close()
    except Exception as error:
        _log.warning("did not take leave properly: %s", type(error).__name__)
