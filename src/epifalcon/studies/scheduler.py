"""Run what a study has no results for yet, in worker processes.

The folder of a comparison holds its settings and one run per seed; each method leaves
its result there. A study that was stopped resumes where it was, and more methods or
seeds only add what is missing. One process at a time works on a folder.
"""

import contextlib
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    Begun,
    Failed,
    Followed,
    Measured,
    begin,
)
from epifalcon.experiments.simulation import Epidemic, Prepared, prepare, run_epidemics
from epifalcon.locks import alone
from epifalcon.progress import Progress
from epifalcon.settings import as_plain, fingerprint
from epifalcon.studies.study import (
    Cell,
    FollowUp,
    Plan,
    Planned,
    begun_with,
    source_sha256,
)
from epifalcon.studies.worker_pool import Ended, Job, Worker, Workers, run_jobs

_log = logging.getLogger(__name__)
_BASE_MB, _BYTES_PER_VISIT = 500, 1200
"""Memory of a method that was never measured: that of the largest in trials."""
_MARGIN = 1.2
"""Safety factor on memory measured in other cities."""
_FOLLOW_UP_MB = 2500.0
_SHOWN = 3
"""Workers whose progress is shown."""
_GROWS = [
    *("seed-", ".seed-", "figures/"),
    *(f"{dot}{name}." for dot in ("", ".") for name in ("table", "report", "command")),
]
"""Beginnings of files that are added to the folder of a comparison."""
_CITIES, _EPIDEMICS = 2, 3
"""Simulations that are stored for other cells."""
_MOST_VISITS = 20_000_000
"""Of a city that is stored: 80 MB."""

Results = Mapping[str, Mapping[int, Measured | Failed]]
"""By method and seed."""


@dataclass(frozen=True)
class Task:
    """One method in one run of a comparison, or the analysis of such a run."""

    plan: Plan
    seed: int
    method: str
    then: FollowUp | None = None

    @property
    def name(self) -> str:
        """Shown with progress."""
        label = f", {self.plan.label}" if self.plan.label else ""
        analysis = f"{self.then} of " if self.then else ""
        return f"{analysis}{self.method}{label} (seed {self.seed})"

    @property
    def place(self) -> Path:
        """Where its result is stored."""
        return self.plan.place(self.seed, self.method) / (self.then or "")

    @property
    def kind(self) -> tuple[int, str]:
        """Size of the city, and the method: equal ones cost about the same."""
        city = self.plan.experiment.city
        return city.people * city.clock.slots, self.then or self.method

    @property
    def source_sha256(self) -> str | None:
        """Of the user's file that the method is from."""
        return None if self.then else source_sha256(self.method, self.plan.sources)

    @property
    def result(self) -> Measured | Followed | Failed:
        """Load what it left."""
        found = (Followed if self.then else Measured).load(self.place)
        return found or Failed.load(self.place) or Failed("was not run")

    def job(self, threads: int) -> Job:
        """Return what a worker has to do."""
        folder = str(self.plan.run_folder(self.seed).resolve())
        sources = tuple(str(one.resolve()) for one in self.plan.sources)
        function = "follow_up" if self.then else "measure"
        arguments = (folder, self.method, self.then or sources)
        return Job(
            self.name, f"epifalcon.studies.worker:{function}", arguments, threads
        )


@dataclass(frozen=True)
class StudyRun:
    """The results of a study's runs, with failures."""

    planned: Planned
    results: Mapping[str, Results]
    """By the label of a cell."""

    def follow_up(self, cell: Cell, method: str, seed: int) -> Followed | Failed | None:
        """Return the result of a run's follow-up; None if the cell has none."""
        if cell.then is None:
            return None
        found = Task(self.planned.plans[cell.label], seed, method, cell.then).result
        return None if isinstance(found, Measured) else found

    @property
    def cpu_hours(self) -> float:
        """Processor time of all runs and follow-ups, each counted once."""
        spent: dict[Path, float] = {}
        for cell, method, seed in _runs(self.planned):
            place = self.planned.plans[cell.label].place(seed, method)
            one = self.results[cell.label][method][seed]
            if isinstance(one, Measured):
                spent[place] = one.cpu_seconds or one.seconds
            after = self.follow_up(cell, method, seed)
            if cell.then is not None and isinstance(after, Followed):
                spent[place / cell.then] = after.cpu_seconds
        return sum(spent.values()) / 3600


