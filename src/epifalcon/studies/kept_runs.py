"""What kept results tell of single runs: of a finished study, or of a comparison.

A study's ``table.json`` has every seed's figures and its manifest the settings of
every cell; a comparison has every seed's metrics, and means of the rest. Either
way settings are read through ``Experiment``, so what was kept before a setting
came to be has that setting's default.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.metrics import Metrics
from epifalcon.studies.comparison import METRICS
from epifalcon.studies.comparison_plan import KIND as COMPARISON
from epifalcon.studies.comparison_plan import RESULT
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.follow_ups import Followed
from epifalcon.studies.measurements import (
    BINS,
    CALIBRATED,
    RECALLS,
    SCALINGS,
    TRAINING,
    Adopted,
    Measured,
    Training,
)
from epifalcon.studies.run_folder import SETTINGS
from epifalcon.studies.study import KIND, TABLE, FollowUp, keyed
from epifalcon.types import Plain

ADOPTED: Final = "adopted"
"""Of a seed's figures: where they are from, if they were not measured there."""
AFTER_CPU: Final = "follow_up_cpu_seconds"
UNITS: Final = ("visit", "day", "person")
SPENT: Final = ("rounds", *(f"epsilon_{unit}" for unit in UNITS))
_COST = ("seconds", "cpu_seconds", "peak_rss_mb", "prevalence", "hidden_people")
_NOT_AFTER = {"seed", ADOPTED, AFTER_CPU, *METRICS, *SPENT, *_COST, *TRAINING}
_NO_SCALINGS = "adopted from results that keep no recalibrated risks"


@dataclass(frozen=True, eq=False)
class KeptRow:
    """One method under one set of settings, as a kept table has it."""

    study: str | None
    """None where a comparison kept it."""
    cell: str
    method: str
    runs: Mapping[int, Measured]
    """By seed. A comparison tells no seed's ``prevalence``: NaN."""
    prevalence: float | None
    """The mean over all ``runs``, where seeds do not tell theirs."""
    then: FollowUp | None
    after: Mapping[int, Followed]
    """What followed the runs, by seed."""


@dataclass(frozen=True)
class KeptFolder:
    """What kept results hold."""

    folder: Path
    version: str
    """Of the epifalcon that measured."""
    experiments: Mapping[str, Experiment | str]
    """By cell; words, why this version cannot read them, in place of settings."""
    rows: Sequence[KeptRow]


