"""Run the jobs of a study that have no stored result yet, in worker processes.

The folder of a comparison holds its settings and one run per seed; each method stores
its result there. An interrupted study resumes where it stopped; further methods or
seeds only add missing results. A lock limits each folder to one process.
"""

import contextlib
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from epifalcon import store
from epifalcon.errors import (
    CorruptFileError,
    DataError,
    EpifalconError,
    SettingsError,
    WriteError,
)
from epifalcon.experiments.run_folder import (
    COMPARISON,
    FAILED,
    METHODS,
    SETTINGS,
    FollowUpResult,
    MethodFailure,
    MethodResult,
    RunInputs,
    create_run_folder,
)
from epifalcon.experiments.simulation import CityInputs, prepare, run_epidemics
from epifalcon.locks import lock_folder
from epifalcon.progress import Progress
from epifalcon.settings import as_plain, fingerprint
from epifalcon.studies.study import (
    Cell,
    FollowUp,
    Plan,
    StudyPlan,
    comparison_manifest,
    source_sha256,
)
from epifalcon.studies.worker_pool import (
    Job,
    Worker,
    WorkerExit,
    WorkerOptions,
    run_jobs,
)

_log = logging.getLogger(__name__)
_BASE_MB, _BYTES_PER_VISIT = 500, 1200
"""Memory estimate of a method without measurements: the largest one measured."""
_MARGIN = 1.2
"""Safety factor on memory measured in earlier runs."""
_FOLLOW_UP_MB = 2500.0
_SHOWN = 3
"""Maximum number of workers whose progress is displayed."""
_GROWS = [
    *("seed-", ".seed-", "figures/"),
    *(f"{dot}{name}." for dot in ("", ".") for name in ("table", "report", "command")),
]
"""Name prefixes of files that may be added to the folder of a comparison later."""

R = TypeVar("R", MethodResult, FollowUpResult)
Results = Mapping[str, Mapping[int, MethodResult | MethodFailure]]
"""Results by method and seed."""


@dataclass(frozen=True)
class StudyTask:
    """One method in one run of a comparison, or the analysis of such a run."""

    plan: Plan
    seed: int
    method: str
    then: FollowUp | None = None

    @property
    def name(self) -> str:
        """Unique name of the job, displayed with progress."""
        label = f", {self.plan.label}" if self.plan.label else ""
        analysis = f"{self.then} of " if self.then else ""
        return f"{analysis}{self.method}{label} (seed {self.seed})"

    @property
    def place(self) -> Path:
        """Folder in which the result is stored."""
        return self.plan.place(self.seed, self.method) / (self.then or "")

    @property
    def kind(self) -> tuple[int, str]:
        """City size (people times slots) and method; equal kinds have similar cost."""
        city = self.plan.experiment.city
        return city.people * city.clock.slots, self.then or self.method

    @property
    def source_sha256(self) -> str | None:
        """Hash of the user file that registers the method; None if built in."""
        return None if self.then else source_sha256(self.method, self.plan.sources)

    @property
    def result(self) -> MethodResult | FollowUpResult | MethodFailure:
        """Load the stored result or failure."""
        if self.then:
            return _load(FollowUpResult, self.place)
        return _load(MethodResult, self.place)

    def job(self, threads: int) -> Job:
        """Return the job that a worker executes for this task."""
        folder = str(self.plan.run_folder(self.seed).resolve())
        sources = tuple(str(path.resolve()) for path in self.plan.sources)
        name = "follow_up" if self.then else "measure"
        function = f"epifalcon.studies.worker:{name}"
        arguments = (folder, self.method, self.then or sources)
        return Job(self.name, function, arguments, threads)


@dataclass(frozen=True)
class StudyRun:
    """Results of all runs of a study, including failures."""

    study_plan: StudyPlan
    results: Mapping[str, Results]
    """Results by cell label."""

    def follow_up(
        self, cell: Cell, method: str, seed: int
    ) -> FollowUpResult | MethodFailure | None:
        """Return the result of a run's follow-up; None if the cell has none."""
        if cell.then is None:
            return None
        plan = self.study_plan.plans[cell.label]
        return _load(FollowUpResult, plan.place(seed, method) / cell.then)

    @property
    def cpu_hours(self) -> float:
        """CPU hours of all runs and follow-ups, each counted once."""
        spent: dict[Path, float] = {}
        for cell, method, seed in self.study_plan.runs:
            place = self.study_plan.plans[cell.label].place(seed, method)
            run = self.results[cell.label][method][seed]
            if isinstance(run, MethodResult):
                spent[place] = run.cpu_seconds or run.seconds
            after = self.follow_up(cell, method, seed)
            if cell.then is not None and isinstance(after, FollowUpResult):
                spent[place / cell.then] = after.cpu_seconds
        return sum(spent.values()) / 3600


