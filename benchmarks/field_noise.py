"""The cost of noise for Falcon Field by city size: AUC with and without noise.

Each city runs in a separate process: outbreak from 2 % of its people, tests of 40 %,
then Falcon Field with and without noise on the same tests. ``ours`` and ``peer`` are
the AUC on hidden people of the largest city with one noised sum per region, at an
epsilon of 8 per person, and of the same exchange without noise. For comparison,
Falcon runs in mode ``paper`` with the noise for the same epsilon.
``python -m benchmarks.field_noise FOLDER`` writes all results as a table and a plot.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from benchmarks.measuring import THREADS, peak_mb, run_in_subprocess
from benchmarks.million import DAYS, PEOPLE
from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.epidemic.labels import Labels, LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.federation.field.inference_schedule import run_in_process
from epifalcon.federation.field.privacy_plan import FieldPlan
from epifalcon.federation.field.settings import (
    FalconFieldSettings,
    FieldPrivacySettings,
    FieldTask,
)
from epifalcon.federation.settings import PredictionSettings, PrivacySettings
from epifalcon.federation.training import TrainingTask, fit
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.mobility.traces import Traces
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import mu_for
from epifalcon.privacy.events import UNITS
from epifalcon.privacy.ledger import Ledger
from epifalcon.streams import Streams

SIZES = {15_738: 3_127, 100_000: 6_000, PEOPLE: 20_000}
"""Areas by people."""
SEED = 210
_EPSILONS = (8.0, 3.0, 1.0, 30.0)
_LARGE = 200_000
_RULE = OutbreakSettings(seed_share=0.02)
_PRIVATE: tuple[Literal["sums"], Literal["local"]] = ("sums", "local")
SWEEPS = (1, 2, 3, 5)
ROUNDS = 30
"""Rounds of Falcon: fewer rounds need less noise per round."""
_UPLOAD_SHARE = 0.6
_MARKS = "os^Dv<>"
"""Marks, so that lines differ by more than colour."""
_MODES = {"off": "without noise", "sums": "sums", "local": "local"}


def run(people: int = PEOPLE) -> dict[str, Any]:
    """AUC with noise and without, at each size up to ``people``."""
    sizes = {size: areas for size, areas in SIZES.items() if size < people}
    rows = rows_of({**sizes, people: SIZES.get(people, 20_000)})
    last = [row for row in rows if row["people"] == people]
    clear = next(row for row in last if row["mode"] == "off" and row["sweeps"] == 1)
    noised = next(row for row in last if _is_reference(row))
    return {
        "name": "field-noise",
        "ours": noised["auc"],
        "peer": clear["auc"],
        "ratio": noised["auc"] / clear["auc"],
        "unit": "AUC",
        "seconds": noised["seconds"],
        "peak_mb": noised["peak_mb"],
        "rows": rows,
    }


def rows_of(sizes: dict[int, int]) -> list[dict[str, Any]]:
    """Return the rows of all runs in all cities."""
    found: list[dict[str, Any]] = []
    for people, areas in sizes.items():
        found += run_in_subprocess("field_noise", str(people), str(areas))
    return found


def privacy_settings(people: int) -> Iterator[tuple[FieldPrivacySettings, int]]:
    """Yield privacy settings and exchanges; fewer combinations in a large city."""
    yield FieldPrivacySettings(), 1
    for epsilon in _EPSILONS:
        yield FieldPrivacySettings(mode="sums", epsilon=epsilon), 1
    for mode, unit in product(_PRIVATE, UNITS):
        few = people > _LARGE and mode == "local"
        for sweeps in (1,) if few else SWEEPS:
            promised = (mode, unit, sweeps) == ("sums", "person", 1)
            if not promised:
                yield FieldPrivacySettings(mode=mode, unit=unit, sweeps=sweeps), sweeps
    for cells in ("day", "slot"):
        yield FieldPrivacySettings(mode="sums", cells=cells), 1
    yield FieldPrivacySettings(), 5


def measure(people: int, areas: int) -> list[dict[str, Any]]:
    """All runs in one city; compiled code is loaded beforehand."""
    torch.set_num_threads(THREADS)
    small = _World.of(500, 50)
    for mode in ("off", "sums", "local"):
        small.run(FieldPrivacySettings(mode=mode), 1)  # type: ignore[arg-type]
    world = _World.of(people, areas)
    rows = []
    for privacy, sweeps in privacy_settings(people):
        rows.append({"people": people, "areas": areas, **world.run(privacy, sweeps)})
        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    rows.append({"people": people, "areas": areas, **world.falcon()})
    return rows


@dataclass(frozen=True, eq=False)
class _World:
    """A city, an outbreak and its tests."""

    traces: Traces
    labels: Labels

    @classmethod
    def of(cls, people: int, areas: int) -> "_World":
        streams = Streams(SEED)
        settings = CitySettings(people=people, regions=areas, days=DAYS)
        traces = build_city(settings, streams.numpy("city"))
        truth = simulate(traces, SARS_COV_2, _RULE, streams.numpy("outbreak"))
        labels = draw_labels(truth, LabelSettings(), streams.numpy("labels"))
        return cls(traces, labels)

    def run(self, privacy: FieldPrivacySettings, sweeps: int) -> dict[str, Any]:
        """Return settings, spent epsilon and AUC of one run."""
        began = perf_counter()
        region = TransmissionSettings(transmission="fixed")
        field = FieldSettings(sweeps=sweeps, folds=0, region=region)
        task = FieldTask(
            settings=FalconFieldSettings(field=field, privacy=privacy), rule=_RULE
        )
        ledger = None
        if task.private:
            ledger = Ledger(FieldPlan.of(task, self.traces.clock).budget)
        site, _ = run_in_process(
            task, self.traces, self.labels.known, seed=SEED, noise=SEED, ledger=ledger
        )
        seconds = perf_counter() - began
        truth = self.labels.hidden.open("the AUC of a benchmark")
        spent = None
        if ledger is not None:
            spent = ledger.spent().total[privacy.unit].epsilon
        return {
            "method": "falcon-field",
            "mode": privacy.mode,
            "unit": privacy.unit if privacy.mode != "off" else None,
            "epsilon": spent,
            "cells": privacy.cells if privacy.mode != "off" else "slot",
            "sweeps": sweeps,
            "auc": float(roc_auc_score(truth.infected, site.risk[truth.person])),
            "seconds": seconds,
            "peak_mb": peak_mb(),
        }

    def falcon(self) -> dict[str, Any]:
        """Run Falcon in mode ``paper`` with the noise for an epsilon of 8.

        Its region model, places and counts are released without a bound.
        """
        began = perf_counter()
        settings = _at_epsilon(8.0, self.traces.slots)
        found = fit(TrainingTask(self.traces, self.labels.known, settings, seed=SEED))
        truth = self.labels.hidden.open("the AUC of a benchmark")
        risk = found.probability[truth.person]
        return {
            "method": "falcon",
            "mode": "paper",
            "unit": "person",
            "epsilon": found.spent["epsilon"]["person"],
            "cells": "slot",
            "sweeps": ROUNDS,
            "auc": float(roc_auc_score(truth.infected, risk)),
            "seconds": perf_counter() - began,
            "peak_mb": peak_mb(),
        }


def _at_epsilon(epsilon: float, slots: int) -> PredictionSettings:
    """Return settings of mode ``paper`` with ``epsilon`` over all rounds."""
    model = FalconSettings(rounds=ROUNDS)
    privacy = PrivacySettings(mode="paper")
    mu = mu_for(epsilon, privacy.delta)
    uploads = privacy.upload_clip * math.sqrt(ROUNDS * model.layers * slots)
    gradients = privacy.gradient_clip * math.sqrt(ROUNDS)
    privacy = replace(
        privacy,
        upload_sigma=uploads / mu / math.sqrt(_UPLOAD_SHARE),
        gradient_sigma=gradients / mu / math.sqrt(1 - _UPLOAD_SHARE),
    )
    return PredictionSettings(model=model, privacy=privacy)


def _is_reference(row: dict[str, Any]) -> bool:
    wanted = {"mode": "sums", "unit": "person", "cells": "window", "sweeps": 1}
    at_8 = row["epsilon"] is not None and abs(row["epsilon"] - 8) < 1e-3
    return at_8 and all(row[key] == value for key, value in wanted.items())


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as CSV and JSON, and the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(_short(row) for row in rows)
    (folder / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    command = "python -m benchmarks.field_noise results/field-privacy"
    (folder / "command.txt").write_text(f"{command}\n")
    draw(rows).savefig(folder / "field-privacy.png", dpi=110)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    digits = {"epsilon": 3, "auc": 4, "seconds": 1, "peak_mb": 0}
    return {
        key: round(value, digits[key]) if key in digits and value else value
        for key, value in row.items()
    }


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot AUC by epsilon per person, by people, and by exchanges."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for people in sorted({row["people"] for row in rows}):
        own = [row for row in rows if row["people"] == people]
        _draw_city(left, right, f"{people:,} people", own)
    left.set(xscale="log", xlabel="epsilon per person", ylabel="AUC on hidden people")
    left.set_title("One noised sum per region; dotted: no noise", loc="left")
    for ((mode, unit), line), mark in zip(_by_size(rows).items(), _MARKS, strict=False):
        label = _MODES[mode] if unit is None else f"{_MODES[mode]}, 8 per {unit}"
        middle.plot(*zip(*line, strict=True), f"{mark}-", label=label)
    theirs = [(r["people"], r["auc"]) for r in rows if r["method"] == "falcon"]
    if theirs:
        label = "Falcon, paper mode, 8 per person"
        middle.plot(*zip(*theirs, strict=True), "kx:", label=label)
    middle.set(xscale="log", xlabel="people")
    middle.set_title("One exchange, by guarantee", loc="left")
    right.set(xlabel="exchanges", xticks=SWEEPS)
    right.set_title("Epsilon 8 per person, by exchanges", loc="left")
    for place, size, corner in (
        (left, 9, "lower right"),
        (middle, 7, "upper right"),
        (right, 9, "upper right"),
    ):
        place.legend(frameon=False, fontsize=size, loc=corner)
    return figure


def _draw_city(left: Axes, right: Axes, label: str, own: list[dict[str, Any]]) -> None:
    """Plot one city: by epsilon with one exchange, by exchanges at epsilon 8."""
    summed = [
        row
        for row in own
        if (row["mode"], row["unit"], row["cells"]) == ("sums", "person", "window")
    ]
    line = [(row["epsilon"], row["auc"]) for row in summed if row["sweeps"] == 1]
    clear = next(r["auc"] for r in own if r["mode"] == "off" and r["sweeps"] == 1)
    (mark,) = left.plot(*zip(*sorted(line), strict=True), "o-", label=label)
    left.axhline(clear, ls=":", color=mark.get_color())
    at_8 = [(r["sweeps"], r["auc"]) for r in summed if abs(r["epsilon"] - 8) < 1e-3]
    right.plot(*zip(*sorted(at_8), strict=True), "o-", label=label)


def _by_size(
    rows: list[dict[str, Any]],
) -> dict[tuple[str, str | None], list[tuple[int, float]]]:
    found: dict[tuple[str, str | None], list[tuple[int, float]]] = {}
    for row in rows:
        at_8 = row["epsilon"] is None or abs(row["epsilon"] - 8) < 1e-3
        whole = row["mode"] == "off" or row["cells"] == "window"
        if at_8 and whole and row["sweeps"] == 1:
            way = row["mode"], row["unit"]
            found.setdefault(way, []).append((row["people"], row["auc"]))
    return found


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        # The parent process reads stdout: print only the numbers.
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        write(Path(sys.argv[1]), rows_of(SIZES))