def run_study(
    planned: Planned,
    workers: Workers,
    progress: Progress,
    *,
    raise_errors: bool = False,
) -> StudyRun:
    """Run what has no result yet and return the results of the whole study.

    With ``raise_errors``, comparisons that cannot begin raise, instead of failing in
    their rows. ``KeyboardInterrupt`` ends all workers and leaves finished results.
    """
    plans = planned.comparisons
    found = run_comparisons(plans, workers, progress, raise_errors=raise_errors)
    by_folder = {plan.folder: one for plan, one in zip(plans, found, strict=True)}
    results = {
        cell.label: by_folder[planned.plans[cell.label].folder]
        for cell in planned.cells
    }
    tasks: dict[Path, Task] = {}
    for cell, method, seed in _runs(planned):
        if cell.then and isinstance(results[cell.label][method][seed], Measured):
            task = Task(planned.plans[cell.label], seed, method, cell.then)
            tasks.setdefault(task.place, task)
    run_follow_ups(list(tasks.values()), workers, progress)
    return StudyRun(planned, results)


def _runs(planned: Planned) -> Iterator[tuple[Cell, str, int]]:
    """Yield every cell, method and seed, seed by seed."""
    for seed in planned.seeds:
        for cell in planned.cells:
            if seed in planned.plans[cell.label].seeds:
                for method in cell.methods:
                    yield cell, method, seed


def run_follow_ups(tasks: Sequence[Task], workers: Workers, progress: Progress) -> None:
    """Run the follow-ups that have no result yet; failures are stored."""
    scheduler = Scheduler(workers)
    for task in tasks:
        scheduler.add(task)
    scheduler.run([[task.job(1) for task in scheduler.due]], progress)


def run_comparisons(
    plans: Sequence[Plan],
    workers: Workers,
    progress: Progress,
    *,
    raise_errors: bool = False,
) -> list[Results]:
    """Run what ``plans`` have no result for; return all results in their order.

    Methods start when every comparison has its first run; further cities are made
    meanwhile. Failures are recorded in their place; with ``raise_errors`` a comparison
    that cannot begin at all raises.
    """
    with contextlib.ExitStack() as held:
        scheduler = Scheduler(workers)
        failed: dict[Path, Failed] = {}
        for done, plan in enumerate(plans):
            progress("cities", done, len(plans))
            try:
                scheduler.open(plan, held)
            except (EpifalconError, MemoryError) as error:
                if raise_errors or isinstance(error, WriteError):
                    raise
                remedy = ""
                if isinstance(error, CorruptFileError):
                    remedy = f"; delete {plan.folder} to measure it again"
                failed[plan.folder] = Failed(_reason(error) + remedy)
        progress("cities", len(plans), len(plans))
        scheduler.run(scheduler.batches(), progress)
        return [scheduler.results(plan, failed.get(plan.folder)) for plan in plans]


class Simulations:
    """Create the inputs of runs; cells that share a city or an outbreak reuse it."""

    def __init__(self) -> None:
        self._cities: dict[str, Prepared] = {}
        self._epidemics: dict[str, Epidemic] = {}

    def begun(self, plan: Plan, seed: int, threads: int) -> Begun:
        """Return the inputs of the run of ``seed``, as ``epifalcon run`` makes them."""
        experiment = plan.experiment
        settings = {"city": as_plain(experiment.city), "seed": seed}
        key = fingerprint(settings)
        city = self._cities.get(key) or prepare(plan.name, experiment, seed)
        for part in ("pathogen", "outbreak", "labels"):
            settings[part] = as_plain(getattr(experiment, part))
        outbreak = fingerprint(settings)
        traces = city.traces
        epidemic = self._epidemics.get(outbreak)
        if epidemic is None:
            epidemic = next(run_epidemics(experiment, traces, seed))
        if traces.people * traces.slots <= _MOST_VISITS:
            _put(self._cities, key, city, _CITIES)
            _put(self._epidemics, outbreak, epidemic, _EPIDEMICS)
        if not len(epidemic.labels.hidden):
            raise DataError(
                "everybody is tested and nobody hidden: there is nobody to compare by"
            )
        origin = store.Origin.now(as_plain(experiment), seed)
        prepared = replace(
            city, name=plan.name, experiment=experiment, city_origin=origin
        )
        reported, known = prepared.reported(seed), epidemic.labels.known
        folder = plan.run_folder(seed)
        return Begun(folder, prepared, seed, reported, known, epidemic, threads)