def run_study(
    study_plan: StudyPlan,
    workers: WorkerOptions,
    progress: Progress,
    *,
    raise_errors: bool = False,
) -> StudyRun:
    """Run all jobs without a stored result and return the results of the whole study.

    With ``raise_errors``, errors while preparing inputs are raised; otherwise they are
    reported as failures. ``KeyboardInterrupt`` ends all workers; stored results remain.
    """
    plans = study_plan.comparisons
    runs = run_comparisons(plans, workers, progress, raise_errors=raise_errors)
    by_folder = {plan.folder: run for plan, run in zip(plans, runs, strict=True)}
    results = {
        cell.label: by_folder[study_plan.plans[cell.label].folder]
        for cell in study_plan.cells
    }
    tasks: dict[Path, StudyTask] = {}
    for cell, method, seed in study_plan.runs:
        if cell.then and isinstance(results[cell.label][method][seed], MethodResult):
            task = StudyTask(study_plan.plans[cell.label], seed, method, cell.then)
            tasks.setdefault(task.place, task)
    run_follow_ups(list(tasks.values()), workers, progress)
    return StudyRun(study_plan, results)


def run_follow_ups(
    tasks: Sequence[StudyTask], workers: WorkerOptions, progress: Progress
) -> None:
    """Run the follow-ups that have no stored result yet; failures are stored, too."""
    scheduler = Scheduler(workers)
    for task in tasks:
        scheduler.add(task)
    scheduler.run([[task.job(1) for task in scheduler.due]], progress)


def run_comparisons(
    plans: Sequence[Plan],
    workers: WorkerOptions,
    progress: Progress,
    *,
    raise_errors: bool = False,
) -> list[Results]:
    """Run the missing jobs of ``plans``; return all results in the order of ``plans``.

    Methods start when every comparison has its first run; the other cities are
    simulated meanwhile. Failures are returned as results; with ``raise_errors``,
    errors while preparing a comparison are raised.
    """
    for plan in plans:
        # Not a failure of each row: nothing is written.
        if plan.world and not all(has_inputs(plan, seed) for seed in plan.seeds):
            plan.world.require()
    with contextlib.ExitStack() as locks:
        scheduler = Scheduler(workers)
        for done, plan in enumerate(plans):
            progress("cities", done, len(plans))
            try:
                scheduler.open(plan, locks)
            except (EpifalconError, MemoryError) as error:
                if raise_errors or isinstance(error, WriteError):
                    raise
                remedy = ""
                if isinstance(error, CorruptFileError):
                    remedy = f"; delete {plan.folder} to run it again"
                scheduler.lose(plan, plan.seeds, _reason(error) + remedy)
        progress("cities", len(plans), len(plans))
        scheduler.run(scheduler.batches(), progress)
        return [scheduler.results(plan) for plan in plans]


class Simulations:
    """Simulator of run inputs; consecutive runs in the same city share it."""

    def __init__(self) -> None:
        self._city: tuple[str, CityInputs] | None = None
        """The latest city and the hash of its settings."""

    def inputs(self, plan: Plan, seed: int, threads: int) -> RunInputs:
        """Return the inputs of the run of ``seed``, the same as ``epifalcon run``."""
        experiment, world = plan.experiment, plan.world
        if world is None:
            key = fingerprint({"city": as_plain(experiment.city), "seed": seed})
            if self._city is None or self._city[0] != key:
                self._city = key, prepare(plan.name, experiment, seed)
            city = self._city[1]
            epidemic = next(run_epidemics(experiment, city.traces, seed))
        else:
            city = world.city(experiment, seed)
            epidemic = world.epidemic(experiment, seed)
        if not len(epidemic.labels.hidden):
            raise DataError(
                "everybody is tested: there are no hidden people to compare methods on"
            )
        origin = store.Origin.now(as_plain(experiment), seed)
        prepared = replace(
            city, name=plan.name, experiment=experiment, city_origin=origin
        )
        reported, known = prepared.reported(seed), epidemic.labels.known
        folder = plan.run_folder(seed)
        # Simulated people: reproducible noise, and results marked as not private.
        return RunInputs(
            folder, prepared, seed, reported, known, epidemic, threads, True
        )


