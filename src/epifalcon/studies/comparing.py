"""Compare methods over seeds: doing what is not done yet, in processes of their own.

A comparison's folder holds its settings and one run folder a seed. Every method
of every seed leaves its figures there, so a comparison that was stopped goes on
where it was, and more methods or seeds can be asked of it later. One comparison
at a time works on the folder.
"""

import contextlib
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import SettingsError, WriteError
from epifalcon.machine import cores
from epifalcon.progress import Progress
from epifalcon.studies.beginning import Simulations, begin_folder, begin_run
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.measurements import FAILED, Failed, Measured, source_sha256
from epifalcon.studies.processes import Ended, Job, Running, run_jobs
from epifalcon.studies.run_folder import alone

_WORKER = "epifalcon.studies.one_method"
_LEAST_MB, _BYTES_A_VISIT = 500, 1200
"""A method that was never measured: as much as the hungriest took in trials."""
_SHOWN = 3
"""Processes that the bar has room for."""
_MORE = 1.2
"""What a method took is taken to be so much more in another city."""

Found = Mapping[str, Mapping[int, Measured | Failed]]
"""What stands in a comparison's folder, by method and seed."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """How the work is done."""

    jobs: int | None = None
    """Processes at once; None for as many as there are cores."""
    retry: bool = False
    """Whether what failed before is tried again."""

    def __post_init__(self) -> None:
        if self.jobs is not None:
            whole(1, jobs=self.jobs)

    @property
    def at_once(self) -> int:
        """Processes at once, if memory allows."""
        return self.jobs or cores()


def compare(plan: Plan, crew: Crew, progress: Progress) -> Found:
    """Do what is not done yet, and hand back all that the plan asks for.

    A method that fails is told of in its place. ``KeyboardInterrupt`` ends every
    process and leaves what was done, to be gone on with.
    """
    with contextlib.ExitStack() as held:
        simulated = Simulations()
        work = opened(plan, crew, simulated, held)
        for done, seed in enumerate(plan.seeds):
            progress("cities", done, len(plan.seeds))
            begin_run(plan, seed, work.threads, simulated)
        progress("cities", len(plan.seeds), len(plan.seeds))
        waiting = work.waiting(crew.retry)
        for ended in run_jobs(
            [work.job(*one) for one in waiting],
            crew.at_once,
            work.threads,
            work.needed_mb,
            lambda running: work.tell(progress, len(waiting), running),
            work.turn,
        ):
            work.note(ended)
        return work.found()


def opened(
    plan: Plan, crew: Crew, simulated: Simulations, held: contextlib.ExitStack
) -> "Work":
    """The comparison with its folder and at least one run, for this process alone.

    Nobody else can go on with it or one of its runs while ``held`` is open.
    """
    held.enter_context(alone(plan.folder))
    threads = begin_folder(plan, max(1, cores() // crew.at_once), simulated)
    for seed in plan.seeds:
        held.enter_context(alone(plan.run_folder(seed)))
    return Work(plan, threads)


@dataclass(frozen=True)
class Experience:
    """What methods took before, on cities of one size."""

    peak_mb: dict[str, float] = field(default_factory=dict)
    """The most that each method took."""
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of each method's latest process."""


