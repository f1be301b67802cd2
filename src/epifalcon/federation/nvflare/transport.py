"""Calls from the coordinator to the sites, each its own, all at the same time.

A site is an object with ``answer(call) -> bytes``. The coordinator sees a
``Transport``: calls by site go out together, answers and failures come back by
site, failures in words and never in the site's own.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from nvflare.collab import CollabCallError
from nvflare.collab.api.exceptions import RunAborted

from epifalcon.errors import SettingsError, StoppedError

GONE = "the site's process is gone"
_LOOK_SECONDS = 0.1
_REASONS = {
    "timeout": "no answer within {limit:g} s",
    "target_unreachable": GONE,
    "comm_error": "the connection broke",
    "service_unavailable": "the site is shutting down",
}


class CollabTransport:
    """``Transport`` over NVFlare's Collab calls.

    A Collab group call sends one argument to all sites, so this makes one call
    for each site's proxy, each in a thread. A proxy sets up its own call context
    in the thread that calls it, so that nothing need be carried over.
    """

    def __init__(
        self,
        proxies: Iterable[Any],
        lost: "LostSites",
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._lost = lost
        self._stopped = stopped
        self._threads = ThreadPoolExecutor(
            max(1, 2 * len(self._proxies)), thread_name_prefix="ask"
        )

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self._proxies))

    def ask(
        self, calls: Mapping[str, bytes], timeout: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its own call; give answers and failures by site.

        Returns once every site has answered or failed, at the latest soon after
        ``timeout`` seconds. A site that is known to be gone fails at once; what it
        might still send is dropped. Raises ``StoppedError`` if the job is stopped.
        """
        self._refuse_stopped()
        if unknown := calls.keys() - self._proxies.keys():
            raise SettingsError(f"no site is called {min(unknown)!r}")
        failed = {site: GONE for site in calls if site in self._lost}
        pending = {
            self._threads.submit(
                self._proxies[site](timeout=timeout).answer, call
            ): site
            for site, call in calls.items()
            if site not in failed
        }
        answers: dict[str, bytes] = {}
        end = time.monotonic() + timeout
        while pending:
            done, _ = wait(pending, _LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                _sort_out(future, pending.pop(future), timeout, (answers, failed))
            self._refuse_stopped()
            failed |= self._given_up(pending, time.monotonic() > end, timeout)
        return answers, failed

    def _given_up(
        self, pending: dict[Future[Any], str], late: bool, timeout: float
    ) -> dict[str, str]:
        """Take out of ``pending`` what will not be waited for, with the reasons."""
        told = {}
        for future, site in list(pending.items()):
            if site in self._lost:
                told[site] = GONE
            elif late:
                told[site] = _REASONS["timeout"].format(limit=timeout)
            else:
                continue
            del pending[future]
        return told

    def _refuse_stopped(self) -> None:
        if self._stopped():
            raise self._stop()

    def _stop(self) -> StoppedError:
        """NVFlare stops a job by order, and when it has too few sites."""
        gone = ", ".join(site for site in self.sites if site in self._lost)
        return StoppedError("the job was stopped" + (f"; gone: {gone}" if gone else ""))

    def close(self) -> None:
        """Let go of calls that nobody waits for any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LostSites:
    """Sites whose job process is gone, as the server's heartbeats tell."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def add(self, site: str) -> None:
        with self._lock:
            self._names.add(site)

    def discard(self, site: str) -> None:
        with self._lock:
            self._names.discard(site)

    def __contains__(self, site: object) -> bool:
        with self._lock:
            return site in self._names


def _sort_out(
    future: Future[Any],
    site: str,
    timeout: float,
    told: tuple[dict[str, bytes], dict[str, str]],
) -> None:
    """Put what came of a call among the answers or the failures."""
    answers, failed = told
    try:
        answer = future.result()
    except RunAborted:
        raise StoppedError("the job was stopped") from None
    except CollabCallError as error:
        failed[site] = _in_words(error, timeout)
        return
    if isinstance(answer, bytes):
        answers[site] = answer
    elif isinstance(answer, str):
        # A site's code failed: SiteEnd sends the kind of error and nothing else.
        failed[site] = f"the site failed with {answer[:60]}"
    else:
        failed[site] = f"the site sent {type(answer).__name__}, expected bytes"


def _in_words(error: CollabCallError, timeout: float) -> str:
    if isinstance(error.cause, TimeoutError):
        return _REASONS["timeout"].format(limit=timeout)
    told = str(error.cause).lower()
    for sign, reason in _REASONS.items():
        if sign in told:
            return reason.format(limit=timeout)
    return f"the call failed ({error.cause_type})"
