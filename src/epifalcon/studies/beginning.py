"""Create the folder of a comparison and the runs in it.

Cells of a study often differ in what a method does, and not in the city, its outbreak
or who was tested. The latest simulations are kept for them.
"""

import logging
import shutil
from dataclasses import replace
from typing import Any, Final

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import COMPARISON, METHODS, SETTINGS, Begun, begin
from epifalcon.experiments.simulation import (
    Epidemic,
    Prepared,
    prepare,
    run_epidemics,
)
from epifalcon.settings import as_plain, fingerprint
from epifalcon.studies.study_plan import Plan, begun_with

_log = logging.getLogger(__name__)
_GROWS = [
    "seed-",
    ".seed-",
    "figures/",
    *(f"{dot}{name}." for dot in ("", ".") for name in ("table", "report", "command")),
]
_CITY: Final = ("city",)
_OUTBREAK: Final = ("city", "pathogen", "outbreak", "labels")
"""All settings that decide an outbreak and who was tested in it."""
_CITIES, _EPIDEMICS = 2, 3
_MOST_VISITS = 20_000_000
"""Of a city that is kept: 80 MB."""


class Simulations:
    """The latest cities and outbreaks, by settings and seed."""

    def __init__(self) -> None:
        self._cities: dict[str, Prepared] = {}
        self._epidemics: dict[str, Epidemic] = {}

    def begun(self, plan: Plan, seed: int, threads: int) -> Begun:
        """Return the inputs of the run of ``seed``, as ``epifalcon run`` makes them."""
        experiment = plan.experiment
        key = _key(experiment, _CITY, seed)
        city = self._cities.get(key) or prepare(plan.name, experiment, seed)
        origin = store.Origin.now(as_plain(experiment), seed)
        prepared = replace(
            city, name=plan.name, experiment=experiment, city_origin=origin
        )
        traces = prepared.traces
        outbreak = _key(experiment, _OUTBREAK, seed)
        epidemic = self._epidemics.get(outbreak)
        if epidemic is None:
            epidemic = next(run_epidemics(experiment, traces, seed))
        if traces.people * traces.slots <= _MOST_VISITS:
            _put(self._cities, key, city, _CITIES)
            _put(self._epidemics, outbreak, epidemic, _EPIDEMICS)
        if not len(epidemic.labels.hidden):
            raise DataError(
                "everybody is tested and nobody hidden: there is nobody to compare by"
            )
        reported, known = prepared.reported(seed), epidemic.labels.known
        folder = plan.run_folder(seed)
        return Begun(folder, prepared, seed, reported, known, epidemic, threads)


def begin_folder(plan: Plan, threads: int, simulated: Simulations) -> int:
    """Make the comparison's folder with its first run; threads of its processes.

    The number of threads decides last bits, so it stays as it was begun. The first
    run is made before the folder: what is impossible leaves nothing. Of a folder
    that is there already, every byte of every run is checked, and a damaged one is
    made again: settings and seed say what was in it.
    """
    begun = begun_with(plan.folder)
    if begun is None:
        made = simulated.begun(plan, plan.seeds[0], threads)
        _begin_empty(plan, threads)
        begin(made)
        return threads
    for seed in plan.seeds:
        if not is_begun(plan, seed):
            continue
        try:
            store.verify(plan.run_folder(seed))
        except CorruptFileError as error:
            _log.warning("%s; made again", error)
            _remake(simulated.begun(plan, seed, int(begun["meta"]["threads"])))
    return int(begun["meta"]["threads"])


def _remake(made: Begun) -> None:
    """Put a run's inputs in place of damaged ones; what methods left there stays."""
    folder, methods = made.folder, made.folder / METHODS
    aside = folder.with_name(f".{folder.name}.{METHODS}")
    with store.writing(folder, aside):
        if methods.is_dir():
            methods.rename(aside)
        shutil.rmtree(folder)
    begin(made)
    with store.writing(folder, aside):
        if aside.is_dir():
            aside.rename(methods)


def is_begun(plan: Plan, seed: int) -> bool:
    """Whether the run of ``seed`` stands in the comparison's folder."""
    return (plan.run_folder(seed) / store.MANIFEST).is_file()


def begin_run(plan: Plan, seed: int, threads: int, simulated: Simulations) -> None:
    """Make the run of ``seed``, where it is not there yet."""
    if not is_begun(plan, seed):
        begin(simulated.begun(plan, seed, threads))


def _begin_empty(plan: Plan, threads: int) -> None:
    origin = store.Origin.now(as_plain(plan.experiment), None)
    meta = {
        "name": plan.name,
        "overrides": list(plan.overrides),
        "threads": threads,
        "grows": _GROWS,
    }
    with store.new_directory(plan.folder) as scratch:
        text = plan.experiment.to_toml()
        (scratch / SETTINGS).write_text(text, encoding="utf-8")
        store.write_manifest(scratch, COMPARISON, meta=meta, origin=origin)


def _key(experiment: Experiment, parts: tuple[str, ...], seed: int) -> str:
    settings = {part: as_plain(getattr(experiment, part)) for part in parts}
    return fingerprint({"settings": settings, "seed": seed})


def _put(stored: dict[str, Any], key: str, made: object, most: int) -> None:
    stored.setdefault(key, made)
    while len(stored) > most:
        del stored[next(iter(stored))]
