"""A run, start to report: what ``epifalcon run`` does, as a function."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults, data_warnings
from epifalcon.errors import DataError, EpifalconError, SettingsError, WriteError
from epifalcon.experiments import run_methods, shareable_report
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.experiments.run_folder import (
    MethodFailure,
    RunInputs,
    create_run_folder,
    finished,
    open_run,
    require_settings,
    resume_command,
)
from epifalcon.experiments.run_methods import (
    Outcome,
    TrainingOptions,
    run_method,
    run_other,
)
from epifalcon.experiments.run_report import RunSummary, write_results
from epifalcon.experiments.simulation import (
    CITY,
    KNOWN,
    SIMULATED,
    choose_tests,
    find_folder,
    guarded_as,
    prepare,
    run_epidemics,
)
from epifalcon.locks import lock_folder
from epifalcon.methods.registry import entry
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.streams import PRIVATE

_log = logging.getLogger(__name__)


def run(
    experiment: Experiment | None,
    out: Path,
    *,
    name: str = DEFAULT_PRESET,
    city: Path | None = None,
    tests: Path | None = None,
    simulate: bool = False,
    seed: int | None = None,
    insecure_seed: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 10.0,
    tensorboard: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = _log.warning,
) -> RunSummary:
    """Run an experiment from the city to the report.

    Args:
        experiment: All settings; None to resume with the settings stored in ``out``.
        out: Folder of the run. A private run has exact values, such as risks, in its
            folder ``private``, readable only by the owner.
        name: Name of the experiment in outputs.
        city: Folder of an existing city, instead of a synthetic one.
        tests: Folder of test results, instead of a simulated outbreak; needs ``city``.
            By default those imported with ``city``.
        simulate: Simulate an outbreak although the people of ``city`` are real; all
            results are marked.
        seed: Seed of all random numbers except privacy noise; 0 if None.
        insecure_seed: Draw privacy noise from ``seed`` too, instead of the operating
            system: reproducible, and NOT PRIVATE.
        resume: Continue the run in ``out``; other settings or data are refused.
        overwrite: Replace a run in ``out``.
        checkpoint_seconds: Minimum time between two checkpoints.
        tensorboard: Also write a log for TensorBoard.
        progress: Called with the name of the stage and how much of it is done.
        warn: Called with each warning about the data before training starts.

    Returns:
        The metrics, and the tables that a terminal shows.
    """
    with lock_folder(out):
        if resume:
            inputs = _resume(
                experiment, out, city, tests, simulate, seed, insecure_seed
            )
        else:
            if experiment is None:
                raise SettingsError("a new run needs an experiment")
            inputs = _create(
                experiment,
                out,
                name,
                city,
                choose_tests(city, tests, simulate),
                seed or 0,
                insecure_seed,
                overwrite,
                progress,
            )
        chosen = inputs.prepared.experiment
        method, mode = chosen.method, chosen.privacy.mode
        if inputs.insecure_seed and inputs.draws_noise:
            warn(
                "NOT PRIVATE: the noise comes from a fixed seed (--insecure-seed), and "
                "whoever knows the seed can remove it"
            )
        if mode != "off" and not chosen.is_private(method):
            warn(
                f"privacy.mode={mode} applies only to falcon: {method} uses traces and "
                "tests without protection"
            )
        people = inputs.known.people
        for name in chosen.private_methods:
            delta = getattr(chosen, str(entry(name).privacy_table)).delta
            if delta * people >= 1:
                warn(
                    f"{name}: delta={delta:g} is not below 1 / {people:,} people, so "
                    "the data of somebody may be revealed in full: choose less"
                )
        if inputs.simulated_on_real_people:
            warn(SIMULATED)
        for warning in data_warnings(inputs.known, inputs.reported):
            warn(warning)
        options = TrainingOptions(
            progress=progress, checkpoint_seconds=checkpoint_seconds, log=tensorboard
        )
        try:
            return _finish(inputs, options)
        except WriteError as error:
            raise WriteError(f"{error}; resume with: {resume_command(out)}") from None


def _create(
    experiment: Experiment,
    out: Path,
    name: str,
    city: Path | None,
    tests: Path | None,
    seed: int,
    insecure_seed: bool,
    overwrite: bool,
    progress: Progress,
) -> RunInputs:
    """Create the folder with city, outbreak and tests, or only an existing city."""
    unfinished = False
    with contextlib.suppress(EpifalconError):
        unfinished = not finished(out)
    if unfinished and not overwrite:
        raise WriteError(
            f"{out}: holds a run that is not finished; continue it with --resume, or "
            "start again with --overwrite"
        )
    store.refuse_occupied(out, overwrite)
    prepared, epidemic = prepare(name, experiment, seed, progress, city), None
    if tests is None:
        if prepared.is_imported and experiment.private_methods and not insecure_seed:
            raise SettingsError(
                "--simulate on real people: in a simulated outbreak one person's trace "
                "changes the tests of others, which no epsilon covers: choose mode "
                "off, or add --insecure-seed and do not share the run"
            )
        epidemic = next(run_epidemics(experiment, prepared.traces, seed))
        known = epidemic.labels.known
    else:
        known = TestResults.load(find_folder(tests, KNOWN))
        try:
            known.require_people_of(prepared.traces)
        except DataError as error:
            raise DataError(f"{tests}: {error}") from None
    reported = prepared.reported(seed, progress)
    # The number of threads decides the last bits of sums.
    threads = torch.get_num_threads()
    inputs = RunInputs(
        out, prepared, seed, reported, known, epidemic, threads, insecure_seed
    )
    if experiment.private_methods and not insecure_seed:
        inputs = replace(inputs, folder=out / PRIVATE, shareable=out)
    run_methods.require_possible(inputs)
    # The shareable files of a private run are beside its data.
    guard = guarded_as(*([] if inputs.shareable else [city, tests]))
    with guard:
        create_run_folder(inputs, overwrite=overwrite, sources=[city, tests])
    return inputs


def _resume(
    experiment: Experiment | None,
    out: Path,
    city: Path | None,
    tests: Path | None,
    simulate: bool,
    seed: int | None,
    insecure_seed: bool,
) -> RunInputs:
    """Open the run in ``out``; refuse other settings, data or seed."""
    inputs = open_run(out)
    if insecure_seed and not inputs.insecure_seed:
        raise SettingsError(f"{out}: was created without --insecure-seed")
    if simulate and inputs.epidemic is None:
        raise SettingsError(f"{out}: was created without --simulate")
    if seed is not None and seed != inputs.seed:
        raise SettingsError(f"{out}: was created with --seed {inputs.seed}")
    own = None
    if city is not None and tests is None and inputs.epidemic is None:
        own = city if (city / KNOWN).is_dir() else None
    same = (("--city", city, CITY), ("--city", own, KNOWN), ("--known", tests, KNOWN))
    for option, given, name in same:
        if given is not None:
            files = store.read_manifest(inputs.folder / name)["files"]
            if store.read_manifest(find_folder(given, name))["files"] != files:
                raise SettingsError(f"{out}: was created with another {option}")
    stored = inputs.prepared.experiment
    if experiment is not None:
        if city is not None:
            experiment = replace(experiment, city=stored.city)
        require_settings(out, as_plain(stored), experiment)
    return inputs


def _finish(inputs: RunInputs, options: TrainingOptions) -> RunSummary:
    """Train what is not trained yet, evaluate it and write the report."""
    private = inputs.shareable is not None
    with store.owner_only() if private else store.as_private_as(inputs.folder):
        outcomes, failed = _outcomes(inputs, options)
        summary = write_results(inputs, outcomes, failed, options.progress)
    if inputs.shareable is None:
        return summary
    return shareable_report.write(inputs, inputs.shareable, outcomes, summary)


def _outcomes(
    inputs: RunInputs, options: TrainingOptions
) -> tuple[list[Outcome], dict[str, str]]:
    """Return the outcome of each method, and why additional methods failed."""
    experiment = inputs.prepared.experiment
    try:
        outcomes = [run_method(inputs, experiment.method, options)]
    except Exception as error:
        if isinstance(error, EpifalconError) or not entry(experiment.method).is_own:
            raise
        why = MethodFailure.of(error).message
        raise SettingsError(
            f"user-defined method {experiment.method!r} failed: {why}"
        ) from error
    failed = {}
    for method in experiment.beside:
        outcome = run_other(inputs, method, options)
        if isinstance(outcome, MethodFailure):
            failed[method] = outcome.message
        else:
            outcomes.append(outcome)
    return outcomes, failed
