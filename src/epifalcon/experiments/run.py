"""A run, start to report: what ``epifalcon run`` does, as a function."""

import contextlib
import logging
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults, concerns
from epifalcon.errors import DataError, EpifalconError, SettingsError, WriteError
from epifalcon.experiments import run_methods
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.experiments.run_folder import (
    KNOWN,
    MethodFailure,
    RunInputs,
    begin,
    finished,
    open_run,
    require_settings,
    tests_folder,
)
from epifalcon.experiments.run_methods import TrainingOptions, run_guest, run_method
from epifalcon.experiments.run_report import RunSummary, keep_results
from epifalcon.experiments.simulation import CITY, city_folder, prepare, run_epidemics
from epifalcon.locks import alone
from epifalcon.methods.registry import entry
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain

_log = logging.getLogger(__name__)


def run(
    experiment: Experiment | None,
    out: Path,
    *,
    name: str = DEFAULT_PRESET,
    city: Path | None = None,
    tests: Path | None = None,
    seed: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 10.0,
    tensorboard: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = _log.warning,
) -> RunSummary:
    """Run an experiment from the city to the report.

    Parameters
    ----------
    experiment
        All settings; None to resume with the settings that ``out`` was begun with.
    out
        Folder of the run.
    name
        What outputs call the experiment.
    city
        Folder of an existing city, instead of a synthetic one.
    tests
        Folder of test results, instead of a simulated outbreak; needs ``city``.
    seed
        Seed of all random numbers; 0 if None.
    resume
        Continue the run in ``out``; other settings or data are refused.
    overwrite
        Replace a run in ``out``.
    checkpoint_seconds
        Minimum time between two checkpoints.
    tensorboard
        Also write a log for TensorBoard.
    warn
        Called with each warning on the data before the training starts.

    Returns:
    -------
    The metrics, and the tables that a terminal shows.
    """
    with alone(out):
        if resume:
            begun = _resume(experiment, out, city, tests, seed)
        else:
            if experiment is None:
                raise SettingsError("a new run needs an experiment")
            begun = _begin(
                experiment, out, name, city, tests, seed or 0, overwrite, progress
            )
        method, mode = begun.prepared.experiment.method, "off"
        if entry(method).privacy_table != "privacy":
            mode = begun.prepared.experiment.privacy.mode
        if mode != "off":
            warn(
                f"--mode {mode} protects falcon alone: {method} sees traces and tests "
                "as they are"
            )
        for warning in concerns(begun.known, begun.reported):
            warn(warning)
        listeners = TrainingOptions(
            progress=progress, checkpoint_seconds=checkpoint_seconds, log=tensorboard
        )
        try:
            return _finish(begun, listeners)
        except WriteError as error:
            raise WriteError(f"{error}; go on with: {resume_command(out)}") from None


def resume_command(out: Path) -> str:
    """Return the command that continues the run in ``out``."""
    return f"epifalcon run --resume --out {shlex.quote(str(out))}"


def _begin(
    experiment: Experiment,
    out: Path,
    name: str,
    city: Path | None,
    tests: Path | None,
    seed: int,
    overwrite: bool,
    progress: Progress,
) -> RunInputs:
    """Create the folder with city, outbreak and tests, or only an existing city."""
    unfinished = False
    with contextlib.suppress(EpifalconError):
        unfinished = not finished(out)
    if unfinished and not overwrite:
        raise WriteError(
            f"{out}: holds a run that is not finished; go on with it by --resume, or "
            "begin again with --overwrite"
        )
    store.refuse_occupied(out, overwrite)
    if tests is not None and city is None:
        raise SettingsError("--known needs --city: the tests are of its people")
    known = None
    if tests is not None:
        place = tests_folder(tests)
        if (tests / CITY).is_dir() and place == tests:
            raise DataError(f"{tests}: holds no test results; import with --tests")
        known = TestResults.load(place)
    prepared = prepare(name, experiment, seed, progress, city)
    epidemic = None
    if known is None:
        epidemic = next(run_epidemics(experiment, prepared.traces, seed))
        known = epidemic.labels.known
    else:
        try:
            known.require_people_of(prepared.traces)
        except DataError as error:
            raise DataError(f"{tests}: {error}") from None
    reported = prepared.reported(seed, progress)
    # The number of threads decides the last bits of sums.
    threads = torch.get_num_threads()
    begun = RunInputs(out, prepared, seed, reported, known, epidemic, threads)
    run_methods.require_possible(begun)
    begin(begun, overwrite=overwrite, inputs=[city, tests])
    return begun


def _resume(
    experiment: Experiment | None,
    out: Path,
    city: Path | None,
    tests: Path | None,
    seed: int | None,
) -> RunInputs:
    """Open the run in ``out``; refuse other settings, data or seed."""
    begun = open_run(out)
    if seed is not None and seed != begun.seed:
        raise SettingsError(f"{out}: was begun with --seed {begun.seed}")
    for option, given, held in (
        ("--city", None if city is None else city_folder(city), out / CITY),
        ("--known", None if tests is None else tests_folder(tests), out / KNOWN),
    ):
        if given is not None:
            files = store.read_manifest(held)["files"]
            if store.read_manifest(given)["files"] != files:
                raise SettingsError(f"{out}: was begun with another {option}")
    mine = begun.prepared.experiment
    if experiment is not None:
        if city is not None:
            experiment = replace(experiment, city=mine.city)
        require_settings(out, as_plain(mine), experiment)
    return begun


def _finish(begun: RunInputs, listeners: TrainingOptions) -> RunSummary:
    """Train what is not trained yet, evaluate it and write the report."""
    experiment = begun.prepared.experiment
    try:
        outcomes = [run_method(begun, experiment.method, listeners)]
    except Exception as error:
        if isinstance(error, EpifalconError) or not entry(experiment.method).is_own:
            raise
        raise SettingsError(
            f"method {experiment.method!r}, your own, failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    failed = {}
    for method in experiment.beside:
        found = run_guest(begun, method, listeners)
        if isinstance(found, MethodFailure):
            failed[method] = found.message
        else:
            outcomes.append(found)
    return keep_results(begun, outcomes, listeners.progress, failed)
