"""A run, start to report: what ``epifalcon run`` does, as a function."""

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from epifalcon import store
from epifalcon.epidemic.concerns import concerns
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, EpifalconError, SettingsError, WriteError
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.experiments.measurements import Failed
from epifalcon.experiments.run_folder import (
    KNOWN,
    Begun,
    begin,
    finished,
    open_run,
    tests_folder,
)
from epifalcon.experiments.run_methods import (
    Listeners,
    require_possible,
    run_guest,
    run_method,
    threads_now,
)
from epifalcon.experiments.run_report import Kept, keep_results
from epifalcon.experiments.simulation import CITY, city_folder, open_city, run_epidemics
from epifalcon.locks import alone
from epifalcon.methods.registry import entry
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, first_difference

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
) -> Kept:
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
        for warning in _warnings(begun):
            warn(warning)
        listeners = Listeners(
            progress=progress, checkpoint_seconds=checkpoint_seconds, log=tensorboard
        )
        try:
            return _finish(begun, listeners)
        except WriteError as error:
            way = f"go on with: {resume_command(out)}"
            raise WriteError(f"{error}; {way}") from None


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
) -> Begun:
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
    known = None if tests is None else _load_tests(tests)
    prepared = open_city(name, experiment, city, seed, progress)
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
    begun = Begun(out, prepared, seed, reported, known, epidemic, threads_now())
    require_possible(begun)
    begin(begun, overwrite=overwrite, inputs=[city, tests])
    return begun


def _load_tests(folder: Path) -> Known:
    place = tests_folder(folder)
    if (folder / CITY).is_dir() and place == folder:
        raise DataError(f"{folder}: holds no test results; import with --tests")
    return Known.load(place)


def _resume(
    experiment: Experiment | None,
    out: Path,
    city: Path | None,
    tests: Path | None,
    seed: int | None,
) -> Begun:
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
        found = first_difference(as_plain(mine), as_plain(experiment))
        if found is not None:
            key, then, now = found
            raise SettingsError(
                f"{out}: was begun with {key}={then!r}, it cannot go on with {now!r}"
            )
    return begun


def _warnings(begun: Begun) -> Iterator[str]:
    experiment = begun.prepared.experiment
    mode = experiment.privacy.mode
    if mode != "off" and entry(experiment.method).privacy_table != "privacy":
        yield (
            f"--mode {mode} protects falcon alone: {experiment.method} sees traces "
            "and tests as they are"
        )
    yield from concerns(begun.known, begun.reported)


def _finish(begun: Begun, listeners: Listeners) -> Kept:
    """Train what is not trained yet, evaluate it and write the report."""
    experiment = begun.prepared.experiment
    with _naming_own_method(experiment.method):
        outcomes = [run_method(begun, experiment.method, listeners)]
    failed = {}
    for method in experiment.beside:
        found = run_guest(begun, method, listeners)
        if isinstance(found, Failed):
            failed[method] = found.message
        else:
            outcomes.append(found)
    return keep_results(begun, outcomes, listeners.progress, failed)


@contextlib.contextmanager
def _naming_own_method(method: str) -> Iterator[None]:
    """Turn what a user's own method raises into one line with its name."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EpifalconError) or entry(method).kind != "own":
            raise
        message = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"method {method!r}, your own, failed: {message}"
        ) from error
