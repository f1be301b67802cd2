"""``epifalcon places``: where and when infections are expected to have happened."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option


class _By(StrEnum):
    PLACE = "place"
    PLACE_DAY = "place-day"


def places(
    run: options.FinishedRun,
    method: options.MethodOfRun = None,
    top: Annotated[int, typer.Option(help="Number of places to list.", min=1)] = 20,
    by: Annotated[
        _By, option("Rank places, or each place on each day.", "--by")
    ] = _By.PLACE,
    out: Annotated[Path | None, option("CSV file to write the list to.")] = None,
    overwrite: Annotated[
        bool, option("Replace the file if it exists.", "--overwrite")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """List the places and times with the most expected infections of a run.

    Needs a run of falcon-field. All test results are used. day and hours: of the
    day with the most infections at the place, the shortest period with 80 % of
    them. people: how many visited the place, with --by place-day on that day.

    Examples:
      epifalcon places runs/mycity --top 10
      epifalcon places runs/mycity --by place-day --out places.csv
    """
    from epifalcon.experiments import places as ranking
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.experiments.simulation import SIMULATED

    if out is not None:
        ranking.require_csv(out, overwrite=overwrite)
    console = Console(json=json, quiet=quiet)
    with console.progress() as progress:
        finished = FinishedRun.open(run, method)
        found = ranking.places_of_run(finished, progress)
        table = found.table(top, by.value)
    if out is not None:
        with finished.guarded():
            found.write(out, table, overwrite=overwrite)
    console.figures(
        {
            "run": run,
            "method": finished.method,
            "by": by.value,
            "expected_infections": found.total,
            "before": found.before,
            "not_observed": found.unobserved,
            "by_day": found.by_day.tolist(),
            "places": table.to_dicts(),
            "simulated_on_real_people": found.simulated_on_real_people,
            "out": out,
        }
    )
    if found.simulated_on_real_people:
        console.note(SIMULATED)
    console.say(ranking.summary_sentence(found))
    console.tables([ranking.shown_table(table, by.value)])
    console.say(ranking.CAUTION)
    if out is not None:
        console.say(f"Written to {out}.")
    if finished.is_private:
        console.say(
            "Expected infections are raw data: handing them on is a release that no "
            "epsilon covers."
        )
