"""Why a job failed: written by its process, read by whoever keeps the list of jobs.

A job's process ends with a code and no words. Its reason lies in the server's kit
under the job's number, goes into the job's record together with its status, and so
comes to the administrator.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epifalcon import errors
from epifalcon.errors import EpifalconError, StoppedError, TooFewSitesError
from epifalcon.federation.nvflare.job_process import JOB

KEY = "epifalcon"
"""In a job's record."""
COMPLETED = "FINISHED:COMPLETED"
"""The status of a job that did not fail."""
_FOLDER = "outcomes"


def tell(folder: Path, error: EpifalconError) -> None:
    """Write down in the kit ``folder`` why this process's job failed."""
    if not (job := os.environ.get(JOB, "")):
        return
    place = folder / _FOLDER
    place.mkdir(exist_ok=True)
    text = json.dumps({"kind": type(error).__name__, "why": str(error)})
    (place / f"{job}.json").write_text(text, encoding="utf-8")


def told(folder: Path, job: str) -> dict[str, Any]:
    """What was written of a job, to be added to its record; empty without."""
    try:
        text = (folder / _FOLDER / f"{Path(job).name}.json").read_text(encoding="utf-8")
        return {KEY: json.loads(text)}
    except (OSError, ValueError):
        return {}


def why(record: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and words of a job's failure by its record; empty where none is known."""
    status = str(record.get("status", ""))
    if not status.startswith("FINISHED") or status == COMPLETED:
        return "", ""
    found = record.get(KEY)
    if isinstance(found, dict):
        return str(found.get("kind", "")), str(found.get("why", ""))
    for name in ("job_deploy_detail", "schedule_history"):
        lines = record.get(name)
        told = [str(one) for one in lines] if isinstance(lines, list) else []
        if odd := [one for one in told if not one.endswith(": OK")]:
            return "", "; ".join(odd[-3:])
    return "", ""


def error_of(kind: str, words: str) -> EpifalconError:
    """The error that ended a job, as it would be in this process."""
    if kind == StoppedError.__name__ and "gone: " in words:
        # NVFlare stops a job that has lost its sites.
        return TooFewSitesError(words)
    known = getattr(errors, kind, EpifalconError)
    if not (isinstance(known, type) and issubclass(known, EpifalconError)):
        known = EpifalconError
    return known(words)
