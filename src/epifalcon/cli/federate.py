"""``epifalcon federate``: the same methods over sites that keep their own data."""

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.errors import SettingsError

if TYPE_CHECKING:
    from epifalcon.federation.nvflare.jobs import JobStatus

app = typer.Typer(
    help="Run Falcon over sites that keep their own data: NVFlare, mutual TLS.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", help="Rounds, all of them run; sweeps of Falcon Field."),
]
Method = Annotated[str, typer.Option("--method", help="falcon or falcon-field.")]
Uploads = Annotated[
    str,
    typer.Option(help="sums of a site's people, rows of each person, or auto: sums."),
]
Mode = Annotated[
    str | None,
    typer.Option(help="off, paper or local; for Falcon Field off, sums or local."),
]
LeastSites = Annotated[
    int | None,
    typer.Option(help="With fewer sites the run stops, to be resumed (default: all)."),
]
AdminKit = Annotated[Path, typer.Argument(help="The administrator's kit.")]


@app.command()
def rehearse(
    preset: options.Preset = None,
    method: Method = "falcon",
    sites: Annotated[int, typer.Option(help="Site processes.")] = 4,
    rounds: Rounds = None,
    mode: Mode = None,
    uploads: Uploads = "auto",
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    keep: Annotated[
        Path | None, typer.Option(help="New folder that keeps kits, logs and results.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Start a real server and real sites on this machine, train, and compare.

    A simulated city is dealt out to the sites; each holds its own people. The
    result stands beside that of the same run in one process, by default in double
    precision. Everything listens on loopback only and is removed at the end.

    Example: epifalcon federate rehearse --preset hamlet --sites 4 --rounds 20
    """
    from epifalcon.experiments.experiment import DEFAULT_PRESET
    from epifalcon.federation.settings import SiteRules
    from epifalcon.reports import formats
    from epifalcon.settings import build
    from epifalcon.studies.federation_rehearsal import Rehearsal, federated_experiment
    from epifalcon.studies.federation_rehearsal import rehearse as carry_out

    screen = Console(json=as_json, quiet=quiet)
    words = ["model.precision=double", *(overrides or ())]
    wanted = Rehearsal(
        experiment=federated_experiment(
            preset or DEFAULT_PRESET, method, words, mode=mode, rounds=rounds
        ),
        method=method,
        seed=seed,
        sites=sites,
        rules=build(SiteRules, {"uploads": uploads, "least_sites": sites}),
    )
    with _folder(keep) as folder, screen.progress() as progress:
        found = carry_out(wanted, Path(folder), progress)
    screen.figures(found)
    both = found["metrics"], found["in_process_metrics"]
    rows = [
        (name, *(formats.number(one[name]) for one in both))
        for name in ("auc", "f1", "accuracy", "dep")
    ]
    seconds = found["seconds_per_round"], found["in_process_seconds_per_round"]
    rows.append(("seconds a round", *(f"{one:.3g}" for one in seconds)))
    rows.append(("MB a round", f"{found['bytes_per_round'] / 1e6:,.1f}", "0"))
    steps = f"{found['rounds']} {'sweeps' if 'law' in found else 'rounds'}"
    title = f"{found['people']:,} people, {steps}, mode {found['mode']}"
    columns = ["", f"{found['sites']} sites ({found['uploads']})", "one process"]
    screen.table(title, columns, rows)
    gap = found["max_difference_to_in_process"]
    screen.say(f"Largest difference of any parameter or score: {gap:.2g}")


@app.command()
def provision(
    plan: Annotated[
        Path, typer.Argument(help="TOML file that names server and sites.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the kits.")],
    authority: Annotated[
        Path | None, typer.Option(help="Authority folder of the federation to join.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Write start-up kits for server, sites and administrator, with certificates.

    With --authority only kits of the sites in the file are written, for a
    federation that is there already.

    Example: epifalcon federate provision federation.toml --out kits
    """
    from epifalcon.federation.network.site_files import SITE_FILE, TEMPLATE
    from epifalcon.federation.nvflare.provisioning import provision as write
    from epifalcon.federation.nvflare.provisioning import read_deployment

    deployment = read_deployment(plan)
    kits = write(deployment, out, authority=authority)
    for site in deployment.sites:
        (kits[site] / SITE_FILE).write_text(TEMPLATE)
    screen = Console(quiet=quiet)
    rows = [(name, str(folder)) for name, folder in kits.items()]
    if authority is None:
        rows.append(("authority", str(out / "authority")))
    screen.table("Kits: copy each to its machine alone", ["for", "folder"], rows)
    screen.say(f"Each site fills in its {SITE_FILE}; keep authority off all machines.")


@app.command()
def serve(kit: Annotated[Path, typer.Argument(help="The server's kit.")]) -> None:
    """Be the server, in the foreground, until stopped.

    Example: epifalcon federate serve kits/server
    """
    from epifalcon.federation.nvflare.processes import run_in_foreground
    from epifalcon.federation.nvflare.provisioning import open_kit

    open_kit(kit, "server")
    run_in_foreground(kit)


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="The site's kit.")],
    quiet: options.Quiet = False,
) -> None:
    """Be a site, in the foreground, until stopped; its data are checked first.

    Example: epifalcon federate join kits/clinic
    """
    from epifalcon.federation.network.site_files import SiteFiles
    from epifalcon.federation.nvflare.processes import run_in_foreground
    from epifalcon.federation.nvflare.provisioning import open_kit

    open_kit(kit, "site")
    files = SiteFiles(kit)
    home = files.household(files.settings())
    tested = int(home.known.tested.sum())
    Console(quiet=quiet).say(f"{home.traces.people:,} people, {tested:,} tested")
    run_in_foreground(kit)


