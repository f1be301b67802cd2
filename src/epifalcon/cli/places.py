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
    run: Annotated[
        Path, typer.Argument(help="Finished run, or state of epifalcon update.")
    ],
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
    """List the places and times with the most expected infections.

    Needs a run of falcon-field, or a state of epifalcon update, whose window of
    days is ranked. All test results are used. day and hours: of the day with the
    most infections at the place, the shortest period with 80 % of them. people:
    how many visited the place, with --by place-day on that day.

    Examples:
      epifalcon places runs/mycity --top 10
      epifalcon places state --by place-day --out places.csv
    """
    from epifalcon import store
    from epifalcon.experiments import daily_update
    from epifalcon.experiments import places as ranking
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.experiments.simulation import SIMULATED
    from epifalcon.federation.field.settings import METHOD as FIELD

    if out is not None:
        ranking.require_csv(out, overwrite=overwrite)
    console = Console(json=json, quiet=quiet)
    with console.progress() as progress:
        if daily_update.is_state(run):
            daily_update.refuse_method(run, method)
            found = daily_update.places_of_state(run, progress)
            name, guard, private = FIELD, store.as_private_as(run), False
        else:
            finished = FinishedRun.open(run, method)
            found = ranking.places_of_run(finished, progress)
            name, guard = finished.method, finished.guarded()
            private = finished.is_private
        table = found.table(top, by.value)
    if out is not None:
        with guard:
            found.write(out, table, overwrite=overwrite)
    console.figures(
        {
            "run": run,
            "method": name,
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
    if private:
        console.say(
            "Expected infections are raw data: handing them on is a release that no "
            "epsilon covers."
        )
