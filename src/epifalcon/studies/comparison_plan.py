"""What a comparison is asked for, and what its folder was begun with."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.baselines.catalogue import entry, names
from epifalcon.checks import whole
from epifalcon.errors import SettingsError, WriteError
from epifalcon.settings import as_plain, first_difference
from epifalcon.studies.experiment import DEFAULT_PRESET, Experiment
from epifalcon.studies.run_folder import METHODS, SETTINGS
from epifalcon.types import Plain

KIND = "comparison"
ALL = "all"
RESULT = "comparison"
"""Of the files that tell the result: ``comparison.json`` and others."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a comparison is asked for."""

    preset: str | None = None
    """None goes on with the settings of the folder; ``hamlet`` in a new one."""
    overrides: tuple[str, ...] = ()
    methods: str = ALL
    seeds: int = 5
    first_seed: int = 0
    sources: tuple[Path, ...] = ()
    """The user's files that have registered methods (``catalogue.load_file``)."""

    def __post_init__(self) -> None:
        whole(1, seeds=self.seeds)
        whole(0, first_seed=self.first_seed)


@dataclass(frozen=True)
class Plan:
    """Which methods on which seeds, in which folder."""

    folder: Path
    name: str
    """Of the preset."""
    experiment: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    sources: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    label: str = ""
    """What progress calls it, where several comparisons are made together."""

    def run_folder(self, seed: int) -> Path:
        """Where the run of ``seed`` stands."""
        return self.folder / f"seed-{seed}"

    def place(self, seed: int, method: str) -> Path:
        """Where ``method`` keeps its things for ``seed``."""
        return self.run_folder(seed) / METHODS / method

    @property
    def command(self) -> str:
        """The words that make this comparison, or go on with it."""
        words = ["epifalcon", "compare", "--preset", self.name]
        chosen = ALL if list(self.methods) == names() else ",".join(self.methods)
        words += ["--methods", chosen, "--seeds", str(len(self.seeds))]
        if self.seeds[0]:
            words += ["--first-seed", str(self.seeds[0])]
        for option, given in (("--set", self.overrides), ("--with", self.sources)):
            words += [word for one in given for word in (option, str(one))]
        return shlex.join([*words, "--out", str(self.folder)])


def plan_comparison(folder: Path, wanted: Wanted) -> Plan:
    """What ``wanted`` means in ``folder``; nothing is written yet.

    Settings other than those that the folder was begun with are refused, as is
    a folder that holds something else.
    """
    methods = _chosen(wanted.methods)
    begun = begun_with(folder)
    name, overrides = wanted.preset or DEFAULT_PRESET, wanted.overrides
    kept = str(folder / SETTINGS)
    read_from = kept if begun is not None and wanted.preset is None else name
    experiment = Experiment.load(read_from, list(overrides))
    if begun is not None:
        _require_same(folder, begun["settings"], experiment)
        name, overrides = begun["meta"]["name"], tuple(begun["meta"]["overrides"])
    seeds = tuple(range(wanted.first_seed, wanted.first_seed + wanted.seeds))
    return Plan(folder, name, experiment, methods, seeds, wanted.sources, overrides)


def _chosen(text: str) -> tuple[str, ...]:
    """Method names between commas, each once; ``all`` for every one there is."""
    known: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if word:
            known += names() if word == ALL else [entry(word).name]
    if not known:
        raise SettingsError("--methods names no method: all, or names between commas")
    return tuple(dict.fromkeys(known))


def _require_same(folder: Path, then: Plain, experiment: Experiment) -> None:
    if (found := first_difference(then, as_plain(experiment))) is not None:
        key, before, now = found
        raise SettingsError(
            f"{folder}: was begun with {key}={before!r}, it cannot go on with {now!r}"
        )


def begun_with(folder: Path) -> dict[str, Any] | None:
    """The manifest of the comparison in ``folder``, None where none was begun."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / store.MANIFEST).is_file():
        store.refuse_occupied(folder, overwrite=False)
    manifest = store.verify(folder)
    if manifest["kind"] != KIND:
        raise WriteError(
            f"{folder}: holds {manifest['kind']!r}, not a comparison; choose another "
            "folder"
        )
    return manifest