def _put(stored: dict[str, Any], key: str, made: object, most: int) -> None:
    stored.setdefault(key, made)
    while len(stored) > most:
        del stored[next(iter(stored))]


def begin_folder(plan: Plan, threads: int, simulated: Simulations) -> int:
    """Create the comparison's folder with its first run; return threads of its workers.

    The number of threads decides last bits, so it stays as it was at first. The first
    run is made before the folder: what is impossible leaves nothing. Damaged inputs of
    existing runs are made again from settings and seed.
    """
    begun = begun_with(plan.folder)
    if begun is None:
        made = simulated.begun(plan, plan.seeds[0], threads)
        origin = store.Origin.now(as_plain(plan.experiment), None)
        meta = {
            "name": plan.name,
            "overrides": list(plan.overrides),
            "threads": threads,
            "grows": _GROWS,
        }
        with store.new_directory(plan.folder) as scratch:
            text = plan.experiment.to_toml()
            (scratch / SETTINGS).write_text(text, encoding="utf-8")
            store.write_manifest(scratch, COMPARISON, meta=meta, origin=origin)
        begin(made)
        return threads
    threads = int(begun["meta"]["threads"])
    for seed in plan.seeds:
        if not is_begun(plan, seed):
            continue
        try:
            store.verify(plan.run_folder(seed))
        except CorruptFileError as error:
            _log.warning("%s; made again", error)
            _remake(simulated.begun(plan, seed, threads))
    return threads


def _remake(made: Begun) -> None:
    """Put a run's inputs in place of damaged ones; results of methods stay."""
    folder, methods = made.folder, made.folder / METHODS
    aside = folder.with_name(f".{folder.name}.{METHODS}")
    with store.writing(folder, aside):
        if methods.is_dir():
            methods.rename(aside)
        shutil.rmtree(folder)
    begin(made)
    with store.writing(folder, aside):
        if aside.is_dir():
            aside.rename(methods)


def is_begun(plan: Plan, seed: int) -> bool:
    """Return True if the run of ``seed`` is in the comparison's folder."""
    return (plan.run_folder(seed) / store.MANIFEST).is_file()