@dataclass
class Work:
    """What is to be done, and what was learnt from what is done."""

    plan: Plan
    threads: int
    learnt: Experience = field(default_factory=Experience)
    alone: set[str] = field(default_factory=set)
    """Jobs that were killed before: they get the machine for themselves."""
    what: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Seed and method by a job's name."""
    over: set[str] = field(default_factory=set)
    """Jobs that have ended."""
    lost: dict[int, Failed] = field(default_factory=dict)
    """Seeds whose city could not be made."""

    def waiting(self, retry: bool) -> list[tuple[int, str]]:
        """Seeds and methods without figures, seed by seed."""
        return [
            (seed, method)
            for seed in self.plan.seeds
            for method in self.plan.methods
            if self._is_due(seed, method, retry)
        ]

    def _is_due(self, seed: int, method: str, retry: bool) -> bool:
        place = self.plan.place(seed, method)
        source = source_sha256(method, self.plan.sources)
        measured = Measured.sound(place)
        if measured is not None:
            if measured.source_sha256 != source:
                raise SettingsError(
                    f"{place}: made by another version of the file that registers "
                    f"{method}; delete this folder to run it again"
                )
            self._learn(method, measured)
            return False
        failed = Failed.load(place)
        if failed is None:
            return True
        if not retry and failed.source_sha256 == source:
            return False
        if failed.killed:
            self.alone.add(self._name(seed, method))
        with store.writing(place):
            (place / FAILED).unlink()
        return True

    def job(self, seed: int, method: str) -> Job:
        """The process that measures ``method`` on ``seed``."""
        name = self._name(seed, method)
        self.what[name] = seed, method
        sources = [word for one in self.plan.sources for word in ("--with", str(one))]
        words = (str(self.plan.run_folder(seed)), method, "--attached", *sources)
        return Job(name, _WORKER, words, self.threads)

    def _name(self, seed: int, method: str) -> str:
        label = f", {self.plan.label}" if self.plan.label else ""
        return f"{method}{label} (seed {seed})"

    def turn(self, job: Job) -> tuple[float, ...]:
        """Seed by seed; within a seed the longest first, by what methods took before.

        So no long one is left to run alone at the end. A method that was never
        seen to end may be the longest of all.
        """
        seed, method = self.what[job.name]
        return seed, -self.learnt.took.get(method, math.inf)

    def needed_mb(self, job: Job) -> float:
        """What the job will probably take, by what its method took before."""
        if job.name in self.alone:
            return float("inf")
        peak = self.learnt.peak_mb.get(self.what[job.name][1])
        if peak is not None:
            return _MORE * peak
        city = self.plan.experiment.city
        visits = city.people * city.clock.slots
        return _LEAST_MB + visits * _BYTES_A_VISIT / 2**20

    def note(self, ended: Ended) -> None:
        """Take in how a process ended; ``WriteError`` where none could go on."""
        self.over.add(ended.job.name)
        seed, method = self.what[ended.job.name]
        self.learnt.took[method] = ended.seconds
        place = self.plan.place(seed, method)
        if ended.code == WriteError.exit_code:
            raise WriteError(last_line(ended.said))
        measured = Measured.load(place)
        if measured is not None:
            self._learn(method, measured)
        elif Failed.load(place) is None:
            told, source = end_told(ended), source_sha256(method, self.plan.sources)
            Failed(told, ended.said, source, killed=ended.code < 0).save(place)

    def found(self) -> Found:
        """All figures and failures that the plan asks for."""
        return {
            method: {seed: self._one(seed, method) for seed in self.plan.seeds}
            for method in self.plan.methods
        }

    def tell(self, progress: Progress, total: int, running: Sequence[Running]) -> None:
        """Show how far the work is, what runs and how long it may last."""
        left = self.seconds_left(running)
        tell(progress, (len(self.over), total), running, left)

    def seconds_left(self, running: Sequence[Running]) -> float | None:
        """Of all processes still to come and of the rest of those ``running``.

        By what the methods took before; a new one as the mean of the others.
        """
        took = self.learnt.took
        if not took:
            return None
        begun = {one.job.name: one.seconds for one in running}
        mean = sum(took.values()) / len(took)
        left = 0.0
        for name in self.what.keys() - self.over:
            expected = took.get(self.what[name][1], mean)
            left += max(0.0, expected - begun.get(name, 0.0))
        return left

    def _learn(self, method: str, measured: Measured) -> None:
        peak = measured.peak_rss_mb or 0.0
        if peak:
            self.learnt.peak_mb[method] = max(
                peak, self.learnt.peak_mb.get(method, 0.0)
            )
        self.learnt.took.setdefault(method, measured.seconds)

    def _one(self, seed: int, method: str) -> Measured | Failed:
        place = self.plan.place(seed, method)
        found = Measured.load(place) or self.lost.get(seed) or Failed.load(place)
        return found or Failed("was not run")


def tell(
    progress: Progress,
    done: tuple[int, int],
    running: Sequence[Running],
    left: float | None,
) -> None:
    """Show ``done`` of how many, what runs, and ``left`` seconds of processes."""
    if not done[1]:
        return
    words = [_under_way(one) for one in running[:_SHOWN]]
    if len(running) > _SHOWN:
        words.append(f"{len(running) - _SHOWN} more")
    if left is not None and running:
        # First: of what a narrow terminal cuts it would be missed most.
        words.insert(0, f"about {duration(left / len(running))} left")
    progress("methods and seeds", *done, "; ".join(words))


def end_told(ended: Ended) -> str:
    """How a process without a result ended, in words."""
    if ended.code >= 0:
        return last_line(ended.said) or f"ended with code {ended.code} and no result"
    try:
        name = signal.Signals(-ended.code).name
    except ValueError:
        name = f"signal {-ended.code}"
    why = ", as happens where memory runs out" if name == "SIGKILL" else ""
    return f"killed by {name}{why}"


def last_line(text: str) -> str:
    """The last line that is not empty; nothing where there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _under_way(one: Running) -> str:
    # Methods name themselves before their work, as in "gcn: steps".
    told = one.told.rpartition(": ")[2]
    return f"{one.job.name} {told}".rstrip()


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in words."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
