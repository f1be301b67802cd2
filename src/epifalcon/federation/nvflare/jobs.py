"""NVFlare jobs: creation, submission, status and errors.

A job is JSON that names installed classes; it contains no code. Its process returns
only an exit code, so the reason of a failure is written to the server's kit under the
job's id and added to the job's record, where the administrator can read it.
"""

import contextlib
import io
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from epifalcon import checks, errors
from epifalcon.errors import (
    DataError,
    EpifalconError,
    SettingsError,
    StoppedError,
    TooFewSitesError,
    UnreachableError,
)
from epifalcon.federation.nvflare.provisioning import (
    CONTROLLER,
    COORDINATOR,
    EXECUTOR,
    SITE,
    Kit,
    open_kit,
    require_name,
    require_nvflare,
)
from epifalcon.settings import as_plain
from epifalcon.types import Plain

if TYPE_CHECKING:
    from epifalcon.federation.network.site_calls import RunOptions, ServerRun
    from epifalcon.federation.network.site_session import RunRequest, SiteSession

T = TypeVar("T")
RUNS = "runs"
"""Folder of a kit that contains one folder per run."""
JOB = "EPIFALCON_JOB"
"""Environment variable of a job's process: the job's id."""
COMPLETED = "FINISHED:COMPLETED"
"""Status of a successful job."""
_RECORD = "epifalcon"
"""Key of the failure reason in a job's record."""
_OUTCOMES = "outcomes"
_METHODS = {
    "falcon": ("falcon.server_run:SitesRun", "falcon.site_run:SiteRun"),
    "falcon-field": ("field.site_runs:FieldSitesRun", "field.site_runs:FieldSiteRun"),
}
_READY_SECONDS = 60.0
_MOST_CALLS = 1000
"""Maximum number of threads, which are created on demand, one per called site."""
_POLL_SECONDS = 0.5
_MOST_REASONS = 20
# Otherwise NVFlare's warnings are printed by programs that configure no logging.
logging.getLogger("nvflare").addHandler(logging.NullHandler())


def server_run(method: str) -> "type[ServerRun[Any]]":
    """Return the class of the server side of a method's run; imports torch."""
    return cast("type[ServerRun[Any]]", _load(method, 0))


def site_run(method: str) -> "type[SiteSession[Any]]":
    """Return the class of the site side of a method's run; imports torch."""
    return cast("type[SiteSession[Any]]", _load(method, 1))


def _load(method: str, end: int) -> object:
    if method not in _METHODS:
        raise SettingsError(f"method={method!r} must be one of {', '.join(_METHODS)}")
    module, _, name = _METHODS[method][end].partition(":")
    return getattr(import_module(f"epifalcon.federation.{module}"), name)


@dataclass(frozen=True, kw_only=True)
class FederatedJob:
    """Arguments of the server's endpoint, and the minimum number of sites."""

    name: str
    """Name of the run."""
    args: Plain
    minimum_sites: int = 1

    def __post_init__(self) -> None:
        require_name("name", self.name)
        checks.whole(1, minimum_sites=self.minimum_sites)


def job_of(
    run: str,
    run_request: "RunRequest",
    options: "RunOptions",
    minimum_sites: int,
    *,
    resume: bool = False,
) -> FederatedJob:
    """Create the job of one run."""
    args = {
        "method": run_request.method,
        "run": run,
        "request": as_plain(run_request),
        "options": as_plain(options),
        "resume": resume,
    }
    return FederatedJob(name=run, args=args, minimum_sites=minimum_sites)


