"""``epifalcon run``: run an experiment from the city to the report."""

import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.cli import completion, options
from epifalcon.cli.console import Console, resumable
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError


def run(
    out: Annotated[Path, option("Folder to write the run to.")],
    preset: options.Preset = None,
    city: options.City = None,
    known: Annotated[
        Path | None,
        option(
            "Folder with test results of the people in --city (default: those that "
            "were imported with it)."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        option(
            "Simulate an outbreak on the traces of the real people in --city. All "
            "results are marked as simulated.",
            "--simulate",
        ),
    ] = False,
    pathogen: Annotated[
        str | None,
        option(
            "Disease: sars-cov-2, omicron, FILE.toml with beta, alpha and mu per day, "
            "or unknown (rates are estimated). Required with test results of imported "
            "people; otherwise that of the preset.",
            complete=completion.pathogens,
        ),
    ] = None,
    method: Annotated[
        str | None,
        option(
            "Method to run (default: falcon-field for imported data or with --known, "
            "else falcon). See: epifalcon methods.",
            complete=completion.methods,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        option(
            "Privacy mode: off, paper (falcon), local, sums or sealed (falcon-field).",
            complete=completion.modes,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        option(
            "Method to compare with on the same tests. May be repeated.",
            complete=completion.methods,
        ),
    ] = None,
    overrides: options.Overrides = None,
    own: options.Own = None,
    seed: Annotated[
        int | None,
        option("Seed of all random numbers except privacy noise (default: 0)."),
    ] = None,
    insecure_seed: Annotated[
        bool,
        option(
            "Draw privacy noise from --seed too: reproducible, but NOT PRIVATE. For "
            "simulations only.",
            "--insecure-seed",
        ),
    ] = False,
    resume: Annotated[bool, option("Resume the run in --out.", "--resume")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Minimum time between checkpoints.")
    ] = 10.0,
    tested_because: Annotated[
        str | None,
        option(
            "Why people were tested: random, contact, symptoms or unknown (default: "
            "unknown for imported tests, else random)."
        ),
    ] = None,
    record_view: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="PEOPLE",
            help="Record what the server sees of PEOPLE people, for audits.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        option("Write a log for TensorBoard (extra: tensorboard).", "--tensorboard"),
    ] = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Predict who is infected, on simulated or imported data, and write a report.

    Without --city a city and an outbreak are simulated. With an imported --city
    its own test results are used, unless --known or --simulate is given, and
    --pathogen must name the disease. A stopped run resumes with --resume and
    gives the same result. The folder of a run contains its data, settings and
    results.

    Examples:
      epifalcon run --preset hamlet --mode local --beside hgnn --out runs/local
      epifalcon run --city mycity --pathogen omicron --out runs/mycity
      epifalcon run --resume --out runs/local
    """
    from epifalcon.epidemic.pathogen import find_pathogen
    from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
    from epifalcon.experiments.run_folder import SETTINGS, finished, resume_command
    from epifalcon.experiments.simulation import choose_settings, choose_tests
    from epifalcon.settings import as_plain
    from epifalcon.streams import PRIVATE

    if resume and overwrite:
        raise SettingsError(
            "--resume continues a run and --overwrite replaces it: choose one"
        )
    if math.isnan(checkpoint_seconds):
        raise SettingsError("--checkpoint-seconds=nan must be 0 or a positive number")
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    if beside:
        chosen["beside"] = beside
    if pathogen is not None:
        chosen["pathogen"] = as_plain(find_pathogen(pathogen))
    if record_view is not None:
        chosen["view"] = {"people": record_view}
    if tested_because is not None:
        chosen["labels"] = {"tested_because": tested_because}
    experiment = None
    if not resume:
        known = choose_tests(city, known, simulate)
        experiment = choose_settings(
            preset, city, overrides or (), chosen, tests=known, mode=mode
        )
    else:
        finished(out)
    if resume and (preset or overrides or chosen or mode):
        stored = Experiment.load(str(out / SETTINGS))
        because = {"tested_because": stored.labels.tested_because}
        experiment = Experiment.load(
            preset or str(out / SETTINGS),
            overrides or (),
            {"labels": because, **chosen},
            default_method=stored.method,
            mode=mode,
        )
    # Imports torch, which takes seconds: wrong arguments are refused before.
    from epifalcon.experiments.run import run as run_experiment

    console = Console(json=as_json, quiet=quiet)
    before = None if resume else _inode(out)
    stopped = resumable(resume_command(out), lambda: _inode(out) not in (None, before))
    with stopped, console.progress() as progress:
        finished_run = run_experiment(
            experiment,
            out,
            name=preset or (DEFAULT_PRESET if city is None else str(city)),
            city=city,
            tests=known,
            simulate=simulate,
            seed=seed,
            insecure_seed=insecure_seed,
            resume=resume,
            overwrite=overwrite,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            progress=progress,
            warn=console.note,
        )
    private = finished_run.shareable
    shown = finished_run.values if private is None else private
    console.figures({**shown, "out": str(out)})
    for method, why in finished_run.values.get("failed", {}).items():
        console.note(f"{method} has no result: {why}")
    for sentence in finished_run.sentences:
        console.say(sentence)
    console.tables(finished_run.tables)
    for note in finished_run.notes:
        console.note(note)
    console.say(f"Report: {out / 'report.html'}")
    if private is not None:
        console.say(
            "It holds only released and public values. Raw data, not to be shared: "
            f"{out / PRIVATE} (full report: {out / PRIVATE / 'report.html'})"
        )
    command = ["epifalcon", "predict", str(out), "--out", "risks.csv"]
    command += [word for file in own or () for word in ("--with", str(file))]
    console.say(f"Whom to test next: {shlex.join(command)}")


def _inode(folder: Path) -> int | None:
    """Return the inode of ``folder``, which changes if the folder is replaced."""
    return folder.stat().st_ino if folder.is_dir() else None