class Scheduler:
    """What is to be run, in which order, and what finished jobs took."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._plans: list[Plan] = []
        self._threads: dict[Path, int] = {}
        """By folder: as many as a comparison was begun with."""
        self._tasks: dict[str, Task] = {}
        """By the name of their job."""
        self._ended: set[str] = set()
        self._exclusive: set[str] = set()
        """Jobs that were killed before: they run alone."""
        self._lost: dict[tuple[Path, int], Failed] = {}
        """Folder and seed of cities that could not be made."""
        self._peak_mb: dict[tuple[int, str], float] = {}
        """The largest memory, by size of the city and method."""
        self._seconds: dict[tuple[int, str], float] = {}
        """Duration of the latest process, by size of the city and method."""
        self._simulations = Simulations()

    def open(self, plan: Plan, held: contextlib.ExitStack) -> None:
        """Lock the folder of ``plan`` until ``held`` closes and list its jobs."""
        held.enter_context(alone(plan.folder))
        threads = begin_folder(plan, self._workers.threads, self._simulations)
        for seed in plan.seeds:
            held.enter_context(alone(plan.run_folder(seed)))
        self._plans.append(plan)
        self._threads[plan.folder] = threads
        for seed in plan.seeds:
            for method in plan.methods:
                self.add(Task(plan, seed, method))

    @property
    def due(self) -> list[Task]:
        """What has no result yet."""
        return list(self._tasks.values())

    def add(self, task: Task) -> None:
        """List the task, unless its result is stored already."""
        if task.name in self._tasks:
            raise DataError(f"two comparisons are called {task.plan.label!r}")
        place, failed = task.place, Failed.load(task.place)
        if task.then:
            done = Followed.load(place) is not None
        elif done := (measured := Measured.sound(place)) is not None:
            if measured.source_sha256 != task.source_sha256:
                raise SettingsError(
                    f"{place}: made by another version of the file that registers "
                    f"{task.method}; delete this folder to run it again"
                )
            self._learn(task, measured)
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
        """Run all jobs; raise ``WriteError`` where no other could continue."""

        def watch(running: Sequence[Worker]) -> None:
            self.report(progress, running)

        at_once = self._workers.at_once
        for ended in run_jobs(batches, at_once, self.needed_mb, watch, self.priority):
            self.note(ended)

    def batches(self) -> Iterator[list[Job]]:
        """Yield the jobs of existing runs, then make one new run after the other."""
        ready = [one for one in self.due if is_begun(one.plan, one.seed)]
        yield [one.job(self._threads[one.plan.folder]) for one in ready]
        runs = [(seed, plan) for plan in self._plans for seed in plan.seeds]
        for seed, plan in sorted(runs, key=lambda one: one[0]):
            if is_begun(plan, seed):
                continue
            threads = self._threads[plan.folder]
            mine = [one for one in self.due if one.plan is plan and one.seed == seed]
            try:
                begin(self._simulations.begun(plan, seed, threads))
            except WriteError:
                raise
            except (EpifalconError, MemoryError) as error:
                self._lost[plan.folder, seed] = Failed(_reason(error))
                self._ended |= {one.name for one in mine}
            else:
                yield [one.job(threads) for one in mine]
        # Free the memory of simulations for the workers.
        self._simulations = Simulations()

    def priority(self, job: Job) -> tuple[float, ...]:
        """Order jobs by seed, then longest first; unknown ones may be."""
        task = self._tasks[job.name]
        return task.seed, -self._seconds.get(task.kind, math.inf)

    def needed_mb(self, job: Job) -> float:
        """Return the memory that a job probably needs."""
        if job.name in self._exclusive:
            return math.inf
        task = self._tasks[job.name]
        if task.then:
            return _FOLLOW_UP_MB
        if task.kind in self._peak_mb:
            return _MARGIN * self._peak_mb[task.kind]
        return _BASE_MB + task.kind[0] * _BYTES_PER_VISIT / 2**20

    def note(self, ended: Ended) -> None:
        """Record how a worker ended, and the failure of one that left no reason."""
        self._ended.add(ended.job.name)
        task = self._tasks[ended.job.name]
        self._seconds[task.kind] = ended.seconds
        if isinstance(found := task.result, Measured):
            self._learn(task, found)
        if ended.code == WriteError.exit_code:
            raise WriteError(ended.last_line)
        if isinstance(found, Failed) and Failed.load(task.place) is None:
            killed, source = ended.code < 0, task.source_sha256
            Failed(ended.reason, ended.output, source, killed=killed).save(task.place)

    def _learn(self, task: Task, measured: Measured) -> None:
        peak = max(measured.peak_rss_mb or 0.0, self._peak_mb.get(task.kind, 0.0))
        if peak:
            self._peak_mb[task.kind] = peak
        self._seconds.setdefault(task.kind, measured.seconds)

    def results(self, plan: Plan, failed: Failed | None = None) -> Results:
        """Return the results of ``plan``; ``failed`` if it could not begin."""

        def one(seed: int, method: str) -> Measured | Failed:
            place, lost = plan.place(seed, method), self._lost.get((plan.folder, seed))
            found = Measured.load(place) or lost or Failed.load(place)
            return found or Failed("was not run")

        return {
            method: {seed: failed or one(seed, method) for seed in plan.seeds}
            for method in plan.methods
        }

    def report(self, progress: Progress, running: Sequence[Worker]) -> None:
        """Report finished jobs and workers under way."""
        if not self._tasks:
            return
        analyses = any(task.then for task in self.due)
        name = "attacks and sizes" if analyses else "methods and seeds"
        # Methods put their own name before their steps, as in "gcn: steps".
        words = [
            f"{one.job.name} {one.progress.rpartition(': ')[2]}".rstrip()
            for one in running[:_SHOWN]
        ]
        if len(running) > _SHOWN:
            words.append(f"{len(running) - _SHOWN} more")
        progress(name, len(self._ended), len(self._tasks), "; ".join(words))


def _reason(error: Exception) -> str:
    return str(error) or "not enough memory for the city"
