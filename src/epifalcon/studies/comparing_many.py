"""Several comparisons at once: their processes share cores, memory and experience."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from epifalcon.errors import (
    CorruptFileError,
    DataError,
    EpifalconError,
    WriteError,
)
from epifalcon.machine import cores
from epifalcon.progress import Progress
from epifalcon.studies.beginning import Simulations, begin_run, is_begun
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
from epifalcon.studies.processes import Ended, Job, Running, run_batches


class Settling(Protocol):
    """What is done with a comparison before any method of it is run."""

    def needs_runs(self, plan: Plan) -> bool:
        """Whether all runs must have been begun for ``settle``."""

    def settle(self, plan: Plan) -> None:
        """Do it; this process holds the comparison's folder."""


def compare_all(
    plans: Sequence[Plan],
    crew: Crew,
    progress: Progress,
    settling: Settling | None = None,
) -> list[Found]:
    """Do what is not done yet of all ``plans``; what each asks for, in their order.

    Methods begin when every comparison has its first run; further cities are made
    meanwhile, seed by seed, so that comparisons share what was simulated for them.
    A method that fails, or a city that cannot be made, is told of in its place
    and the others go on. ``KeyboardInterrupt`` ends every process and leaves what
    was done, to be gone on with.
    """
    with contextlib.ExitStack() as held:
        team = _Team()
        works = []
        for done, plan in enumerate(plans):
            progress("cities", done, len(plans))
            works.append(team.take_on(plan, crew, held))
        progress("cities", len(plans), len(plans))
        if settling is not None:
            for work in team.works:
                team.settled(work, settling)
        jobs = team.jobs(crew.retry)
        threads = max(1, cores() // crew.at_once)
        for ended in run_batches(
            team.batches(jobs),
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
    simulated: Simulations = field(default_factory=Simulations)

    def take_on(
        self, plan: Plan, crew: Crew, held: contextlib.ExitStack
    ) -> Work | Failed:
        """The work of ``plan``, or why it has none."""
        try:
            work = opened(plan, crew, self.simulated, held)
        except WriteError:
            raise
        except CorruptFileError as error:
            return Failed(f"{error}; delete {plan.folder} to measure it again")
        except (EpifalconError, MemoryError) as error:
            return _failed(error)
        city = plan.experiment.city
        size = city.people * city.clock.slots
        work.learnt = self.learnt.setdefault(size, Experience())
        self.works.append(work)
        return work

    def settled(self, work: Work, settling: Settling) -> None:
        """Settle the comparison, its runs begun where they are needed for that."""
        if settling.needs_runs(work.plan):
            for seed in work.plan.seeds:
                self.begin(work, seed)
        settling.settle(work.plan)

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

    def batches(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """The jobs of runs that are begun, then those of one run after the other.

        Each run is begun when its jobs are asked for, seed by seed. The jobs of a
        run that cannot be made are left out.
        """
        by_run: dict[tuple[int, int], list[Job]] = {
            (seed, number): []
            for number, work in enumerate(self.works)
            for seed in work.plan.seeds
        }
        numbers = {id(work): number for number, work in enumerate(self.works)}
        for job in jobs:
            work = self.home[job.name]
            by_run[work.what[job.name][0], numbers[id(work)]].append(job)
        begun = [
            (seed, number)
            for seed, number in by_run
            if is_begun(self.works[number].plan, seed)
        ]
        yield [job for one in begun for job in by_run.pop(one)]
        for seed, number in sorted(by_run):
            work, mine = self.works[number], by_run[seed, number]
            if self.begin(work, seed):
                yield mine
            else:
                work.over |= {job.name for job in mine}
        # Nothing is simulated any more: the memory is for those who run.
        self.simulated = Simulations()

    def begin(self, work: Work, seed: int) -> bool:
        """Make the run of ``seed``, if it is missing; whether it is there."""
        if seed in work.lost:
            return False
        try:
            begin_run(work.plan, seed, work.threads, self.simulated)
        except WriteError:
            raise
        except (EpifalconError, MemoryError) as error:
            work.lost[seed] = _failed(error)
            return False
        return True

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


def _failed(error: Exception) -> Failed:
    return Failed(str(error) or "not enough memory for the city")


def _all_failed(plan: Plan, why: Failed) -> Found:
    return {method: dict.fromkeys(plan.seeds, why) for method in plan.methods}
