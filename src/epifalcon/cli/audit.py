"""``epifalcon audit``: attack a finished run and print its privacy card."""

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
        Path | None, option("Folder to write the card to, as HTML and JSON.")
    ] = None,
    shadow_runs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Models to train on half of the tests, for membership inference; "
            "each takes as long as the run.",
        ),
    ] = 0,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Attack a run with what its server saw and compare with its guarantee.

    A run of Falcon or HGNN (hypergraph neural network) needs --record-view; a
    run of Falcon Field does not. Ends with exit code 4 if a canary, a record
    planted to be found, leaks more than the ledger allows.

    Examples:
      epifalcon run --preset hamlet --mode paper --record-view 200 --out runs/p
      epifalcon audit runs/p --out card
    """
    from epifalcon import store
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.experiments.simulation import SIMULATED
    from epifalcon.settings import json_text

    console = Console(json=as_json, quiet=quiet)
    if out is not None:
        store.refuse_occupied(out, overwrite)
    with console.progress() as progress:
        finished = FinishedRun.open(run, method)
        # Imports torch.
        from epifalcon.studies.privacy_audit import audit as attack

        with finished.guarded():
            card = attack(
                finished, seed=seed, shadow_runs=shadow_runs, progress=progress
            )
    mark = {"simulated_on_real_people": finished.simulated_on_real_people}
    figures = card.as_plain() | mark
    if finished.simulated_on_real_people:
        console.note(SIMULATED)
    console.figures(figures)
    console.tables(card.tables())
    console.say(card.sentence())
    if out is not None:
        made_by = f"epifalcon audit {card.run} --out {out}"
        with (
            finished.guarded(),
            store.new_directory(out, overwrite=overwrite) as scratch,
        ):
            page, text = card.page(made_by).to_html(), json_text(figures) + "\n"
            (scratch / "card.html").write_text(page, encoding="utf-8")
            (scratch / "card.json").write_text(text, encoding="utf-8")
            settings = {"run": card.run, "method": card.method}
            origin = store.Origin.now(settings, card.seed)
            store.write_manifest(scratch, "privacy-card", meta={}, origin=origin)
        console.say(f"Card: {out / 'card.html'}")
    if card.findings:
        raise BudgetExceededError(
            "canaries contradict the ledger: " + "; ".join(card.findings)
        )
