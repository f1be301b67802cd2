"""Where a command's city and settings come from: its words, turned into records."""

from pathlib import Path

from epifalcon.errors import SettingsError
from epifalcon.progress import Progress
from epifalcon.studies.experiment import DEFAULT_PRESET, Experiment
from epifalcon.studies.pipeline import (
    Prepared,
    prepare,
    prepare_read,
    settings_of_city,
)


def choose(
    preset: str | None,
    city: Path | None,
    overrides: list[str] | None,
    seed: int,
    progress: Progress,
) -> Prepared:
    """Read the settings and open or build the city; ``hamlet`` unless told.

    A city that exists brings the settings it was made with, unless a preset is
    named; settings of the city itself can then no longer be changed.
    """
    overrides = overrides or []
    if city is None:
        name = preset or DEFAULT_PRESET
        return prepare(name, Experiment.load(name, overrides), seed, progress)
    _refuse_city_settings(city, overrides)
    if preset is None:
        return prepare_read(str(city), settings_of_city(city, overrides), city)
    return prepare_read(preset, Experiment.load(preset, overrides), city)


def _refuse_city_settings(city: Path, overrides: list[str]) -> None:
    for assignment in overrides:
        if assignment.strip().startswith("city."):
            raise SettingsError(
                f"--set {assignment} would change the city, but --city {city} is made"
            )