@app.command()
def submit(
    kit: AdminKit,
    run: Annotated[str, typer.Option(help="Name of the run.")],
    preset: options.Preset = None,
    method: Method = "falcon",
    rounds: Rounds = None,
    mode: Mode = None,
    uploads: Uploads = "auto",
    least_sites: LeastSites = None,
    seed: options.Seed = 0,
    overrides: options.Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was broken off.")
    ] = False,
    scores: Annotated[
        bool,
        typer.Option("--scores", help="Ask sites for scores, if their policy gives."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; fails if the run does.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Hand a run in to the server; it starts when enough sites are there.

    Example: epifalcon federate submit kits/admin --run first --mode local --wait
    """
    from epifalcon.experiments.experiment import DEFAULT_PRESET
    from epifalcon.federation.network.site_calls import RunOptions
    from epifalcon.federation.network.site_files import require_run_name
    from epifalcon.federation.nvflare.jobs import connect, job_of
    from epifalcon.federation.nvflare.provisioning import open_kit
    from epifalcon.federation.settings import SiteRules
    from epifalcon.settings import build
    from epifalcon.studies.federation_rehearsal import federated_experiment, order_of

    require_run_name(run)
    experiment = federated_experiment(
        preset or DEFAULT_PRESET, method, overrides or (), mode=mode, rounds=rounds
    )
    least = least_sites or len(open_kit(kit, "admin").deployment.sites)
    rules = build(SiteRules, {"uploads": uploads, "least_sites": least})
    order = order_of(method, experiment, rules, seed)
    job = job_of(run, order, RunOptions(scores=scores), least, resume=resume)
    screen = Console(json=as_json, quiet=quiet)
    with connect(kit) as admin:
        number = admin.submit(job)
        screen.say(f"Job {number}")
        there = admin.connected()
        if len(there) < least:
            screen.note(f"Waiting for sites: {len(there)} of {least} are connected.")
        status = admin.wait(number, float("inf")) if wait else admin.job(number)
    told = {"job": number, "run": run, "status": status.status, "why": status.why}
    screen.figures(told)
    if wait:
        _require_success(status)
        screen.say(f"{status.status}; results at the server in runs/{run}")


@app.command()
def status(kit: AdminKit, as_json: options.Json = False) -> None:
    """Show the server, the sites that are there or missing, and all runs.

    Example: epifalcon federate status kits/admin
    """
    from epifalcon.federation.nvflare.jobs import connect
    from epifalcon.settings import as_plain

    screen = Console(json=as_json)
    with connect(kit) as admin:
        found = admin.status()
    screen.figures(as_plain(found))
    sites = [(site, "connected") for site in found.connected]
    sites += [(site, "missing") for site in found.missing]
    screen.table("Sites", ["site", "is"], sites)
    rows = [(one.name, one.status, one.submitted, one.job) for one in found.jobs]
    screen.table("Runs", ["run", "status", "handed in", "job"], rows)
    for one in found.jobs:
        if one.why:
            screen.say(f"{one.name} ({one.job}): {one.why}")


@app.command()
def stop(
    kit: AdminKit, job: Annotated[str, typer.Argument(help="Number of the job.")]
) -> None:
    """Stop a run; what is in its last checkpoint can be gone on with.

    Example: epifalcon federate stop kits/admin JOB
    """
    from epifalcon.federation.nvflare.jobs import connect

    with connect(kit) as admin:
        admin.stop(job)


@app.command()
def deal(
    city: Annotated[Path, typer.Argument(help="A run: a folder with city and known.")],
    out: Annotated[Path, typer.Option(help="New folder for the parts.")],
    sites: Annotated[int, typer.Option(help="How many parts.")] = 3,
) -> None:
    """Deal the people of a run's city out to sites, to try a federation with.

    Example: epifalcon federate deal town --sites 3 --out parts
    """
    from epifalcon.studies.federation_rehearsal import deal as write

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
    """Raise what ended the run, with the exit code that it would have here."""
    from epifalcon.federation.nvflare.jobs import error_of

    if status.succeeded:
        return
    place = f"the server's kit tells more, in runs/{status.name}/summary.json"
    told = f"the run ended as {status.status}: {status.why or 'nothing is known of it'}"
    raise error_of(status.kind, f"{told}; {place}")
