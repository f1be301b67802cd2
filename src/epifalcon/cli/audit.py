"""``epifalcon audit``: attack a finished run, and print its privacy card."""

from pathlib import Path
from typing import Annotated

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import BudgetExceededError


def audit(
    run: options.FinishedRun,
    method: options.MethodOfRun = None,
    out: Annotated[
        Path | None, option("Folder to write the card into, as HTML and JSON.")
    ] = None,
    shadow_runs: Annotated[
        int,
        typer.Option(
            min=0, help="Trainings on half of the tests, for membership inference."
        ),
    ] = 0,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack a run with what its server saw, and tell what is promised and kept.

    A run of Falcon or HGNN must have been made with --record-view; one of Falcon
    Field need not. Exit code 4 where a canary shows more than the ledger claims.

    Example: epifalcon run --preset hamlet --mode paper --record-view 200 --out r;
    epifalcon audit r --out card
    """
    from epifalcon import store
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.settings import json_text
    from epifalcon.studies.privacy_audit import audit as attack

    screen = Console(json=as_json, quiet=quiet)
    if out is not None:
        store.refuse_occupied(out, overwrite)
    with screen.progress() as progress:
        finished = FinishedRun.open(run, method)
        card = attack(finished, seed=seed, shadow_runs=shadow_runs, progress=progress)
    screen.figures(card.figures())
    screen.tables(card.tables())
    screen.say(card.sentence())
    if out is not None:
        made_by = f"epifalcon audit {card.run} --out {out}"
        with store.new_directory(out, overwrite=overwrite) as scratch:
            page, text = card.page(made_by).to_html(), json_text(card.figures()) + "\n"
            (scratch / "card.html").write_text(page, encoding="utf-8")
            (scratch / "card.json").write_text(text, encoding="utf-8")
            settings = {"run": card.run, "method": card.method}
            origin = store.Origin.now(settings, card.seed)
            store.write_manifest(scratch, "privacy-card", meta={}, origin=origin)
        screen.say(f"Card: {out / 'card.html'}")
    if card.findings:
        raise BudgetExceededError(
            "canaries contradict the ledger: " + "; ".join(card.findings)
        )
