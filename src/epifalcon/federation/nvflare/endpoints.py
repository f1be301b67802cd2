"""Server and site endpoints of an NVFlare job, and the transport between them.

The server calls all sites in parallel through a ``Transport``; calls and answers
are bytes. Error messages may name a region or a person, so they stay on the machine
where they occur: NVFlare and the other side receive only the type of an error.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted

from epifalcon.checks import present
from epifalcon.errors import (
    EpifalconError,
    SettingsError,
    StoppedError,
    TooFewSitesError,
)
from epifalcon.federation.nvflare import jobs
from epifalcon.federation.nvflare.provisioning import open_kit
from epifalcon.settings import build
from epifalcon.types import Plain

if TYPE_CHECKING:
    from epifalcon.federation.network.site_calls import Transport

_log = logging.getLogger(__name__)
GONE = "the site's process has ended"
_POLL_SECONDS = 0.1
_MOST_CALLS = 4
"""Calls that a site holds: one in work, and of three missed rounds one each."""
_REASONS = {
    "timeout": "no answer within {limit:g} s",
    "target_unreachable": GONE,
    "comm_error": "the connection failed",
    "service_unavailable": "the site is shutting down",
}


class ServerEndpoint(FLComponent):
    """Server endpoint of a job: one run over all its sites."""

    def __init__(
        self, method: str, run: str, request: Plain, options: Plain, resume: bool
    ) -> None:
        super().__init__()
        self._method, self._run, self._resume = method, run, resume
        self._request, self._options = request, options
        self._lost: set[str] = set()
        """Sites whose job process has ended, according to the heartbeats."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Update the set of lost sites when sites disconnect or reconnect."""
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._lost.add(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._lost.discard(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))

    @collab.main
    def run(self) -> None:
        """Run the job; after a failure raise an error without the original message."""
        context = collab.context
        transport = CollabTransport(context.clients, self._lost, context.is_aborted)
        folder = Path(collab.workspace.get_root_dir())
        try:
            # This module loads torch, which only job processes need.
            from epifalcon.federation.network.signed_calls import SignedTransport

            credentials = open_kit(folder, "server").credentials()
            signed = SignedTransport(transport, self._run, credentials)
            self.coordinate(signed, folder)
        except StoppedError:
            _log.info("the job was stopped")
        except Exception as error:
            _log.error("the server run failed: %s", place_of(error))
            # NVFlare logs the message, which may reveal data; the type does not.
            kind = type(error).__name__
            raise RuntimeError(f"the server run failed: {kind}") from None
        finally:
            transport.close()

    def coordinate(self, transport: "Transport", folder: Path) -> None:
        """Run the server side; write why it failed or what it lacks to ``folder``."""
        # These modules load torch, which only job processes need.
        from epifalcon.federation.network.site_calls import RunOptions
        from epifalcon.federation.network.site_files import require_run_name

        try:
            path = folder / jobs.RUNS / require_run_name(self._run)
            if path.exists() and not self._resume:
                raise SettingsError(f"{path}: the run exists; resume it with --resume")
            kind = jobs.server_run(self._method)
            run_request = build(kind.request_type, self._request, "request")
            options = build(RunOptions, self._options, "options")
            summary = kind(transport, path, run_request, options).run()
            if lost := summary["sites"]["lost"]:
                text = f"the run was completed without {', '.join(lost)}"
                jobs.write_reason(folder, TooFewSitesError(text))
        except EpifalconError as error:
            jobs.write_reason(folder, error)
            raise


