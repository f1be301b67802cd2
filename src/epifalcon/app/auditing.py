"""``epifalcon audit``: attack a finished run, and print its privacy card."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import BudgetExceededError

if TYPE_CHECKING:
    from epifalcon.reports.privacy_card import PrivacyCard


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    method: Annotated[
        str | None, typer.Option(help="One of the run's methods; its own unless told.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write the card into, as HTML and JSON."),
    ] = None,
    shadow_runs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train the method so often on half of the tests, to see what risks "
            "tell of single tests: 16 is modest, 0 leaves it out.",
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
    from epifalcon.studies.auditing import audit as attack

    screen = Screen(json=as_json, quiet=quiet)
    if out is not None:
        store.refuse_occupied(out, overwrite)
    with screen.progress() as progress:
        finished = FinishedRun.open(run, method)
        card = attack(finished, seed=seed, shadow_runs=shadow_runs, progress=progress)
    screen.figures(card.figures())
    for table in card.tables():
        screen.table(table.caption, table.columns, table.rows)
    screen.say(card.sentence())
    if out is not None:
        _write(card, out, overwrite)
        screen.say(f"Card: {out / 'card.html'}")
    if card.findings:
        raise BudgetExceededError(
            "canaries contradict the ledger: " + "; ".join(card.findings)
        )


def _write(card: "PrivacyCard", out: Path, overwrite: bool) -> None:
    from epifalcon import store
    from epifalcon.settings import json_text

    made_by = f"epifalcon audit {card.run} --out {out}"
    with store.new_directory(out, overwrite=overwrite) as scratch:
        page = card.page(made_by).to_html()
        (scratch / "card.html").write_text(page, encoding="utf-8")
        text = json_text(card.figures()) + "\n"
        (scratch / "card.json").write_text(text, encoding="utf-8")
        origin = store.Origin.now({"run": card.run, "method": card.method}, card.seed)
        store.write_manifest(scratch, "privacy-card", meta={}, origin=origin)
