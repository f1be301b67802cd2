"""``epifalcon run``: the whole way of the data, from a city to a report."""

import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console, resumable
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError


def run(
    out: Annotated[Path, option("Folder to write the run into.")],
    preset: options.Preset = None,
    city: options.City = None,
    known: Annotated[
        Path | None, option("Test results to learn from, with --city: no simulation.")
    ] = None,
    method: Annotated[
        str | None, option("Method whose scores are the run's (default: falcon).")
    ] = None,
    mode: Annotated[
        str | None, option("Privacy: off, paper, local, or sums (falcon-field).")
    ] = None,
    beside: Annotated[
        list[str] | None, option("Another method on the same tests. May be repeated.")
    ] = None,
    overrides: options.Overrides = None,
    own: options.Own = None,
    seed: Annotated[
        int | None, option("Equal seeds and settings give equal results (default: 0).")
    ] = None,
    resume: Annotated[bool, option("Continue the run in --out.", "--resume")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Least time between two checkpoints.")
    ] = 10.0,
    record_view: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="PEOPLE",
            help="Record the server's view of so many people, for epifalcon audit.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, option("Also write a log that TensorBoard reads.", "--tensorboard")
    ] = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build a city, run an outbreak, train Falcon on the tests, judge it, report.

    A run that was stopped, by Ctrl-C or worse, goes on with --resume and ends
    with the same result. The folder of a run holds everything that made it.

    Example: epifalcon run --preset hamlet --mode local --beside hgnn --out demo
    """
    from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
    from epifalcon.experiments.run import resume_command
    from epifalcon.experiments.run import run as run_experiment
    from epifalcon.experiments.run_folder import SETTINGS, finished
    from epifalcon.experiments.simulation import choose_settings
    from epifalcon.methods.registry import entry

    if resume and overwrite:
        raise SettingsError("--resume goes on with a run, --overwrite begins it again")
    if math.isnan(checkpoint_seconds):
        raise SettingsError("--checkpoint-seconds nan must be a number of 0 or more")
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    if beside:
        chosen["beside"] = beside
    if mode is not None:
        table = entry(method).privacy_table if method else None
        chosen[table or "privacy"] = {"mode": mode}
    if record_view is not None:
        chosen["view"] = {"people": record_view}
    experiment = None
    if not resume:
        experiment = choose_settings(preset, city, overrides or (), chosen)
    elif preset or overrides or chosen:
        finished(out)
        source = preset or str(out / SETTINGS)
        experiment = Experiment.load(source, overrides or (), chosen)
    screen = Console(json=as_json, quiet=quiet)
    before = None if resume else _inode(out)
    lasting = resumable(resume_command(out), lambda: _inode(out) not in (None, before))
    with lasting, screen.progress() as progress:
        finished_run = run_experiment(
            experiment,
            out,
            name=preset or (DEFAULT_PRESET if city is None else str(city)),
            city=city,
            tests=known,
            seed=seed,
            resume=resume,
            overwrite=overwrite,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            progress=progress,
            warn=screen.note,
        )
    screen.figures({**finished_run.figures, "out": str(out)})
    for method, why in finished_run.figures.get("failed", {}).items():
        screen.note(f"{method} has no result: {why}")
    screen.tables(finished_run.tables)
    screen.say(f"Report: {out / 'report.html'}")
    following = ["epifalcon", "predict", str(out), "--out", "risks.csv"]
    following += [word for one in own or () for word in ("--with", str(one))]
    screen.say(f"Risks of all people: {shlex.join(following)}")


def _inode(folder: Path) -> int | None:
    """Return the inode of ``folder``, which changes if the folder is replaced."""
    return folder.stat().st_ino if folder.is_dir() else None
