"""Several comparisons at once: their processes share cores, memory and experience."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epifalcon.errors import DataError, EpifalconError, WriteError
from epifalcon.progress import Progress
from epifalcon.studies.comparing import (
    Crew,
    Experience,
    Found,
    Work,
    opened,
    tell,
)
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.measurements import Failed
from epifalcon.studies.processes import Ended, Job, Running, cores, run_jobs


def _as_they_are(_plan: Plan) -> None:
    """Change nothing."""


def compare_all(
    plans: Sequence[Plan],
    crew: Crew,
    progress: Progress,
    ready: Callable[[Plan], None] = _as_they_are,
) -> list[Found]:
    """Do what is not done yet of all ``plans``; what each asks for, in their order.

    ``ready`` is called for each whose runs are begun, before any method of it is.
    A method that fails, or a city that cannot be made, is told of in its place
    and the others go on. ``KeyboardInterrupt`` ends every process and leaves what
    was done, to be gone on with.
    """
    with contextlib.ExitStack() as held:
        team = _Team()
        works = [team.take_on(plan, crew, progress, held) for plan in plans]
        for plan, work in zip(plans, works, strict=True):
            if isinstance(work, Work):
                ready(plan)
        jobs = team.jobs(crew.retry)
        threads = max(1, cores() // crew.at_once)
        for ended in run_jobs(
            jobs,
            crew.at_once,
            threads,
            team.needed_mb,
            lambda running: team.tell(progress, len(jobs), running),
            team.turn,
        ):
            team.note(ended)
        return [
            work.found() if isinstance(work, Work) else _all_failed(plan, work)
            for plan, work in zip(plans, works, strict=True)
        ]


@dataclass
class _Team:
    """The comparisons under way."""

    works: list[Work] = field(default_factory=list)
    home: dict[str, Work] = field(default_factory=dict)
    """The comparison of each job, by the job's name."""
    learnt: dict[int, Experience] = field(default_factory=dict)
    """By the size of a city."""

    def take_on(
        self, plan: Plan, crew: Crew, progress: Progress, held: contextlib.ExitStack
    ) -> Work | Failed:
        """The work of ``plan``, or why it has none."""
        try:
            work = opened(plan, crew, progress, held)
        except WriteError:
            raise
        except (EpifalconError, MemoryError) as error:
            told = str(error) or "not enough memory for the city"
            return Failed(told)
        city = plan.experiment.city
        size = city.people * city.clock.slots
        work.learnt = self.learnt.setdefault(size, Experience())
        self.works.append(work)
        return work

    def jobs(self, retry: bool) -> list[Job]:
        """All that is not done yet."""
        found = []
        for work in self.works:
            for one in work.waiting(retry):
                job = work.job(*one)
                if job.name in self.home:
                    raise DataError(f"two comparisons are called {work.plan.label!r}")
                self.home[job.name] = work
                found.append(job)
        return found

    def needed_mb(self, job: Job) -> float:
        return self.home[job.name].needed_mb(job)

    def turn(self, job: Job) -> tuple[float, ...]:
        return self.home[job.name].turn(job)

    def note(self, ended: Ended) -> None:
        self.home[ended.job.name].note(ended)

    def tell(self, progress: Progress, total: int, running: Sequence[Running]) -> None:
        done = sum(len(work.over) for work in self.works)
        left = [work.seconds_left(running) for work in self.works if work.what]
        known = [one for one in left if one is not None]
        tell(progress, (done, total), running, sum(known) if known else None)


def _all_failed(plan: Plan, why: Failed) -> Found:
    return {method: dict.fromkeys(plan.seeds, why) for method in plan.methods}
