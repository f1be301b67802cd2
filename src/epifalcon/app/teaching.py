"""``epifalcon train-correction``: make Falcon Field's learned correction again."""

from pathlib import Path
from typing import Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen


def train_correction(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="File to write, .safetensors; what made it goes beside it as JSON.",
            show_default=False,
        ),
    ],
    worlds: Annotated[
        int, typer.Option("--worlds", min=5, help="Simulated worlds to learn from.")
    ] = 500,
    people: Annotated[
        tuple[int, int],
        typer.Option("--people", help="People of a world: the least and the most."),
    ] = (300, 2000),
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="Times that all worlds are seen.")
    ] = 30,
    seed: options.Seed = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train the correction of Falcon Field's risks on simulated worlds.

    The worlds are drawn from broad priors; nobody's data is used. A training that
    was stopped goes on with the worlds that it had made. A run uses the file with
    --set field.correction=FILE.

    Example: epifalcon train-correction --out correction.safetensors --worlds 500
    """
    from epifalcon.studies.training_correction import (
        LessonPlan,
        require_new,
        train_correction,
    )

    screen = Screen(json=json, quiet=quiet)
    require_new(out, overwrite=overwrite)
    plan = LessonPlan(worlds=worlds, seed=seed, people=people, epochs=epochs)
    command = (
        f"epifalcon train-correction --out {out.name} --worlds {worlds} "
        f"--people {people[0]} {people[1]} --epochs {epochs} --seed {seed}"
    )
    with screen.progress() as progress:
        made = train_correction(plan, out, command, progress)
    screen.figures(dict(made.made))
    told = made.made["held_out_log_loss"]
    screen.say(
        f"Log loss in worlds held out: {told['before']:.4f} before, "
        f"{told['after']:.4f} after. Written: {out}"
    )
