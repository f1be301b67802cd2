"""Simulate city, outbreak and labels, and store each in its own folder.

Random streams are named, so the city of a seed does not depend on later stages.
Outbreak k of several in one city uses seed + k.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from epifalcon import store
from epifalcon.epidemic.labels import Labels, draw_labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import PATHOGEN_CHOICES
from epifalcon.epidemic.seir import simulate
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments.experiment import (
    DEFAULT_METHOD,
    DEFAULT_PRESET,
    OWN_DATA_METHOD,
    Experiment,
    names_pathogen,
)
from epifalcon.mobility.subsample import report
from epifalcon.mobility.synthetic import build_city
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, fingerprint
from epifalcon.streams import PRIVATE, Streams
from epifalcon.types import Plain

CITY, REPORTED = "city", "reported"
OUTBREAK, KNOWN, HIDDEN = "outbreak", "known", "hidden"
"""Folders of a run."""
SIMULATED = (
    "SIMULATED: the outbreak and all test results are simulated on the traces of real "
    "people. No risk here says anything about a real person."
)


@dataclass(frozen=True)
class CityInputs:
    """The settings and the city that a run starts from."""

    name: str
    """The preset, or the folder of an existing city."""
    experiment: Experiment
    traces: Traces
    city_origin: store.Origin
    """Origin of the city: this experiment, an import or an earlier run."""
    city_folder: Path | None
    """Folder of an existing city; None if it was simulated."""
    seconds: float

    @property
    def is_imported(self) -> bool:
        """True if the traces are of real people."""
        return _is_imported(self.city_origin.settings)

    def reported(self, seed: int, progress: Progress = silent) -> Traces:
        """Return the traces as methods see them, reduced by ``reporting``."""
        rng = Streams(seed).numpy("reporting")
        return report(self.traces, self.experiment.reporting, rng, progress)

    def origin(self, seed: int) -> store.Origin:
        """Return the origin of a folder, including that of an existing city."""
        settings = as_plain(self.experiment)
        if self.city_folder is not None:
            settings["city"] = {
                "read_from": str(self.city_folder),
                "settings": self.city_origin.settings,
                "seed": self.city_origin.seed,
            }
        return store.Origin.now(settings, seed)


@dataclass(frozen=True)
class Epidemic:
    """One outbreak, its labels, its seed and the duration of the simulation."""

    seed: int
    outbreak: Outbreak
    labels: Labels
    seconds: float

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write outbreak, known and hidden labels, each into its own folder.

        ``known`` gets no seed and only a hash of the other settings: with them, the
        hidden labels could be reproduced from that folder.
        """
        own = store.Origin(origin.settings, self.seed, origin.versions)
        public = {
            "labels": origin.settings["labels"],
            "settings_sha256": fingerprint(origin.settings),
        }
        without_seed = store.Origin(public, None, origin.versions)
        self.outbreak.save(folder / OUTBREAK, own)
        self.labels.known.save(folder / KNOWN, without_seed)
        self.labels.hidden.save(folder / HIDDEN, own)


def make_city(experiment: Experiment, seed: int, progress: Progress = silent) -> Traces:
    """Simulate the city of the experiment; equal seeds give equal cities."""
    return build_city(experiment.city, Streams(seed).numpy("city"), progress)


def prepare(
    name: str,
    experiment: Experiment,
    seed: int,
    progress: Progress = silent,
    folder: Path | None = None,
) -> CityInputs:
    """Simulate the city of the experiment, or load the city in ``folder``."""
    start = perf_counter()
    if folder is None:
        traces = make_city(experiment, seed, progress)
        origin = store.Origin.now(as_plain(experiment), seed)
    else:
        place = find_folder(folder, CITY)
        traces, stored = Traces.load(place), store.read_manifest(place)
        origin = store.Origin(stored["settings"], stored["seed"], stored["versions"])
    return CityInputs(name, experiment, traces, origin, folder, perf_counter() - start)


