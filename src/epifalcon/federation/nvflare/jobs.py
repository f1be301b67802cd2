"""A job's folder: JSON that names installed classes, and no code."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epifalcon import checks
from epifalcon.errors import SettingsError
from epifalcon.federation.nvflare.kit_files import HERE
from epifalcon.types import Plain

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_MOST_CALLS = 1000
"""Threads are made when needed: one for each site that is being called."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class by its dotted path, and the JSON arguments it is made with."""

    path: str
    args: Plain = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise SettingsError(
                f"path={self.path!r} must be the dotted path of a class"
            )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the server and each site run, and with how many sites at least."""

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


def write_job(job: Job, folder: Path) -> Path:
    """Write the job's folder inside ``folder`` and give its path."""
    place = folder / job.name
    config = place / "app" / "config"
    config.mkdir(parents=True)
    _write(place / "meta.json", _meta(job))
    _write(config / "config_fed_server.json", _server(job))
    _write(config / "config_fed_client.json", _client(job))
    return place


def _meta(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "resource_spec": {},
        "min_clients": job.minimum_sites,
        "deploy_map": {"app": ["@ALL"]},
    }


def _server(job: Job) -> dict[str, Any]:
    end = {"coordinator": _part(job.coordinator)}
    args = {
        "server_obj_id": "coordinator_end",
        "sync_task_timeout": job.ready_seconds,
        "max_call_threads": _MOST_CALLS,
    }
    return {
        "format_version": 2,
        # Sites ask so often for tasks, of which a job of ours has two, at its start:
        # short enough for that, and each question costs 10 ms of processors.
        "server": {"task_request_interval": 0.5},
        "workflows": [
            {"id": "controller", "path": f"{HERE}.ends.Controller", "args": args}
        ],
        "components": [
            {
                "id": "coordinator_end",
                "path": f"{HERE}.ends.CoordinatorEnd",
                "args": end,
            }
        ],
        "task_data_filters": [],
        "task_result_filters": [],
        # From the report that a site no longer runs the job to treating it as gone.
        "dead_client_grace_period": 1.0,
        "dead_client_check_lead_time": 1.0,
    }


def _client(job: Job) -> dict[str, Any]:
    return {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {
                    "id": "executor",
                    "path": f"{HERE}.ends.SiteExecutor",
                    "args": {"client_obj_id": "site_end"},
                },
            }
        ],
        "components": [
            {
                "id": "site_end",
                "path": f"{HERE}.ends.SiteEnd",
                "args": {"site": _part(job.site)},
            }
        ],
        "task_data_filters": [],
        "task_result_filters": [],
    }


def _part(part: Part) -> dict[str, Any]:
    return {"path": part.path, "args": dict(part.args)}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