def write_job(job: FederatedJob, folder: Path) -> Path:
    """Write the job to a new folder inside ``folder``; return its path."""
    place = folder / job.name
    config = place / "app" / "config"
    config.mkdir(parents=True)
    no_filters: Plain = {"task_data_filters": [], "task_result_filters": []}
    controller = {
        "server_obj_id": "coordinator",
        "sync_task_timeout": _READY_SECONDS,
        "max_call_threads": _MOST_CALLS,
    }
    executor = _component("executor", EXECUTOR, {"client_obj_id": "site"})
    site = {"method": job.args["method"], "run": job.name}
    contents: dict[Path, Plain] = {
        place / "meta.json": {
            "name": job.name,
            "resource_spec": {},
            "min_clients": job.minimum_sites,
            "deploy_map": {"app": ["@ALL"]},
        },
        config / "config_fed_server.json": {
            "format_version": 2,
            # Sites poll for tasks, and a job has only two, both at its start. Each
            # poll costs 10 ms of CPU time.
            "server": {"task_request_interval": 0.5},
            "workflows": [_component("controller", CONTROLLER, controller)],
            "components": [_component("coordinator", COORDINATOR, job.args)],
            # Delay from the report that a site no longer runs the job to its removal.
            "dead_client_grace_period": 1.0,
            "dead_client_check_lead_time": 1.0,
            **no_filters,
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [_component("site", SITE, site)],
            **no_filters,
        },
    }
    for path, content in contents.items():
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return place


def _component(name: str, path: str, args: Plain) -> Plain:
    return {"id": name, "path": path, "args": dict(args)}


def write_reason(folder: Path, error: EpifalconError) -> None:
    """Write the error of this process's job to the kit ``folder``."""
    if not (job := os.environ.get(JOB, "")):
        return
    place = folder / _OUTCOMES
    place.mkdir(exist_ok=True)
    text = json.dumps({"kind": type(error).__name__, "why": str(error)})
    (place / f"{job}.json").write_text(text, encoding="utf-8")


