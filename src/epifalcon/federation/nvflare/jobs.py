"""Jobs: JSON that names installed classes and no code, and why a job failed.

A job's process ends with a code and no text. Its reason is written to the server's
kit under the job's number, goes into the job's record together with its status, and
so reaches the administrator.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epifalcon import checks, errors
from epifalcon.errors import (
    EpifalconError,
    SettingsError,
    StoppedError,
    TooFewSitesError,
)
from epifalcon.settings import as_plain
from epifalcon.types import Plain

if TYPE_CHECKING:
    from epifalcon.federation.sites.server_run import Conduct, ServerRun
    from epifalcon.federation.sites.session import Order, SiteSession

RUNS = "runs"
"""Folder in a kit with a folder for each run."""
JOB = "EPIFALCON_JOB"
"""Environment variable of a job's process: the job's number."""
HERE = "epifalcon.federation.nvflare"
COORDINATOR, SITE = f"{HERE}.endpoints.CoordinatorEnd", f"{HERE}.endpoints.SiteEnd"
CONTROLLER = f"{HERE}.components.Controller"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
PLUMBING = (CONTROLLER, EXECUTOR, COORDINATOR, SITE)
"""Classes that a job may name."""
COMPLETED = "FINISHED:COMPLETED"
"""The status of a job that did not fail."""
_RECORD = "epifalcon"
"""Key of the reason in a job's record."""
_OUTCOMES = "outcomes"
_SITES, _FALCON = "epifalcon.federation.field", "epifalcon.federation.sites"
_METHODS = {
    "falcon": (f"{_FALCON}.coordinating:SitesRun", f"{_FALCON}.run:SiteRun"),
    "falcon-field": (
        f"{_SITES}.coordinating:FieldSitesRun",
        f"{_SITES}.site:FieldSiteRun",
    ),
}
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_MOST_CALLS = 1000
"""Threads are made when needed: one for each site that is being called."""


def server_run(method: str) -> "type[ServerRun[Any]]":
    """The class of a method's run at the server; loads torch."""
    found: type[ServerRun[Any]] = _load(method, 0)
    return found


def site_run(method: str) -> "type[SiteSession[Any]]":
    """The class of a method's run at a site; loads torch."""
    found: type[SiteSession[Any]] = _load(method, 1)
    return found


def _load(method: str, end: int) -> Any:  # noqa: ANN401
    if method not in _METHODS:
        raise SettingsError(f"method={method!r} must be one of {', '.join(_METHODS)}")
    module, _, name = _METHODS[method][end].partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class by its dotted path, and the JSON arguments it is built with."""

    path: str
    args: Plain = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise SettingsError(
                f"path={self.path!r} must be the dotted path of a class"
            )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the server and each site run, and the least number of sites."""

    name: str
    coordinator: Part
    site: Part
    minimum_sites: int = 1
    ready_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(f"name={self.name!r} must be letters, digits, - and _")
        checks.whole(1, minimum_sites=self.minimum_sites)
        checks.positive(ready_seconds=self.ready_seconds)


def job_of(
    run: str,
    order: "Order",
    conduct: "Conduct",
    minimum_sites: int,
    *,
    resume: bool = False,
) -> Job:
    """The job of one run."""
    args = {
        "method": order.method,
        "run": run,
        "order": as_plain(order),
        "conduct": as_plain(conduct),
        "resume": resume,
    }
    return Job(
        name=run,
        coordinator=Part(path=COORDINATOR, args=args),
        site=Part(path=SITE, args={"method": order.method}),
        minimum_sites=minimum_sites,
    )


def write_job(job: Job, folder: Path) -> Path:
    """Write the job's folder inside ``folder`` and return its path."""
    place = folder / job.name
    config = place / "app" / "config"
    config.mkdir(parents=True)
    no_filters: Plain = {"task_data_filters": [], "task_result_filters": []}
    controller = {
        "server_obj_id": "coordinator",
        "sync_task_timeout": job.ready_seconds,
        "max_call_threads": _MOST_CALLS,
    }
    executor = {
        "id": "executor",
        "path": EXECUTOR,
        "args": {"client_obj_id": "site"},
    }
    contents: dict[Path, Plain] = {
        place / "meta.json": {
            "name": job.name,
            "resource_spec": {},
            "min_clients": job.minimum_sites,
            "deploy_map": {"app": ["@ALL"]},
        },
        config / "config_fed_server.json": {
            "format_version": 2,
            # Sites poll for tasks, of which a job has two, at its start; each poll
            # costs 10 ms of CPU time.
            "server": {"task_request_interval": 0.5},
            "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
            "components": [_component("coordinator", job.coordinator)],
            # From the report that a site no longer runs the job to treating it as gone.
            "dead_client_grace_period": 1.0,
            "dead_client_check_lead_time": 1.0,
            **no_filters,
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [_component("site", job.site)],
            **no_filters,
        },
    }
    for path, content in contents.items():
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return place


def _component(name: str, part: Part) -> Plain:
    return {"id": name, "path": part.path, "args": dict(part.args)}


def write_reason(folder: Path, error: EpifalconError) -> None:
    """Write to the kit ``folder`` why this process's job failed."""
    if not (job := os.environ.get(JOB, "")):
        return
    place = folder / _OUTCOMES
    place.mkdir(exist_ok=True)
    text = json.dumps({"kind": type(error).__name__, "why": str(error)})
    (place / f"{job}.json").write_text(text, encoding="utf-8")


def read_reason(folder: Path, job: str) -> dict[str, Any]:
    """The reason of a job, to be added to its record; empty without."""
    path = folder / _OUTCOMES / f"{Path(job).name}.json"
    try:
        return {_RECORD: json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class Reason:
    """Why a job failed."""

    kind: str = ""
    """Type of the error."""
    why: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Reason":
        """From a job's record; empty where nothing is known or it did not fail."""
        status = str(record.get("status", ""))
        if not status.startswith("FINISHED") or status == COMPLETED:
            return cls()
        found = record.get(_RECORD)
        if isinstance(found, dict):
            return cls(str(found.get("kind", "")), str(found.get("why", "")))
        for name in ("job_deploy_detail", "schedule_history"):
            lines = record.get(name)
            listed = [str(one) for one in lines] if isinstance(lines, list) else []
            if odd := [one for one in listed if not one.endswith(": OK")]:
                return cls("", "; ".join(odd[-3:]))
        return cls()


def error_of(kind: str, text: str) -> EpifalconError:
    """The error that ended a job, as it would be in this process."""
    if kind == StoppedError.__name__ and "gone: " in text:
        # NVFlare stops a job that has lost its sites.
        return TooFewSitesError(text)
    known = getattr(errors, kind, EpifalconError)
    if not (isinstance(known, type) and issubclass(known, EpifalconError)):
        known = EpifalconError
    return known(text)
