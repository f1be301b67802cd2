"""``epifalcon federate``: run methods over sites that keep their own data."""

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError

if TYPE_CHECKING:
    from epifalcon.federation.nvflare.jobs import JobStatus

app = typer.Typer(
    help="Run Falcon over sites that keep their own data (NVFlare, mutual TLS; extra: "
    "federation).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Rounds = Annotated[
    int | None,
    option(
        "Number of rounds, or of iterations of falcon-field; no early stopping.",
        "--rounds",
    ),
]
Method = Annotated[str, option("Method: falcon or falcon-field.", "--method")]
Uploads = Annotated[
    str,
    option(
        "What a site uploads: sums over its people, rows of each person, or auto, "
        "which means sums."
    ),
]
Mode = Annotated[
    str | None,
    option("Privacy mode: off, paper or local; for falcon-field off, sums or local."),
]
LeastSites = Annotated[
    int | None,
    option(
        "Stop the run if fewer sites are connected; it can be resumed (default: all)."
    ),
]
_SHOWN = ("auc", "f1", "accuracy", "dep")
"""Metrics that a rehearsal prints."""
AdminKit = Annotated[Path, typer.Argument(help="Kit of the administrator.")]


@app.command()
def rehearse(
    preset: options.Preset = None,
    method: Method = "falcon",
    sites: Annotated[int, option("Number of site processes.")] = 4,
    rounds: Rounds = None,
    mode: Mode = None,
    uploads: Uploads = "auto",
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    keep: Annotated[
        Path | None, option("Keep kits, logs and results in this new folder.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Start a server and sites on this machine, train, and compare.

    The people of a simulated city are divided among the sites. The result is
    compared with the same run in one process, by default in double precision.
    All processes use the loopback interface only and are removed at the end.

    Examples:
      epifalcon federate rehearse --preset hamlet --sites 4 --rounds 20
      epifalcon federate rehearse --method falcon-field --mode sums
    """
    from epifalcon.experiments.experiment import DEFAULT_PRESET
    from epifalcon.federation.settings import SiteRules
    from epifalcon.reports import formats
    from epifalcon.reports.metric_registry import METRICS
    from epifalcon.settings import build
    from epifalcon.studies.federation_rehearsal import Rehearsal, federated_experiment
    from epifalcon.studies.federation_rehearsal import rehearse as run_rehearsal

    console = Console(json=as_json, quiet=quiet)
    settings = ["model.precision=double", *(overrides or ())]
    rehearsal = Rehearsal(
        experiment=federated_experiment(
            preset or DEFAULT_PRESET, method, settings, mode=mode, rounds=rounds
        ),
        method=method,
        seed=seed,
        sites=sites,
        rules=build(SiteRules, {"uploads": uploads, "least_sites": sites}),
    )
    with _folder(keep) as folder, console.progress() as progress:
        found = run_rehearsal(rehearsal, Path(folder), progress)
    console.figures(found)
    both = found["metrics"], found["in_process_metrics"]
    rows = [
        (METRICS[name].title, *(formats.number(one[name]) for one in both))
        for name in _SHOWN
    ]
    seconds = found["seconds_per_round"], found["in_process_seconds_per_round"]
    rows.append(("seconds per round", *(f"{one:.3g}" for one in seconds)))
    rows.append(("MB per round", f"{found['bytes_per_round'] / 1e6:,.1f}", "0"))
    steps = f"{found['rounds']} {'iterations' if 'law' in found else 'rounds'}"
    title = f"{found['people']:,} people, {steps}, mode {found['mode']}"
    title += " (NOT PRIVATE: fixed seed)" if found["insecure_seed"] else ""
    columns = ["", f"{found['sites']} sites ({found['uploads']})", "one process"]
    console.table(title, columns, rows)
    gap = found["max_difference_to_in_process"]
    console.say(f"Largest difference of any parameter or score: {gap:.2g}")
    console.explain(METRICS[name].title for name in _SHOWN)


@app.command()
def provision(
    plan: Annotated[
        Path, typer.Argument(help="TOML file with the names of server and sites.")
    ],
    out: Annotated[Path, option("New folder for the kits.")],
    authority: Annotated[
        Path | None, option("Authority folder of an existing federation to extend.")
    ] = None,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Write start-up kits with certificates for server, sites and administrator.

    With --authority, only kits for the sites in the file are written, to add
    them to an existing federation.

    Examples:
      epifalcon federate provision federation.toml --out kits
    """
    from epifalcon.federation.network.site_files import SITE_FILE, TEMPLATE
    from epifalcon.federation.nvflare.provisioning import provision as write
    from epifalcon.federation.nvflare.provisioning import read_deployment

    deployment = read_deployment(plan)
    kits = write(deployment, out, authority=authority)
    for site in deployment.sites:
        (kits[site] / SITE_FILE).write_text(TEMPLATE)
    console = Console(quiet=quiet)
    rows = [(name, str(folder)) for name, folder in kits.items()]
    if authority is None:
        rows.append(("authority", str(out / "authority")))
    console.table("Kits: copy each to its machine only", ["for", "folder"], rows)
    console.say(
        f"Each site must complete its {SITE_FILE}. Store the folder authority offline."
    )


@app.command()
def serve(
    kit: Annotated[Path, typer.Argument(help="Kit of the server.")],
    _verbose: options.Verbose = 0,
) -> None:
    """Run the server in the foreground until it is stopped.

    Examples:
      epifalcon federate serve kits/server
    """
    from epifalcon.federation.nvflare.processes import run_in_foreground
    from epifalcon.federation.nvflare.provisioning import open_kit

    open_kit(kit, "server")
    run_in_foreground(kit)


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="Kit of the site.")],
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Check the data of a site, then run it in the foreground until it is stopped.

    Examples:
      epifalcon federate join kits/clinic
    """
    from epifalcon.federation.network.site_files import SiteFiles
    from epifalcon.federation.nvflare.processes import run_in_foreground
    from epifalcon.federation.nvflare.provisioning import open_kit

    open_kit(kit, "site")
    files = SiteFiles(kit)
    data = files.load_data(files.settings())
    tested = int(data.known.tested.sum())
    console = Console(quiet=quiet)
    console.say(f"{data.traces.people:,} people, {tested:,} tested")
    if files.has_secret:
        console.note(
            f"{kit} contains a secret of its noise from before: if this site has never "
            "joined, somebody else put it there and can remove the noise; delete it"
        )
    run_in_foreground(kit)


@app.command()
def submit(
    kit: AdminKit,
    run: Annotated[str, option("Name of the run.")],
    preset: options.Preset = None,
    method: Method = "falcon",
    rounds: Rounds = None,
    mode: Mode = None,
    uploads: Uploads = "auto",
    least_sites: LeastSites = None,
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    resume: Annotated[bool, option("Resume a stopped run.", "--resume")] = False,
    scores: Annotated[
        bool, option("Request scores from sites whose policy allows it.", "--scores")
    ] = False,
    wait: Annotated[
        bool, option("Wait for the end; fail if the run fails.", "--wait")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Submit a run to the server; it starts when enough sites are connected.

    Examples:
      epifalcon federate submit kits/admin --run first --mode local --wait
    """
    from epifalcon.experiments.experiment import DEFAULT_PRESET
    from epifalcon.federation.network.site_calls import RunOptions
    from epifalcon.federation.network.site_files import require_run_name
    from epifalcon.federation.nvflare.jobs import connect, job_of
    from epifalcon.federation.nvflare.provisioning import open_kit
    from epifalcon.federation.settings import SiteRules
    from epifalcon.settings import build
    from epifalcon.studies.federation_rehearsal import (
        federated_experiment,
        run_request_of,
    )

    require_run_name(run)
    experiment = federated_experiment(
        preset or DEFAULT_PRESET, method, overrides or (), mode=mode, rounds=rounds
    )
    least = least_sites or len(open_kit(kit, "admin").deployment.sites)
    rules = build(SiteRules, {"uploads": uploads, "least_sites": least})
    request = run_request_of(method, experiment, rules, seed)
    job = job_of(run, request, RunOptions(scores=scores), least, resume=resume)
    console = Console(json=as_json, quiet=quiet)
    with console.progress() as progress, connect(kit) as admin:
        number = admin.submit(job)
        console.say(f"Job {number}")
        connected = len(admin.connected())
        if connected < least:
            console.note(f"Waiting for sites: {connected} of {least} are connected.")
        progress("run", 0, 1, "waiting for its end" if wait else "")
        status = admin.wait(number, float("inf")) if wait else admin.job(number)
    console.figures(
        {"job": number, "run": run, "status": status.status, "why": status.why}
    )
    if wait:
        _require_success(status)
        console.say(f"{status.status}; results on the server in runs/{run}")


@app.command()
def status(
    kit: AdminKit, as_json: options.Json = False, _verbose: options.Verbose = 0
) -> None:
    """Show which sites are connected or missing, and all runs.

    Examples:
      epifalcon federate status kits/admin
    """
    from epifalcon.federation.nvflare.jobs import connect
    from epifalcon.settings import as_plain

    console = Console(json=as_json)
    with connect(kit) as admin:
        found = admin.status()
    console.figures(as_plain(found))
    sites = [(site, "connected") for site in found.connected]
    sites += [(site, "missing") for site in found.missing]
    console.table("Sites", ["site", "status"], sites)
    rows = [(one.name, one.status, one.submitted, one.job) for one in found.jobs]
    console.table("Runs", ["run", "status", "submitted", "job"], rows)
    for one in found.jobs:
        if one.why:
            console.say(f"{one.name} ({one.job}): {one.why}")


@app.command()
def stop(
    kit: AdminKit,
    job: Annotated[str, typer.Argument(help="Number of the job (see: status).")],
    _verbose: options.Verbose = 0,
) -> None:
    """Stop a run; it can be resumed from its last checkpoint.

    Examples:
      epifalcon federate stop kits/admin JOB
    """
    from epifalcon.federation.nvflare.jobs import connect

    with connect(kit) as admin:
        admin.stop(job)


@app.command()
def deal(
    city: Annotated[
        Path, typer.Argument(help="Folder of a run, or of imported data with tests.")
    ],
    out: Annotated[Path, option("New folder for the parts.")],
    sites: Annotated[int, option("Number of parts.")] = 3,
    _verbose: options.Verbose = 0,
) -> None:
    """Divide the people of a run among sites, to try out a federation.

    Examples:
      epifalcon federate deal runs/local --sites 3 --out parts
    """
    from epifalcon.studies.federation_rehearsal import split_city as write

    for part in write(city, out, sites):
        Console().say(str(part))


def _folder(keep: Path | None) -> "contextlib.AbstractContextManager[Path | str]":
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="epifalcon-")
    if keep.exists():
        raise SettingsError(f"--keep {keep}: exists already; choose a new folder")
    keep.mkdir(parents=True)
    return contextlib.nullcontext(keep)


def _require_success(status: "JobStatus") -> None:
    """Raise the error that ended the run, or one for lost sites, with its exit code."""
    from epifalcon.federation.nvflare.jobs import error_of

    if status.succeeded and not status.why:
        return
    place = f"details: runs/{status.name}/summary.json in the kit of the server"
    reason = status.why or "reason unknown"
    raise error_of(status.kind, f"the run ended as {status.status}: {reason}; {place}")