def read_reason(folder: Path, job: str) -> dict[str, Any]:
    """Read the error of a job, as an entry of its record; empty if there is none."""
    path = folder / _OUTCOMES / f"{Path(job).name}.json"
    try:
        return {_RECORD: json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        return {}


def error_of(kind: str, text: str) -> EpifalconError:
    """Convert the type and message of a job's error to an exception of this package."""
    if kind == StoppedError.__name__ and "gone: " in text:
        # NVFlare stops a job that has lost too many sites.
        return TooFewSitesError(text)
    known = getattr(errors, kind, EpifalconError)
    if not (isinstance(known, type) and issubclass(known, EpifalconError)):
        known = EpifalconError
    return known(text)


@dataclass(frozen=True)
class JobStatus:
    """Status of a job at the server."""

    job: str
    name: str
    status: str
    submitted: str
    kind: str = ""
    """Type of the error that ended the job; ``TooFewSitesError`` if it lost sites."""
    why: str = ""
    """Message of that error, such as which site refused and why."""

    @classmethod
    def of(cls, job: str, record: Mapping[str, Any]) -> "JobStatus":
        """Build the status from the server's record of a job."""
        names = ("name", "status", "submit_time_iso")
        status = cls(job, *(str(record.get(name)) for name in names))
        if not status.finished:
            return status
        reason = record.get(_RECORD)
        if isinstance(reason, dict):
            kind, why = str(reason.get("kind", "")), str(reason.get("why", ""))
            return replace(status, kind=kind, why=why)
        if status.succeeded:
            return status
        for name in ("job_deploy_detail", "schedule_history"):
            lines = record.get(name)
            listed = map(str, lines if isinstance(lines, list) else [])
            if odd := [line for line in listed if not line.endswith(": OK")]:
                return replace(status, why="; ".join(odd[-3:]))
        return status

    @property
    def finished(self) -> bool:
        return self.status.startswith("FINISHED")

    @property
    def succeeded(self) -> bool:
        return self.status == COMPLETED


@dataclass(frozen=True)
class FederationStatus:
    """Status of the server, connected and missing sites, and jobs."""

    server: str
    connected: tuple[str, ...]
    missing: tuple[str, ...]
    jobs: tuple[JobStatus, ...]


class Admin:
    """A session with the server; created by ``connect``."""

    def __init__(self, session: Any, kit: Kit) -> None:  # noqa: ANN401
        self._session = session
        self.kit = kit

    def submit(self, job: FederatedJob) -> str:
        """Submit a job and return its id; it starts once enough sites are connected."""
        with tempfile.TemporaryDirectory() as scratch, _converted_errors("submit"):
            return str(self._session.submit_job(str(write_job(job, Path(scratch)))))

    def connected(self) -> tuple[str, ...]:
        """Return the names of the connected sites."""
        with _converted_errors("list sites"):
            clients = self._session.get_system_info().client_info
        return tuple(sorted(client.name for client in clients))

    def status(self) -> FederationStatus:
        """Return the status of the server, sites and jobs."""
        connected = self.connected()
        return FederationStatus(
            # NVFlare calls a server without a job stopped.
            server="running",
            connected=connected,
            missing=tuple(sorted(set(self.kit.deployment.sites) - set(connected))),
            jobs=self.jobs(),
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """Return the status of all jobs, oldest first."""
        with _converted_errors("list jobs"):
            rows = self._session.list_jobs()
        names = ("job_id", "job_name", "status", "submit_time")
        statuses = [JobStatus(*(str(row.get(name)) for name in names)) for row in rows]
        listed = sorted(statuses, key=lambda job: job.submitted)
        finished = [job for job in listed if job.finished]
        # The list has no reasons: request the records of the newest finished jobs.
        detailed = {job.job: self.job(job.job) for job in finished[-_MOST_REASONS:]}
        return tuple(detailed.get(job.job, job) for job in listed)

    def job(self, job: str) -> JobStatus:
        """Return the status of one job; raise ``DataError`` if it does not exist."""
        with _converted_errors(f"read job {job}"):
            return JobStatus.of(job, self._session.get_job_meta(job))

    def stop(self, job: str) -> None:
        """Stop a running or waiting job."""
        with _converted_errors(f"stop job {job}"):
            self._session.abort_job(job)

    def wait(self, job: str, limit: float) -> JobStatus:
        """Wait up to ``limit`` seconds for the job to finish; return its status."""
        return _until(lambda: self.job(job), lambda status: status.finished, limit)

    def wait_for_sites(self, count: int, limit: float) -> tuple[str, ...]:
        """Wait until ``count`` sites are connected; raise an error after a timeout."""
        connected = _until(self.connected, lambda sites: len(sites) >= count, limit)
        if len(connected) < count:
            missing = sorted(set(self.kit.deployment.sites) - set(connected))
            raise UnreachableError(
                f"{len(connected)} of {count} sites connected within {limit:g} s; "
                f"missing: {', '.join(missing)}"
            )
        return connected


def _until(poll: Callable[[], T], is_done: Callable[[T], bool], limit: float) -> T:
    """Poll up to ``limit`` seconds until ``is_done``; return the last value."""
    end = time.monotonic() + limit
    while not is_done(value := poll()) and time.monotonic() <= end:
        time.sleep(_POLL_SECONDS)
    return value


@contextlib.contextmanager
def connect(folder: Path, limit: float = 10.0) -> Iterator[Admin]:
    """Open a session with the server, using the admin kit in ``folder``."""
    require_nvflare()
    # gRPC would print the reasons of a failed connection, and NVFlare tracebacks.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from epifalcon.federation.nvflare.messaging import restrict_messages

    restrict_messages()
    kit = open_kit(folder, "admin")
    kit.credentials()
    host, port = kit.deployment.host, kit.deployment.admin_port
    address = f"{host}:{port}"
    try:
        # NVFlare takes seconds to detect that no server listens.
        socket.create_connection((host, port), limit).close()
    except OSError as error:
        why = error.strerror or error
        raise UnreachableError(f"cannot reach the server at {address}: {why}") from None
    with _converted_errors(f"reach the server at {address}"), _silence():
        admin, place = kit.deployment.admin, str(kit.folder)
        session = new_secure_session(admin, place, timeout=limit)
    try:
        yield Admin(session, kit)
    finally:
        with contextlib.suppress(Exception), _silence():
            session.close()


@contextlib.contextmanager
def _converted_errors(what: str) -> Iterator[None]:
    """Convert NVFlare's errors to ``EpifalconError``, naming the failed action."""
    from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

    try:
        yield
    except EpifalconError:
        raise
    except JobNotFound:
        raise DataError(f"cannot {what}: the server has no such job") from None
    except NoConnection:
        why = "no connection; is the kit of this federation?"
        raise UnreachableError(f"cannot {what}: {why}") from None
    except Exception as error:
        raise EpifalconError(f"cannot {what}: {error}") from None


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the output of NVFlare's API, which includes tracebacks."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