class SiteEndpoint:
    """Site endpoint of a job: answers the server's signed calls of one run."""

    def __init__(self, method: str, run: str) -> None:
        self._method, self._run = method, run
        self._unready = ""
        self._answer: Callable[[bytes], bytes] | None = None
        self._places = threading.Semaphore(_MOST_CALLS)

    @collab.init
    def open(self) -> None:
        """Prepare the endpoint; an error is reported at the first call."""
        try:
            from epifalcon.federation.network.signed_calls import SignedAnswers

            folder, name = Path(collab.workspace.get_root_dir()), collab.site_name
            answer, kit = self.prepare(name, folder), open_kit(folder, "site")
            credentials, host = kit.credentials(), kit.deployment.host
            self._answer = SignedAnswers(credentials, host, self._run, name, answer)
        except Exception as error:
            self._unready = type(error).__name__
            _log.error("the site could not be prepared: %s", place_of(error))

    @collab.publish
    def answer(self, call: bytes) -> bytes | str:
        """Return the answer to a call, or the type of an error."""
        if self._unready:
            return self._unready
        if not self._places.acquire(blocking=False):
            return "TooManyCalls"
        try:
            return present(self._answer, "the site endpoint is not open")(call)
        except Exception as error:
            _log.error("a call failed: %s", place_of(error))
            return type(error).__name__
        finally:
            self._places.release()

    def prepare(self, name: str, folder: Path) -> Callable[[bytes], bytes]:
        """Return what answers verified calls; data are loaded at ``hello``."""
        # Imports take seconds: do them in parallel at all sites before the first call.
        from epifalcon.federation.network.site_files import SiteFiles

        kind = jobs.site_run(self._method)
        return kind(SiteFiles(folder), self._run, name).answer


class CollabTransport:
    """Transport over NVFlare's Collab calls, one thread per call."""

    def __init__(
        self,
        proxies: Iterable[Any],
        lost: set[str],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._lost, self._stopped = lost, stopped
        self._threads = ThreadPoolExecutor(
            max(1, 2 * len(self._proxies)), thread_name_prefix="call"
        )

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return tuple(sorted(self._proxies))

    def call(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its call; return answers and failure reasons by site."""
        self._refuse_stopped()
        if unknown := calls.keys() - self._proxies.keys():
            raise SettingsError(f"unknown site {min(unknown)!r}")
        failed = {site: GONE for site in calls if site in self._lost}
        pending = {}
        for site in calls.keys() - failed.keys():
            answer = self._proxies[site](timeout=seconds).answer
            pending[self._threads.submit(answer, calls[site])] = site
        answers: dict[str, bytes] = {}
        end = time.monotonic() + seconds
        while pending:
            done, _ = wait(pending, _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                site = pending.pop(future)
                result = _result(future, seconds)
                if isinstance(result, bytes):
                    answers[site] = result
                else:
                    failed[site] = result
            self._refuse_stopped()
            late = time.monotonic() > end
            silent = _REASONS["timeout"].format(limit=seconds)
            for future, site in list(pending.items()):
                if late or site in self._lost:
                    del pending[future]
                    failed[site] = GONE if site in self._lost else silent
        return answers, failed

    def _refuse_stopped(self) -> None:
        """Raise ``StoppedError`` if NVFlare stopped the job, naming the lost sites."""
        if self._stopped():
            gone = ", ".join(site for site in self.sites if site in self._lost)
            raise StoppedError(f"the job was stopped{gone and f'; gone: {gone}'}")

    def close(self) -> None:
        """Cancel pending calls and release the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def place_of(error: BaseException) -> str:
    """Return the type of an error and its last source lines, without its message."""
    frames: Any = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]
    return f"{type(error).__name__} at {' > '.join(places)}"


def _result(future: Future[Any], seconds: float) -> bytes | str:
    """Return the answer to a call, or the reason of its failure as text."""
    try:
        answer = future.result()
    except RunAborted:
        raise StoppedError("the job was stopped") from None
    except CollabCallError as error:
        if isinstance(error.cause, TimeoutError):
            return _REASONS["timeout"].format(limit=seconds)
        text = str(error.cause).lower()
        for sign, reason in _REASONS.items():
            if sign in text:
                return reason.format(limit=seconds)
        return f"the call failed ({error.cause_type})"
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, str):
        # SiteEndpoint sends only the type of an error.
        return f"the site failed with {answer[:60]}"
    return f"the site sent {type(answer).__name__}, expected bytes"