def read_kept(folder: Path) -> KeptFolder:
    """The runs kept in ``folder``, checked against its manifest where it has one.

    A comparison whose runs were cleared away has none; there each mean must be
    that of its seeds. ``CorruptFileError`` for what has changed since it was kept,
    ``DataError`` for a folder that holds something else.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder, nothing can be adopted from it")
    if (folder / store.MANIFEST).is_file():
        manifest = store.verify(folder)
        if manifest["kind"] == KIND:
            return _read(_of_study, folder, manifest)
        if manifest["kind"] != COMPARISON:
            raise DataError(
                f"{folder}: holds {manifest['kind']!r}; only a finished study or a "
                "comparison can be adopted"
            )
    if not all((folder / name).is_file() for name in (f"{RESULT}.json", SETTINGS)):
        raise DataError(
            f"{folder}: nothing can be adopted from it; a finished study has "
            f"{TABLE}.json and {store.MANIFEST}, a comparison {RESULT}.json and "
            f"{SETTINGS}"
        )
    return _read(_of_comparison, folder, {})


def _read(of: Any, folder: Path, manifest: Plain) -> KeptFolder:  # noqa: ANN401
    try:
        found: KeptFolder = of(folder, manifest)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        if isinstance(error, DataError | SettingsError):
            raise
        raise CorruptFileError(
            f"{folder}: its tables cannot be read: {type(error).__name__}: {error}"
        ) from None
    return found


def _of_study(folder: Path, manifest: Plain) -> KeptFolder:
    result = json.loads((folder / f"{TABLE}.json").read_text(encoding="utf-8"))
    curves = _study_curves(result)
    rows = []
    for row in result["rows"]:
        seeds = tuple(row["seeds"])
        curve = curves.get((row["cell"], row["method"]))
        runs = {}
        for one in row["by_seed"]:
            told = one.get(ADOPTED) or {
                "folder": str(folder),
                "made_by": result["made_by"],
            }
            spent = {key: one[key] for key in SPENT if key in one}
            runs[one["seed"]] = _measured(
                row.get("method_title", row["title"]),
                one,
                Adopted(**told, seeds=seeds, spent=spent),
                {"precision": curve},
            )
        after = dict(_followed(row["by_seed"]))
        rows.append(
            KeptRow(
                result["study"],
                row["cell"],
                row["method"],
                runs,
                None,
                row.get("then"),
                after,
            )
        )
    experiments = {
        label: _experiment(values) for label, values in manifest["settings"].items()
    }
    version = manifest["versions"]["epifalcon"]
    return KeptFolder(folder, version, experiments, rows)


def _of_comparison(folder: Path, _manifest: Plain) -> KeptFolder:
    result = json.loads((folder / f"{RESULT}.json").read_text(encoding="utf-8"))
    label = result["preset"]
    rows = []
    for row in result["rows"]:
        _require_means(folder, row)
        told = Adopted(str(folder), result["made_by"], tuple(row["seeds"]), {})
        cost = {key: row[key] for key in ("seconds", "cpu_seconds", "peak_rss_mb")}
        shared = {
            **cost,
            "prevalence": math.nan,
            "hidden_people": result["hidden_people"],
        }
        drawn = result["curves"]["methods"].get(row["method"], {})
        runs = {
            one["seed"]: _measured(row["title"], {**one, **shared}, told, drawn)
            for one in row["by_seed"]
        }
        whole = row["seeds"] == result["seeds"]
        mean = result["prevalence"] if whole else None
        rows.append(KeptRow(None, label, row["method"], runs, mean, None, {}))
    experiment = Experiment.load(str(folder / SETTINGS))
    version = result["versions"]["epifalcon"]
    return KeptFolder(folder, version, {label: experiment}, rows)


def _measured(title: str, one: Plain, adopted: Adopted, drawn: Plain) -> Measured:
    """A run as its kept figures tell it.

    Metrics that tables do not keep are None. The curve of precision is the mean of
    all seeds in ``adopted``, the sums of reliability a share of theirs, and of a
    comparison also the seconds are means and the memory the most of any seed.
    """
    known: dict[str, Any] = {field.name: None for field in fields(Metrics)}
    known |= {name: one[name] for name in METRICS}
    known |= {"prevalence": one["prevalence"], "people": int(one["hidden_people"])}
    curve = drawn.get("precision") if one["dep"] is not None else None
    sums = drawn.get("reliability")
    shape = (len(SCALINGS), 3, BINS)
    raw = {name: one[name] for name in CALIBRATED}
    return Measured(
        title=title,
        metrics=known,
        seconds=one["seconds"],
        cpu_seconds=one["cpu_seconds"],
        peak_rss_mb=one["peak_rss_mb"],
        recalibrated=dict.fromkeys(SCALINGS, raw),
        masked=0,
        left_raw=_NO_SCALINGS,
        source_sha256=None,
        precision=np.array(curve or np.full(len(RECALLS), np.nan), dtype=float),
        reliability=np.zeros(shape)
        if sums is None
        else np.array(sums, dtype=float).reshape(shape) / len(adopted.seeds),
        training=Training.of(one),
        adopted=adopted,
    )


def _followed(by_seed: Sequence[Plain]) -> Iterator[tuple[int, Followed]]:
    """What followed each seed's run; of a table without its cost, at none."""
    for one in by_seed:
        values = {key: one[key] for key in one if key not in _NOT_AFTER}
        if values:
            yield one["seed"], Followed(values, one.get(AFTER_CPU, 0.0))


def _study_curves(result: Plain) -> dict[tuple[str, str], list[float]]:
    """The mean curve of each row that has one, by cell and method."""
    found = {}
    for group, drawn in result.get("curves", {}).items():
        rows = keyed([row for row in result["rows"] if row["group"] == group])
        for key, row in rows.items():
            if key in drawn["methods"]:
                curve = drawn["methods"][key]["precision"]
                found[row["cell"], row["method"]] = curve
    return found


def _experiment(values: Plain) -> Experiment | str:
    try:
        return Experiment.of(values)
    except SettingsError as error:
        return str(error)


def _require_means(folder: Path, row: Plain) -> None:
    """Refuse a row whose means are not those of its seeds."""
    for name in METRICS:
        told = row["metrics"][name]["mean"]
        values = [one[name] for one in row["by_seed"] if one[name] is not None]
        if told is None or not values:
            continue
        if not math.isclose(told, sum(values) / len(values), rel_tol=1e-9):
            raise CorruptFileError(
                f"{folder / RESULT}.json: {row['method']}: the mean {name} is not "
                "that of its seeds; the file was changed"
            )