def create_comparison(plan: Plan, threads: int, simulations: Simulations) -> int:
    """Create the comparison's folder with its first run; return threads per worker.

    The number of threads changes rounding, so the number stored at creation is reused.
    The first run is simulated before the folder is created: a failure leaves no folder.
    Damaged inputs of existing runs are simulated again from settings and seed.
    """
    manifest = comparison_manifest(plan.folder)
    if manifest is None:
        inputs = simulations.inputs(plan, plan.seeds[0], threads)
        origin = store.Origin.now(as_plain(plan.experiment), None)
        meta = {
            "name": plan.name,
            "overrides": list(plan.overrides),
            "world": None if plan.world is None else as_plain(plan.world),
            "threads": threads,
            "grows": _GROWS,
        }
        with store.new_directory(plan.folder) as scratch:
            text = plan.experiment.to_toml()
            (scratch / SETTINGS).write_text(text, encoding="utf-8")
            store.write_manifest(scratch, COMPARISON, meta=meta, origin=origin)
        create_run_folder(inputs)
        return threads
    threads = int(manifest["meta"]["threads"])
    for seed in plan.seeds:
        if not has_inputs(plan, seed):
            continue
        try:
            store.verify(plan.run_folder(seed))
        except CorruptFileError as error:
            _log.warning("%s; simulated again", error)
            _replace_inputs(simulations.inputs(plan, seed, threads))
    return threads


def _replace_inputs(inputs: RunInputs) -> None:
    """Replace the damaged inputs of a run; the results of its methods stay."""
    folder, methods = inputs.folder, inputs.folder / METHODS
    backup = folder.with_name(f".{folder.name}.{METHODS}")
    with store.writing(folder, backup):
        if methods.is_dir():
            methods.rename(backup)
        shutil.rmtree(folder)
    create_run_folder(inputs)
    with store.writing(folder, backup):
        if backup.is_dir():
            backup.rename(methods)


def has_inputs(plan: Plan, seed: int) -> bool:
    """Return True if the comparison's folder has the inputs of the run of ``seed``."""
    return (plan.run_folder(seed) / store.MANIFEST).is_file()


