"""``epifalcon run``: the whole way of the data, from a city to a report."""

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import (
    DataError,
    EpifalconError,
    SettingsError,
    StoppedError,
    WriteError,
)

if TYPE_CHECKING:
    from epifalcon.epidemic.known import Known
    from epifalcon.mobility.traces import Traces
    from epifalcon.progress import Progress
    from epifalcon.studies.keeping import Kept
    from epifalcon.studies.run_folder import Begun


def run(
    out: Annotated[Path, typer.Option("--out", help="Folder to write the run into.")],
    preset: options.Preset = None,
    city: options.City = None,
    known: Annotated[
        Path | None,
        typer.Option(
            "--known",
            help="Folder of test results (made by import or run): learn from them "
            "instead of simulating an outbreak. Needs --city.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="Whose scores are the run's: falcon unless told. All names: epifalcon "
            "methods.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="Privacy: off (default), paper (as published) or local (an exact "
            "epsilon); of falcon-field off, sums or local.",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            help="Run this method too, on the same labels. May be repeated.",
            show_default=False,
        ),
    ] = None,
    overrides: options.Overrides = None,
    own: options.Own = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Equal seeds and settings give equal results; 0 unless told.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out, bit by bit."),
    ] = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            "--checkpoint-seconds", min=0, help="Least time between two checkpoints."
        ),
    ] = 10.0,
    record_view: Annotated[
        int | None,
        typer.Option(
            "--record-view",
            min=1,
            metavar="PEOPLE",
            help="Keep what a curious server sees of so many people, for epifalcon "
            "audit.",
            show_default=False,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Also write a log that TensorBoard reads."),
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
    from epifalcon.studies.run_folder import alone

    if resume and overwrite:
        raise SettingsError("--resume goes on with a run, --overwrite begins it again")
    if math.isnan(checkpoint_seconds):
        raise SettingsError("--checkpoint-seconds nan must be a number of 0 or more")
    words = _Words(preset, city, known, tuple(overrides or ()), seed)
    words = words.with_choices(
        {
            "method": method,
            _mode_key(method): mode,
            "view.people": record_view,
        },
        beside,
    )
    screen = Screen(json=as_json, quiet=quiet)
    with alone(out), _resumable(out, resume), screen.progress() as progress:
        if resume:
            begun = _resume(out, words)
        else:
            begun = _begin(out, words, overwrite, progress)
        _note_unprotected(screen, begun)
        _note_concerns(screen, begun)
        finished = _finish(begun, progress, checkpoint_seconds, tensorboard)
    screen.figures({**finished.figures, "out": str(out)})
    for method, why in finished.figures.get("failed", {}).items():
        screen.note(f"{method} has no result: {why}")
    for table in finished.tables:
        screen.table(table.caption, table.columns, table.rows)
    screen.say(f"Report: {out / 'report.html'}")
    following = ["epifalcon", "predict", str(out), "--out", "risks.csv"]
    following += [word for one in own or () for word in ("--with", str(one))]
    screen.say(f"Risks of all people: {shlex.join(following)}")


def _mode_key(method: str | None) -> str:
    """The setting that --mode stands for."""
    from epifalcon.studies.methods import FIELD

    return "field_privacy.mode" if method == FIELD else "privacy.mode"


def _note_unprotected(screen: Screen, begun: "Begun") -> None:
    experiment = begun.prepared.experiment
    mode = experiment.privacy.mode
    if mode != "off" and experiment.method != "falcon":
        screen.note(
            f"--mode {mode} protects falcon alone: {experiment.method} sees traces "
            "and tests as they are"
        )


def _note_concerns(screen: Screen, begun: "Begun") -> None:
    from epifalcon.epidemic.concerns import concerns

    for told in concerns(begun.known, begun.reported):
        screen.note(told)


@contextlib.contextmanager
def _resumable(out: Path, resume: bool) -> Iterator[None]:
    """Tell whoever interrupts how to go on, once there is something to go on with."""
    before = _number(out)
    try:
        yield
    except (KeyboardInterrupt, SystemExit, WriteError) as stop:
        if _number(out) is None or (_number(out) == before and not resume):
            raise
        way = f"go on with: epifalcon run --resume --out {shlex.quote(str(out))}"
        if isinstance(stop, WriteError):
            raise WriteError(f"{stop}; {way}") from None
        if isinstance(stop, SystemExit):
            sys.stderr.write(f"epifalcon: stopped; {way}\n")
            raise
        raise StoppedError(f"interrupted; {way}") from None


def _number(folder: Path) -> int | None:
    """What tells a folder from another that takes its place."""
    return folder.stat().st_ino if folder.is_dir() else None


@dataclass(frozen=True)
class _Words:
    """What the user asked for, before anything was read."""

    preset: str | None
    city: Path | None
    known: Path | None
    overrides: tuple[str, ...]
    seed: int | None

    def with_choices(
        self, options: dict[str, str | int | None], beside: list[str] | None
    ) -> "_Words":
        """The options that are settings too, as overrides; --set wins."""
        chosen = [
            f"{key}={json.dumps(value)}"
            for key, value in options.items()
            if value is not None
        ]
        if beside:
            chosen.append(f"beside={json.dumps(beside)}")
        return replace(self, overrides=(*chosen, *self.overrides))


def _begin(out: Path, words: _Words, overwrite: bool, progress: "Progress") -> "Begun":
    """Make city, outbreak and labels, and the folder with them in it."""
    from epifalcon import store
    from epifalcon.app.loading import choose
    from epifalcon.studies.outcomes import require_possible, threads_now
    from epifalcon.studies.pipeline import run_epidemics
    from epifalcon.studies.run_folder import Begun, begin

    _refuse_unfinished(out, overwrite)
    store.refuse_occupied(out, overwrite)
    seed = words.seed or 0
    given = None if words.known is None else _tests(words.known, words.city)
    chosen = choose(words.preset, words.city, list(words.overrides), seed, progress)
    epidemic = None
    if given is None:
        epidemic = next(run_epidemics(chosen.experiment, chosen.traces, seed))
        given = epidemic.labels.known
    else:
        _require_people(given, chosen.traces, words.known)
    reported = chosen.reported(seed, progress)
    begun = Begun(out, chosen, seed, reported, given, epidemic, threads_now())
    require_possible(begun)
    begin(begun, overwrite=overwrite, inputs=[words.city, words.known])
    return begun


def _require_people(known: "Known", traces: "Traces", folder: Path | None) -> None:
    try:
        known.require_people_of(traces)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None


def _refuse_unfinished(out: Path, overwrite: bool) -> None:
    """Tell of --resume where a run waits to be gone on with."""
    from epifalcon.studies.run_folder import finished

    unfinished = False
    with contextlib.suppress(EpifalconError):
        unfinished = not finished(out)
    if unfinished and not overwrite:
        raise WriteError(
            f"{out}: holds a run that is not finished; go on with it by --resume, or "
            "begin again with --overwrite"
        )


def _tests(folder: Path, city: Path | None) -> "Known":
    from epifalcon.epidemic.known import Known

    if city is None:
        raise SettingsError("--known needs --city: the tests are of its people")
    place = _known_folder(folder)
    if (folder / "city").is_dir() and place == folder:
        raise DataError(f"{folder}: holds no test results; import with --tests")
    return Known.load(place)


def _known_folder(folder: Path) -> Path:
    inner = folder / "known"
    return inner if inner.is_dir() else folder


def _resume(out: Path, words: _Words) -> "Begun":
    """Open the run in ``out``; other words than those it was begun with are refused."""
    from epifalcon.settings import as_plain, first_difference
    from epifalcon.studies.experiment import Experiment
    from epifalcon.studies.run_folder import open_run

    begun = open_run(out)
    if words.seed is not None and words.seed != begun.seed:
        raise SettingsError(f"{out}: was begun with --seed {begun.seed}")
    _refuse_other_data(begun, words)
    mine = begun.prepared.experiment
    source = words.preset or str(out / "settings.toml")
    if words.city is None or words.preset is not None:
        wanted = Experiment.load(source, list(words.overrides))
    else:
        wanted = Experiment.of(as_plain(mine), list(words.overrides))
    if words.city is not None:
        wanted = replace(wanted, city=mine.city)
    if (found := first_difference(as_plain(mine), as_plain(wanted))) is not None:
        key, then, now = found
        raise SettingsError(
            f"{out}: was begun with {key}={then!r}, it cannot go on with {now!r}"
        )
    return begun


def _refuse_other_data(begun: "Begun", words: _Words) -> None:
    """A city or tests named once more must be those that the run holds."""
    from epifalcon import store
    from epifalcon.studies.pipeline import CITY, city_folder

    if words.city is not None:
        held = store.read_manifest(begun.folder / CITY)["files"]
        if store.read_manifest(city_folder(words.city))["files"] != held:
            raise SettingsError(f"{begun.folder}: was begun with another --city")
    if words.known is not None:
        held = store.read_manifest(begun.folder / "known")["files"]
        if store.read_manifest(_known_folder(words.known))["files"] != held:
            raise SettingsError(f"{begun.folder}: was begun with another --known")


@contextlib.contextmanager
def _own_mistakes(method: str) -> Iterator[None]:
    """Tell what a user's own method raises in one line, by its name."""
    from epifalcon.baselines.catalogue import entry

    try:
        yield
    except Exception as error:
        if isinstance(error, EpifalconError) or entry(method).kind != "own":
            raise
        told = f"{type(error).__name__}: {error}"
        raise SettingsError(f"method {method!r}, your own, failed: {told}") from error


def _finish(
    begun: "Begun", progress: "Progress", checkpoint_seconds: float, log: bool
) -> "Kept":
    """Train what is not trained yet, judge, and write the report."""
    from epifalcon.studies.keeping import keep_results
    from epifalcon.studies.measurements import Failed
    from epifalcon.studies.outcomes import Listeners, run_guest, run_method

    experiment = begun.prepared.experiment
    listeners = Listeners(
        progress=progress, checkpoint_seconds=checkpoint_seconds, log=log
    )
    with _own_mistakes(experiment.method):
        outcomes, failed = [run_method(begun, experiment.method, listeners)], {}
    for method in experiment.beside:
        found = run_guest(begun, method, listeners)
        if isinstance(found, Failed):
            failed[method] = found.message
        else:
            outcomes.append(found)
    return keep_results(begun, outcomes, progress, failed)
