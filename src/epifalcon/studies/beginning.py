"""The folder of a comparison and the runs in it, made where they are missing.

Cells of a study often differ in what a method does and not in the city, its
outbreak or who was tested. What was simulated last is kept for them.
"""

import logging
import shutil
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, fingerprint
from epifalcon.studies.comparison_plan import KIND, RESULT, Plan, begun_with
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import (
    Epidemic,
    Prepared,
    prepare,
    run_epidemics,
)
from epifalcon.studies.run_folder import METHODS, SETTINGS, Begun, begin

_log = logging.getLogger(__name__)
_GROWS = ["seed-", "figures/", f"{RESULT}.", f".{RESULT}.", ".seed-"]
_CITY: Final = ("city",)
_OUTBREAK: Final = ("city", "pathogen", "outbreak", "labels")
"""All settings that decide an outbreak and who was tested in it."""
_CITIES, _EPIDEMICS = 2, 3
_MOST_VISITS = 20_000_000
"""Of a city that is kept: 80 MB."""


@dataclass
class Simulations:
    """The cities and outbreaks that were made last, by settings and seed.

    What is handed back is, to the last bit, what the settings and the seed make.
    """

    cities: "OrderedDict[str, tuple[Traces, float]]" = field(
        default_factory=OrderedDict
    )
    """Traces, and the seconds that they took."""
    epidemics: "OrderedDict[str, Epidemic]" = field(default_factory=OrderedDict)

    def begun(self, plan: Plan, seed: int, threads: int) -> Begun:
        """City, outbreak and labels of ``seed``, as ``epifalcon run`` makes them."""
        prepared = self._prepared(plan, seed)
        epidemic = self._epidemic(plan.experiment, prepared.traces, seed)
        if not len(epidemic.labels.hidden):
            raise DataError(
                "everybody is tested and nobody hidden: there is nobody to compare by"
            )
        reported, known = prepared.reported(seed), epidemic.labels.known
        folder = plan.run_folder(seed)
        return Begun(folder, prepared, seed, reported, known, epidemic, threads)

    def _prepared(self, plan: Plan, seed: int) -> Prepared:
        key = _key(plan.experiment, _CITY, seed)
        if key not in self.cities:
            made = prepare(plan.name, plan.experiment, seed)
            if made.traces.people * made.traces.slots <= _MOST_VISITS:
                _put(self.cities, key, (made.traces, made.seconds), _CITIES)
            return made
        traces, seconds = self.cities[key]
        origin = store.Origin.now(as_plain(plan.experiment), seed)
        return Prepared(plan.name, plan.experiment, traces, origin, None, seconds)

    def _epidemic(self, experiment: Experiment, traces: Traces, seed: int) -> Epidemic:
        key = _key(experiment, _OUTBREAK, seed)
        if key in self.epidemics:
            return self.epidemics[key]
        made = next(run_epidemics(experiment, traces, seed))
        if traces.people * traces.slots <= _MOST_VISITS:
            _put(self.epidemics, key, made, _EPIDEMICS)
        return made


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
        store.write_manifest(scratch, KIND, meta=meta, origin=origin)


def _key(experiment: Experiment, parts: tuple[str, ...], seed: int) -> str:
    settings = {part: as_plain(getattr(experiment, part)) for part in parts}
    return fingerprint({"settings": settings, "seed": seed})


def _put(kept: "OrderedDict[str, Any]", key: str, made: object, most: int) -> None:
    kept[key] = made
    while len(kept) > most:
        kept.popitem(last=False)
