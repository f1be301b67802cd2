"""The stages in order: city, outbreak, labels; and the folders they are kept in.

Random streams are named, so the city of a seed is the same whatever is done
with it afterwards. Outbreak k of several on one city draws from seed + k.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from epifalcon import store
from epifalcon.epidemic.labels import Labels, draw_labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.reproduction_number import resolve_kappa
from epifalcon.epidemic.seir import replay
from epifalcon.epidemic.sellke import SellkeDraws, Variation
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.mobility.subsample import report
from epifalcon.mobility.synthetic import build_city
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, fingerprint
from epifalcon.streams import Streams
from epifalcon.types import Plain

CITY = "city"
REPORTED = "reported"


@dataclass(frozen=True)
class CityInputs:
    """The settings and the city that a run starts from."""

    name: str
    """The preset, or the folder of a city that was there before."""
    experiment: Experiment
    traces: Traces
    city_origin: store.Origin
    """What made the city: this experiment, or an import, or an earlier run."""
    city_folder: Path | None
    """Where the city was read, if it was not made anew."""
    seconds: float

    def reported(self, seed: int, progress: Progress = silent) -> Traces:
        """Return the traces as methods see them: ``reporting`` of the true ones."""
        rng = Streams(seed).numpy("reporting")
        return report(self.traces, self.experiment.reporting, rng, progress)

    def origin(self, seed: int) -> store.Origin:
        """Return the origin of a folder made from here, with that of a city read."""
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
    """One outbreak, the labels drawn from it, its seed and how long it took."""

    seed: int
    outbreak: Outbreak
    labels: Labels
    seconds: float

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write outbreak, known and hidden labels, each into a folder of its own.

        ``known`` gets no seed and only a hash of the other settings: with them, a
        reader of that folder alone could make the hidden labels again.
        """
        own = store.Origin(origin.settings, self.seed, origin.versions)
        public = {
            "labels": origin.settings["labels"],
            "settings_sha256": fingerprint(origin.settings),
        }
        without_seed = store.Origin(public, None, origin.versions)
        self.outbreak.save(folder / "outbreak", own)
        self.labels.known.save(folder / "known", without_seed)
        self.labels.hidden.save(folder / "hidden", own)


def make_city(experiment: Experiment, seed: int, progress: Progress = silent) -> Traces:
    """The synthetic city of the experiment; equal seeds give equal cities."""
    return build_city(experiment.city, Streams(seed).numpy("city"), progress)


def prepare(
    name: str,
    experiment: Experiment,
    seed: int,
    progress: Progress = silent,
    folder: Path | None = None,
) -> CityInputs:
    """Make the city of the experiment, or read the one in ``folder``."""
    start = perf_counter()
    if folder is None:
        traces = make_city(experiment, seed, progress)
        origin = store.Origin.now(as_plain(experiment), seed)
    else:
        traces = Traces.load(city_folder(folder))
        made = store.read_manifest(city_folder(folder))
        origin = store.Origin(made["settings"], made["seed"], made["versions"])
    return CityInputs(name, experiment, traces, origin, folder, perf_counter() - start)


def choose_settings(
    preset: str | None,
    city: Path | None,
    overrides: Sequence[str] = (),
    options: Plain | None = None,
) -> Experiment:
    """Return the settings of a preset, with ``options`` and then ``overrides`` put in.

    Without a preset an existing city brings its own settings, imported data the paper's
    rule, a new city ``hamlet``. Settings of an existing city cannot be changed.
    """
    for assignment in overrides if city is not None else ():
        if assignment.strip().startswith("city."):
            raise SettingsError(
                f"--set {assignment} would change the city, but --city {city} is made"
            )
    if preset is not None or city is None:
        return Experiment.load(preset or DEFAULT_PRESET, overrides, options)
    settings = store.read_manifest(city_folder(city))["settings"]
    if "outbreak" not in settings:
        # The share of people with whom the paper starts: 300 of 15,279.
        settings = {"outbreak": {"rule": "paper", "seed_share": 0.02}}
    return Experiment.of(settings, overrides, options)


def choose(
    preset: str | None,
    city: Path | None,
    overrides: Sequence[str] | None,
    seed: int,
    progress: Progress,
) -> CityInputs:
    """Choose settings and read or make the city, as a command's options say."""
    experiment = choose_settings(preset, city, overrides or ())
    name = preset or (DEFAULT_PRESET if city is None else str(city))
    return prepare(name, experiment, seed, progress, city)


def city_folder(folder: Path) -> Path:
    """``folder`` itself, or the folder ``city`` inside it where there is one."""
    inner = folder / CITY
    return inner if inner.is_dir() else folder


def run_epidemics(
    experiment: Experiment, traces: Traces, seed: int, runs: int = 1
) -> Iterator[Epidemic]:
    """Outbreak after outbreak on one city, from ``seed``, ``seed`` + 1, ..."""
    pathogen, settings = experiment.pathogen, experiment.outbreak
    kappa = resolve_kappa(traces, pathogen, settings)
    for number in range(seed, seed + runs):
        streams = Streams(number)
        rng = streams.numpy("outbreak")
        start = perf_counter()
        draws = SellkeDraws.sample(traces.people, pathogen, settings, traces.clock, rng)
        variation = Variation.sample(traces, settings, streams)
        outbreak = replay(traces, pathogen, settings, draws, kappa, variation)
        seconds = perf_counter() - start
        labels = draw_labels(outbreak, experiment.labels, streams.numpy("labels"))
        if traces.who is not None:
            labels = replace(labels, known=replace(labels.known, who=traces.who))
        yield Epidemic(number, outbreak, labels, seconds)
