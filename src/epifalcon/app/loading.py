"""Where a command's city and settings come from: its words, turned into records."""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress
from epifalcon.studies.experiment import DEFAULT_PRESET, Experiment
from epifalcon.studies.pipeline import make_city, open_city, settings_of_city


@dataclass(frozen=True)
class Chosen:
    """The settings and the city that a command was asked to work on."""

    preset: str
    experiment: Experiment
    traces: Traces
    city_seconds: float


def choose(
    preset: str | None,
    city: Path | None,
    overrides: list[str] | None,
    seed: int,
    progress: Progress,
) -> Chosen:
    """Read the settings and open or build the city; ``hamlet`` unless told.

    A city that exists brings the settings it was made with, unless a preset is
    named; settings of the city itself can then no longer be changed.
    """
    overrides = overrides or []
    start = perf_counter()
    if city is None:
        name = preset or DEFAULT_PRESET
        experiment = Experiment.load(name, overrides)
        traces = make_city(experiment, seed, progress)
    else:
        _refuse_city_settings(city, overrides)
        name = preset or str(city)
        traces = open_city(city)
        if preset is None:
            experiment = settings_of_city(city, overrides)
        else:
            experiment = Experiment.load(preset, overrides)
    return Chosen(name, experiment, traces, perf_counter() - start)


def _refuse_city_settings(city: Path, overrides: list[str]) -> None:
    for assignment in overrides:
        if assignment.strip().startswith("city."):
            raise SettingsError(
                f"--set {assignment} would change the city, but --city {city} is made"
            )
