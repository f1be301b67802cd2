"""Submitting jobs and looking after them, with the administrator's kit."""

import contextlib
import io
import logging
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epifalcon.errors import DataError, EpifalconError
from epifalcon.federation.nvflare.jobs import COMPLETED, Job, Reason, write_job
from epifalcon.federation.nvflare.provisioning import Kit, open_kit

_POLL_SECONDS = 0.5
_MOST_REASONS = 20
# Else its warnings go to the screen of a program that sets up no logging.
logging.getLogger("nvflare").addHandler(logging.NullHandler())
_FINISHED = "FINISHED"


@dataclass(frozen=True)
class JobStatus:
    """A job as the server knows it."""

    job: str
    name: str
    status: str
    submitted: str
    kind: str = ""
    """Of the error that ended it."""
    why: str = ""
    """Its words, such as which site refused and by what."""

    @property
    def finished(self) -> bool:
        return self.status.startswith(_FINISHED)

    @property
    def succeeded(self) -> bool:
        return self.status == COMPLETED


@dataclass(frozen=True)
class FederationStatus:
    """The server, the sites that are connected to it, and those that are not."""

    server: str
    connected: tuple[str, ...]
    missing: tuple[str, ...]
    jobs: tuple[JobStatus, ...]


class Admin:
    """A session with the server; made by ``connect``."""

    def __init__(self, session: Any, kit: Kit) -> None:  # noqa: ANN401
        self._session = session
        self.kit = kit

    def submit(self, job: Job) -> str:
        """Hand in a job and give its id; it starts once enough sites are there."""
        with tempfile.TemporaryDirectory() as scratch, _tried("submit"):
            return str(self._session.submit_job(str(write_job(job, Path(scratch)))))

    def connected(self) -> tuple[str, ...]:
        """Names of the sites that are connected now."""
        with _tried("list sites"):
            found = self._session.get_system_info().client_info
        return tuple(sorted(client.name for client in found))

    def status(self) -> FederationStatus:
        """Server, sites and jobs."""
        with _tried("ask for the status"):
            info = self._session.get_system_info()
        there = {client.name for client in info.client_info}
        return FederationStatus(
            server=str(info.server_info.status),
            connected=tuple(sorted(there)),
            missing=tuple(sorted(set(self.kit.deployment.sites) - there)),
            jobs=self.jobs(),
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """All jobs the server keeps, oldest first."""
        with _tried("list jobs"):
            found = self._session.list_jobs()
        made = [
            JobStatus(
                job=str(one.get("job_id")),
                name=str(one.get("job_name")),
                status=str(one.get("status")),
                submitted=str(one.get("submit_time")),
            )
            for one in found
        ]
        listed = sorted(made, key=lambda one: one.submitted)
        failed = [one for one in listed if one.finished and not one.succeeded]
        # The list has no reasons: one more question for each of the newest.
        found_again = {one.job: self.job(one.job) for one in failed[-_MOST_REASONS:]}
        return tuple(found_again.get(one.job, one) for one in listed)

    def job(self, job: str) -> JobStatus:
        """One job, or ``DataError`` if the server knows no such job."""
        with _tried(f"look at job {job}"):
            meta = self._session.get_job_meta(job)
        reason = Reason.of(meta)
        return JobStatus(
            job=job,
            name=str(meta.get("name")),
            status=str(meta.get("status")),
            submitted=str(meta.get("submit_time_iso")),
            kind=reason.kind,
            why=reason.why,
        )

    def stop(self, job: str) -> None:
        """Stop a job, running or waiting."""
        with _tried(f"stop job {job}"):
            self._session.abort_job(job)

    def wait(self, job: str, limit: float) -> JobStatus:
        """Wait until the job has finished, at most ``limit`` seconds."""
        end = time.monotonic() + limit
        while True:
            found = self.job(job)
            if found.finished or time.monotonic() > end:
                return found
            time.sleep(_POLL_SECONDS)

    def wait_for_sites(self, count: int, limit: float) -> tuple[str, ...]:
        """Wait until ``count`` sites are connected, or raise naming the missing."""
        end = time.monotonic() + limit
        while True:
            there = self.connected()
            if len(there) >= count:
                return there
            if time.monotonic() > end:
                missing = sorted(set(self.kit.deployment.sites) - set(there))
                raise EpifalconError(
                    f"{len(there)} of {count} sites connected within {limit:g} s; "
                    f"missing: {', '.join(missing)}"
                )
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def connect(folder: Path, limit: float = 10.0) -> Iterator[Admin]:
    """A session with the server of the administrator's kit in ``folder``."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    kit = open_kit(folder, "admin")
    place = f"{kit.deployment.host}:{kit.deployment.admin_port}"
    _knock(kit, place, limit)
    with _tried(f"reach the server at {place}"), _silence():
        session = new_secure_session(
            kit.deployment.admin, str(kit.folder), timeout=limit
        )
    try:
        yield Admin(session, kit)
    finally:
        with contextlib.suppress(Exception), _silence():
            session.close()


def _knock(kit: Kit, place: str, limit: float) -> None:
    """Tell at once that nobody listens; NVFlare takes seconds to find out."""
    try:
        host, port = kit.deployment.host, kit.deployment.admin_port
        socket.create_connection((host, port), limit).close()
    except OSError as error:
        raise EpifalconError(
            f"cannot reach the server at {place}: {error.strerror or error}"
        ) from None


@contextlib.contextmanager
def _tried(what: str) -> Iterator[None]:
    """NVFlare's many errors as ours, each with what was tried."""
    from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

    try:
        yield
    except EpifalconError:
        raise
    except JobNotFound:
        raise DataError(f"cannot {what}: the server knows no such job") from None
    except NoConnection:
        raise EpifalconError(f"cannot {what}: no connection") from None
    except Exception as error:
        raise EpifalconError(f"cannot {what}: {error}") from None


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """NVFlare's API prints to the screen."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
