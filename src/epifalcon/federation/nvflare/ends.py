"""The two ends of a job, which NVFlare builds from the job's JSON.

A job names, by dotted path and JSON arguments, a coordinator (an object with
``coordinate(transport, folder)``) and a site (an object with ``answer(call)``).
Both are installed beforehand; no code travels with a job.
"""

import logging
import sys
import traceback
from pathlib import Path
from typing import Any, Protocol

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.collab import collab
from nvflare.collab.api.app import ClientApp, ServerApp
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SETUP_TASK_NAME, SyncKey
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from epifalcon.errors import StoppedError
from epifalcon.federation.nvflare.frames import FrameDispatcher, answer_frames
from epifalcon.federation.nvflare.transport import CollabTransport, LostSites
from epifalcon.federation.sites.transport import Transport

_log = logging.getLogger(__name__)
# NVFlare writes every call that comes in out as text, for a line of its log that is
# thrown away unless DEBUG is on: 20 ms for each MB, and data in the log if it is.
ConsumableBufferList.__repr__ = object.__repr__


class Coordinator(Protocol):
    """Runs a whole job on the server."""

    def coordinate(self, transport: Transport, folder: Path) -> None:
        """Run to the end; ``folder`` is the server's kit and stays after the job."""


class Site(Protocol):
    """Answers calls on a site; may be called from several threads at once."""

    def open(self, name: str, folder: Path) -> None:
        """Get ready: ``name`` of this site and ``folder`` of its kit."""

    def answer(self, call: bytes) -> bytes:
        """Answer one call.

        The same may come twice (see ``frames``): what must happen once is the
        site's to see to.
        """


class CoordinatorEnd(FLComponent):
    """The server's end of a job: hands the coordinator its transport."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._lost = LostSites()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._lost.add(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._lost.discard(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))

    @collab.main
    def run(self) -> None:
        context = collab.context
        transport = CollabTransport(context.clients, self._lost, context.is_aborted)
        folder = Path(collab.workspace.get_root_dir())
        try:
            self._coordinator.coordinate(transport, folder)
        except StoppedError:
            _log.info("the job was stopped")
        except Exception as error:
            _log.error("the coordinator failed: %s", place_of(error))
            # NVFlare would log the text, which may tell of data; the kind does not.
            raise RuntimeError(
                f"the coordinator failed: {type(error).__name__}"
            ) from None
        finally:
            transport.close()


class SiteEnd:
    """A site's end of a job: makes the site reachable.

    An error's text may name a place or a person, and NVFlare would send it and
    its traceback to the server. So nothing is raised here: what leaves is the
    kind of the error alone, and the site's own log has its place in the code.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._unready = "site that was never opened"

    @collab.init
    def open(self) -> None:
        try:
            folder = Path(collab.workspace.get_root_dir())
            self._site.open(collab.site_name, folder)
            self._unready = ""
        except Exception as error:
            self._unready = type(error).__name__
            _log.error("the site could not get ready: %s", place_of(error))

    @collab.publish
    def answer(self, call: bytes) -> bytes | str:
        if self._unready:
            return self._unready
        try:
            return self._site.answer(call)
        except Exception as error:
            _log.error("a call failed: %s", place_of(error))
            return type(error).__name__


class Controller(CollabController):
    """Collab's controller for calls of bytes.

    Collab's own start loads torch, for tensors in calls: seconds and 200 MB that
    a job which sends bytes alone should not pay.
    """

    def start_controller(self, fl_ctx: FLContext) -> None:
        app = ServerApp(fl_ctx.get_engine().get_component(self.server_obj_id))
        app.name = "server"
        self.process_config(app, fl_ctx)
        self.server_app = app

    def _prepare_client_backend(
        self,
        job_id: str,
        client: Any,  # noqa: ANN401
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> FrameDispatcher:
        return FrameDispatcher(
            manager=self,
            engine=fl_ctx.get_engine(),
            caller=self.server_app.name,
            cell=self.cell,
            target_fqcn=FQCN.join([client.get_fqcn(), job_id]),
            abort_signal=abort_signal,
            thread_executor=self.outbound_executor,
        )

    def stop_controller(self, fl_ctx: FLContext) -> None:  # noqa: ARG002
        # Collab's own waits for calls to sites that are gone, until their time limit.
        for threads in (self.inbound_executor, self.outbound_executor):
            threads.shutdown(wait=False, cancel_futures=True)
        if "torch" not in sys.modules:
            # It would be loaded only to look for tensors that never travelled.
            self.communicator._cleanup_inflight_tensor_downloads = lambda _: None


class SiteExecutor(CollabExecutor):
    """Collab's executor for calls of bytes; see ``Controller``."""

    def _handle_start_run(self, event_type: str, fl_ctx: FLContext) -> None:  # noqa: ARG002
        app = ClientApp(fl_ctx.get_engine().get_component(self.client_obj_id))
        app.name = fl_ctx.get_identity_name()
        self.process_config(app, fl_ctx)
        self.client_app = app

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,
    ) -> Shareable:
        # The server calls only when all sites have been set up.
        if task_name == SETUP_TASK_NAME and self.client_app is not None:
            server = str(shareable.get(SyncKey.SERVER_FQCN))
            cell = fl_ctx.get_engine().get_cell()
            answer_frames(cell, server, self.client_app.obj.answer)
        return super().execute(task_name, shareable, fl_ctx, abort_signal)


def place_of(error: BaseException) -> str:
    """Kind of an error and where it arose, without its text."""
    frames: Any = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]
    return f"{type(error).__name__} at {' > '.join(places)}"
