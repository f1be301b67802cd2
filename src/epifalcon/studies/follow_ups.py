"""What is measured on runs that are done, each in a process of its own.

A follow-up's folder in that of the method holds ``found.json`` or ``failed.json``.
Nothing here knows what is measured: see ``studies.one_follow_up``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epifalcon import store
from epifalcon.errors import WriteError
from epifalcon.progress import Progress
from epifalcon.settings import json_text
from epifalcon.studies.comparing import Crew, duration, end_told, last_line
from epifalcon.studies.measurements import FAILED, Failed
from epifalcon.studies.processes import Ended, Job, Running, run_jobs
from epifalcon.studies.run_folder import METHODS
from epifalcon.studies.study import FollowUp

FOUND = "found.json"
_WORKER = "epifalcon.studies.one_follow_up"
_NEEDED_MB = 2500.0


@dataclass(frozen=True)
class Followed:
    """What a follow-up found."""

    values: Mapping[str, float | None]
    cpu_seconds: float

    def save(self, folder: Path) -> None:
        """Write ``found.json`` into ``folder``."""
        with store.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            store.replace_text(folder / FOUND, json_text(vars(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Followed | None":
        """What stands in ``folder``; None where nothing can be read."""
        try:
            return cls(**json.loads((folder / FOUND).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Wish:
    """A follow-up of one method in one run."""

    run: Path
    method: str
    kind: FollowUp
    name: str
    """As progress calls it."""

    @property
    def place(self) -> Path:
        """Where it leaves what it found."""
        return self.run / METHODS / self.method / self.kind

    @property
    def found(self) -> Followed | Failed:
        """What it left."""
        kept = Followed.load(self.place) or Failed.load(self.place)
        return kept or Failed("was not measured")


def follow_up(wishes: Sequence[Wish], crew: Crew, progress: Progress) -> None:
    """Do what is not done yet; what fails is told of in its place."""
    due = {one.name: one for one in wishes if _is_due(one, crew.retry)}
    jobs = [
        Job(name, _WORKER, (str(one.run), one.method, one.kind, "--attached"))
        for name, one in due.items()
    ]
    took: list[float] = []

    def watch(running: Sequence[Running]) -> None:
        words = [one.job.name for one in running]
        if took and running:
            left = (len(jobs) - len(took)) * sum(took) / len(took) / len(running)
            words.append(f"about {duration(left)} left")
        if jobs:
            progress("attacks and sizes", len(took), len(jobs), "; ".join(words))

    for ended in run_jobs(jobs, crew.at_once, 1, lambda _: _NEEDED_MB, watch):
        took.append(ended.seconds)
        _note(due[ended.job.name], ended)


def _is_due(wish: Wish, retry: bool) -> bool:
    if Followed.load(wish.place) is not None:
        return False
    if Failed.load(wish.place) is None:
        return True
    if retry:
        with store.writing(wish.place):
            (wish.place / FAILED).unlink()
    return retry


def _note(wish: Wish, ended: Ended) -> None:
    if ended.code == WriteError.exit_code:
        raise WriteError(last_line(ended.said))
    if Followed.load(wish.place) is None and Failed.load(wish.place) is None:
        Failed(end_told(ended), ended.said, killed=ended.code < 0).save(wish.place)