def choose_settings(
    preset: str | None,
    city: Path | None,
    overrides: Sequence[str] = (),
    options: Plain | None = None,
    *,
    tests: Path | None = None,
    mode: str | None = None,
) -> Experiment:
    """Return the settings of a preset, then apply ``options``, ``mode``, ``overrides``.

    Without a preset, a simulated city has its own settings, imported traces the paper's
    transmission rule, and a new city those of ``hamlet``. Settings of an existing city
    cannot be changed. With tests of imported people, something must name the pathogen.
    If nothing names a method, own data (imported traces, or ``tests`` of real people)
    is analysed with Falcon Field, a simulation with Falcon.
    """
    for assignment in overrides if city is not None else ():
        if assignment.strip().startswith("city."):
            raise SettingsError(
                f"--set {assignment} would change the city, but --city {city} already "
                "exists"
            )
    stored: Plain = {}
    if city is not None:
        stored = store.read_manifest(find_folder(city, CITY))["settings"]
    is_imported = city is not None and _is_imported(stored)
    is_own_data = is_imported or tests is not None
    method = OWN_DATA_METHOD if is_own_data else DEFAULT_METHOD
    source: str | Plain = stored
    if preset is not None or city is None:
        source = preset or DEFAULT_PRESET
    elif is_imported:
        # The initially infected share in the paper: 300 of 15,279.
        source = {"outbreak": {"rule": "paper", "seed_share": 0.02}}
    elif is_own_data:
        # The method that simulated the city was not chosen for these tests.
        source = {key: value for key, value in stored.items() if key != "method"}
    options = dict(options or {})
    if tests is not None and not _is_simulated(find_folder(tests, KNOWN)):
        because = {"tested_because": "unknown"}
        options["labels"] = {**because, **options.get("labels", {})}
    is_real = is_imported and tests is not None
    if is_real and not names_pathogen(source, overrides, options):
        raise SettingsError(
            f"{city}: the pathogen of these people is missing; add --pathogen with "
            f"{PATHOGEN_CHOICES}"
        )
    return Experiment.load(source, overrides, options, default_method=method, mode=mode)


def choose_tests(city: Path | None, tests: Path | None, simulate: bool) -> Path | None:
    """Return the folder of the test results of a run; None to simulate an outbreak.

    Tests imported together with ``city`` are used. On imported people an outbreak is
    simulated only if ``simulate``.
    """
    if tests is None:
        if simulate or city is None or not has_real_people(city):
            return None
        place = find_folder(city, KNOWN)
        if place == city or _is_simulated(place):
            raise SettingsError(
                f"{city}: holds real people, but no test results of them: import them "
                "with epifalcon import --tests FILE, or add --simulate to simulate an "
                "outbreak on their traces"
            )
        return city
    if simulate:
        raise SettingsError(
            "--known reads test results and --simulate draws them: choose one"
        )
    if city is None:
        raise SettingsError("--known needs --city, the folder of the tested people")
    place = find_folder(tests, KNOWN)
    if (tests / CITY).is_dir() and place == tests:
        raise DataError(f"{tests}: holds no test results; import with --tests")
    if _is_simulated(place) and has_real_people(city):
        raise SettingsError(
            f"{tests}: these test results are simulated, but the people of {city} are "
            "real: give --simulate instead of --known"
        )
    return tests


def has_real_people(folder: Path) -> bool:
    """Return True if the city in ``folder`` was imported."""
    return _is_imported(store.read_manifest(find_folder(folder, CITY))["settings"])


def simulated_on_real_people(run: Path) -> bool:
    """Return True if the run with its data in ``run`` simulates real people."""
    return (run / HIDDEN).is_dir() and has_real_people(run)


def _is_imported(settings: Plain) -> bool:
    """Return True if a city with these settings is not simulated."""
    return "outbreak" not in settings


def _is_simulated(known: Path) -> bool:
    """Return True if ``Epidemic.save`` wrote these test results."""
    return "settings_sha256" in store.read_manifest(known)["settings"]


def choose(
    preset: str | None,
    city: Path | None,
    overrides: Sequence[str] | None,
    seed: int,
    progress: Progress,
) -> CityInputs:
    """Return the settings and the city that the options of a command select."""
    experiment = choose_settings(preset, city, overrides or ())
    name = preset or (DEFAULT_PRESET if city is None else str(city))
    return prepare(name, experiment, seed, progress, city)


def find_folder(folder: Path, *names: str) -> Path:
    """Return the first of the folders ``names`` inside ``folder``, else ``folder``.

    The data of a private run are in its folder ``private``.
    """
    places = (folder, folder / PRIVATE)
    inner = (place / name for place in places for name in names)
    return next((place for place in inner if place.is_dir()), folder)


def guarded_as(*folders: Path | None) -> contextlib.AbstractContextManager[None]:
    """Make outputs as private as the files, or cities and tests in the folders."""
    given = [folder for folder in folders if folder is not None]
    inner = (find_folder(folder, name) for folder in given for name in (CITY, KNOWN))
    return store.as_private_as(*given, *inner)


def run_epidemics(
    experiment: Experiment, traces: Traces, seed: int, runs: int = 1
) -> Iterator[Epidemic]:
    """Simulate outbreaks in one city with the seeds ``seed``, ``seed`` + 1, ..."""
    pathogen, settings = experiment.pathogen, experiment.outbreak
    for number in range(seed, seed + runs):
        start = perf_counter()
        outbreak = simulate(traces, pathogen, settings, seed=number)
        seconds = perf_counter() - start
        rng = Streams(number).numpy("labels")
        labels = draw_labels(outbreak, experiment.labels, rng)
        if traces.names_sha256 is not None:
            labels = replace(
                labels, known=replace(labels.known, names_sha256=traces.names_sha256)
            )
        yield Epidemic(number, outbreak, labels, seconds)
