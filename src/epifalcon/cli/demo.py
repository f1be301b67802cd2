"""``epifalcon demo``: the demonstration on a small simulated town."""

from pathlib import Path
from typing import Annotated

from epifalcon.cli import options
from epifalcon.cli.console import Console, resumable
from epifalcon.cli.options import option


def demo(
    out: Annotated[Path, option("Folder to write the run and its report to.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[
        bool,
        option("Replace any run in --out, not only an earlier demo.", "--overwrite"),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Simulate a small town with an outbreak and predict who is infected.

    Compares Falcon as published, Falcon Field, HBP (hypergraph belief
    propagation) and the ceiling, and writes a report. Takes about half a minute
    on two cores, and longer the first time, when code is compiled. An earlier
    demo in the same folder is replaced; other content never is.

    Examples:
      epifalcon demo
      epifalcon demo --out demo
    """
    from epifalcon.experiments.demo import demo as run_demo
    from epifalcon.experiments.run_folder import resume_command

    console = Console(json=as_json, quiet=quiet)
    stopped = resumable(resume_command(out), (out / "manifest.json").is_file)
    with stopped, console.progress() as progress:
        result = run_demo(
            out, overwrite=overwrite, progress=progress, warn=console.note
        )
    console.figures({**result.figures, "out": str(out)})
    console.say(result.introduction)
    table = result.table
    console.table(table.caption, table.columns, table.rows)
    for note in result.notes:
        console.say(note)
    console.say(f"Open the report in a browser: {result.report.resolve()}")