class Scheduler:
    """Queue of tasks without results, with memory and time of finished jobs."""

    def __init__(self, workers: WorkerOptions) -> None:
        self._workers = workers
        self._plans: list[Plan] = []
        self._threads: dict[Path, int] = {}
        """Threads per worker by folder, as stored when the comparison was created."""
        self._tasks: dict[str, StudyTask] = {}
        """Tasks by job name."""
        self._finished: set[str] = set()
        self._exclusive: set[str] = set()
        """Jobs that were killed in an earlier attempt; each runs without other jobs."""
        self._lost: dict[tuple[Path, int], MethodFailure] = {}
        """Failures to prepare the inputs of a run, by folder and seed."""
        self._peak_mb: dict[tuple[int, str], float] = {}
        """Peak memory, by city size and method."""
        self._seconds: dict[tuple[int, str], float] = {}
        """Duration of the latest process, by city size and method."""
        self._simulations = Simulations()

    def open(self, plan: Plan, locks: contextlib.ExitStack) -> None:
        """Lock the folder of ``plan`` until ``locks`` closes and add its tasks."""
        locks.enter_context(lock_folder(plan.folder))
        threads = create_comparison(plan, self._workers.threads, self._simulations)
        for seed in plan.seeds:
            locks.enter_context(lock_folder(plan.run_folder(seed)))
        self._plans.append(plan)
        self._threads[plan.folder] = threads
        for seed in plan.seeds:
            for method in plan.methods:
                self.add(StudyTask(plan, seed, method))

    @property
    def due(self) -> list[StudyTask]:
        """Tasks that had no stored result when they were added."""
        return list(self._tasks.values())

    def add(self, task: StudyTask) -> None:
        """Add the task unless its result, or a failure not to be retried, is stored."""
        place, failed = task.place, MethodFailure.load(task.place)
        if task.then:
            done = FollowUpResult.load(place) is not None
        elif done := (result := MethodResult.sound(place)) is not None:
            if result.source_sha256 != task.source_sha256:
                raise SettingsError(
                    f"{place}: created by another version of the file that registers "
                    f"{task.method}; delete this folder to run it again"
                )
            self._learn(task, result)
        if done:
            return
        if failed is not None:
            if not self._workers.retry and failed.source_sha256 == task.source_sha256:
                return
            if failed.killed:
                self._exclusive.add(task.name)
            with store.writing(place):
                (place / FAILED).unlink(missing_ok=True)
        self._tasks[task.name] = task

    def run(self, batches: Iterable[Sequence[Job]], progress: Progress) -> None:
        """Run all jobs; raise ``WriteError`` if a worker cannot write its result."""
        watch, at_once = partial(self.report, progress), self._workers.at_once
        ended = run_jobs(batches, at_once, self.needed_mb, watch, self.priority)
        for worker_exit in ended:
            self.note(worker_exit)

    def batches(self) -> Iterator[list[Job]]:
        """Yield jobs of existing runs, then simulate missing runs and yield theirs."""
        ready = [task for task in self.due if has_inputs(task.plan, task.seed)]
        yield [task.job(self._threads[task.plan.folder]) for task in ready]
        runs = [(seed, plan) for plan in self._plans for seed in plan.seeds]
        for seed, plan in sorted(runs, key=lambda run: run[0]):
            if has_inputs(plan, seed):
                continue
            threads = self._threads[plan.folder]
            tasks = [job for job in self.due if job.plan is plan and job.seed == seed]
            try:
                create_run_folder(self._simulations.inputs(plan, seed, threads))
            except WriteError:
                raise
            except (EpifalconError, MemoryError) as error:
                self.lose(plan, [seed], _reason(error))
                self._finished |= {task.name for task in tasks}
            else:
                yield [task.job(threads) for task in tasks]
        # Free the memory of simulations for the workers.
        self._simulations = Simulations()

    def priority(self, job: Job) -> tuple[float, ...]:
        """Return the sort key: by seed, then longest first; unknown is longest."""
        task = self._tasks[job.name]
        return task.seed, -self._seconds.get(task.kind, math.inf)

    def needed_mb(self, job: Job) -> float:
        """Estimate the memory of a job; infinite for a job that must run alone."""
        if job.name in self._exclusive:
            return math.inf
        task = self._tasks[job.name]
        if task.then:
            return _FOLLOW_UP_MB
        if task.kind in self._peak_mb:
            return _MARGIN * self._peak_mb[task.kind]
        return _BASE_MB + task.kind[0] * _BYTES_PER_VISIT / 2**20

    def note(self, worker_exit: WorkerExit) -> None:
        """Record how a worker ended; store a failure if it stored nothing itself."""
        self._finished.add(worker_exit.job.name)
        task = self._tasks[worker_exit.job.name]
        self._seconds[task.kind] = worker_exit.seconds
        if isinstance(result := task.result, MethodResult):
            self._learn(task, result)
        if worker_exit.code == WriteError.exit_code:
            raise WriteError(worker_exit.last_line)
        if isinstance(result, MethodFailure) and MethodFailure.load(task.place) is None:
            reason, output = worker_exit.reason, worker_exit.output
            killed, source = worker_exit.code < 0, task.source_sha256
            MethodFailure(reason, output, source, killed=killed).save(task.place)

    def _learn(self, task: StudyTask, result: MethodResult) -> None:
        peak = max(result.peak_rss_mb or 0.0, self._peak_mb.get(task.kind, 0.0))
        if peak:
            self._peak_mb[task.kind] = peak
        self._seconds.setdefault(task.kind, result.seconds)

    def lose(self, plan: Plan, seeds: Iterable[int], reason: str) -> None:
        """Record that the inputs of these runs could not be prepared."""
        for seed in seeds:
            self._lost[plan.folder, seed] = MethodFailure(reason)

    def results(self, plan: Plan) -> Results:
        """Return results by method and seed."""
        return {
            method: {
                seed: self._lost.get((plan.folder, seed))
                or _load(MethodResult, plan.place(seed, method))
                for seed in plan.seeds
            }
            for method in plan.methods
        }

    def report(self, progress: Progress, running: Sequence[Worker]) -> None:
        """Report the number of finished jobs and the running workers."""
        if not self._tasks:
            return
        analyses = any(task.then for task in self.due)
        name = "attacks and sizes" if analyses else "methods and seeds"
        # Methods put their own name before their steps, as in "gcn: steps".
        messages = [
            f"{worker.job.name} {worker.progress.rpartition(': ')[2]}".rstrip()
            for worker in running[:_SHOWN]
        ]
        if len(running) > _SHOWN:
            messages.append(f"{len(running) - _SHOWN} more")
        progress(name, len(self._finished), len(self._tasks), "; ".join(messages))


def _load(kind: type[R], place: Path) -> R | MethodFailure:
    """Load the result in ``place``, or the failure."""
    result = kind.load(place) or MethodFailure.load(place)
    return result or MethodFailure("was not run")


def _reason(error: Exception) -> str:
    return str(error) or "not enough memory for the city"
