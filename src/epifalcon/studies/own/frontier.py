"""Accuracy against the true epsilon per visit, per day and per person."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import formats, study_plots
from epifalcon.reports.study_plots import Panel, points
from epifalcon.studies.scenarios import PAPER, SARS
from epifalcon.studies.study import Cell, Column, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

SIGMAS: Mapping[Scale, tuple[float, ...]] = {
    "hamlet": (0.1, 1.0),
    "full": (0.05, 0.1, 0.2, 0.5, 1.0),
}
"""Noise scales of Falcon in mode ``paper``, without a fixed epsilon."""
BUDGETS: Mapping[Scale, Mapping[str, tuple[int, ...]]] = {
    "hamlet": {"person": (8,), "day": (8,), "visit": (8,)},
    "full": {"person": (8, 64, 512, 4096), "day": (8, 64), "visit": (1, 8)},
}
"""Epsilons of Falcon in mode ``local``, by privacy unit."""
FIELD_EPSILONS: Mapping[Scale, tuple[int, ...]] = {
    "hamlet": (1, 8),
    "full": (1, 3, 8, 30),
}
SWEEPS: Mapping[Scale, Mapping[str, tuple[int, ...]]] = {
    "hamlet": {"person": (1, 3), "day": (1,), "visit": (1,)},
    "full": {"person": (1, 2, 3, 5), "day": (1, 2, 3, 5), "visit": (1, 2, 3, 5)},
}
"""Number of sweeps of Falcon Field at epsilon 8; one sweep at other epsilons."""
UNITS = ("person", "day", "visit")
_EPSILON = 8
_CLEAR = "nothing private"


def _cells(scale: Scale) -> Sequence[Cell]:
    methods = ("hbp", "hgnn", "soft-dct-ratio", FIELD)
    clear = replace(SARS[scale], label=_CLEAR, methods=methods)
    return [clear, *_falcon(scale), *_field(scale)]


def _falcon(scale: Scale) -> Iterator[Cell]:
    town = SARS[scale]
    for sigma in SIGMAS[scale]:
        both = (f"privacy.upload_sigma={sigma}", f"privacy.gradient_sigma={sigma}")
        label, title = f"paper, σ {sigma:g}", "Falcon, paper"
        yield _private(label, "falcon", title, town.also((*PAPER, *both)), {})
    for unit, epsilons in BUDGETS[scale].items():
        for epsilon in epsilons:
            unit_and_epsilon = (f"privacy.unit={unit}", f"privacy.epsilon={epsilon}")
            cell = town.also(("privacy.mode=local", *unit_and_epsilon))
            label = f"local, epsilon {epsilon} for a {unit}"
            yield _private(label, "falcon", "Falcon, local", cell, {"unit": unit})


def _field(scale: Scale) -> Iterator[Cell]:
    """Yield cells of Falcon Field by mode, unit, epsilon and number of sweeps."""
    town = SARS[scale]
    guarantees = product(("sums", "local"), UNITS, FIELD_EPSILONS[scale])
    for mode, unit, epsilon in guarantees:
        for sweeps in SWEEPS[scale][unit] if epsilon == _EPSILON else (1,):
            overrides = (
                f"field_privacy.mode={mode}",
                f"field_privacy.epsilon={epsilon}",
                f"field_privacy.unit={unit}",
                f"field_privacy.sweeps={sweeps}",
            )
            label = f"field, {mode}, epsilon {epsilon} for a {unit}, "
            label += formats.plural(sweeps, "sweep")
            facts = {"unit": unit, "sweeps": sweeps, "promised": epsilon}
            title = f"Falcon Field, {mode}"
            yield _private(label, FIELD, title, town.also(overrides), facts)


def _private(label: str, method: str, title: str, cell: Cell, facts: Plain) -> Cell:
    against = (Reference("HBP, nothing private", _CLEAR, "hbp"),)
    cell = replace(cell, label=label, methods=(method,), titles={method: title})
    return replace(cell, facts=facts, against=against)


def _draw(result: Plain) -> dict[str, StudyPlot]:
    rows = [row for row in result["rows"] if row["cell"] != _CLEAR]
    panels = []
    for unit in UNITS:
        # Rows of this unit with one sweep, and rows without a unit.
        mine = [
            row
            for row in rows
            if row["facts"].get("unit", unit) == unit
            and row["facts"].get("sweeps", 1) == 1
        ]
        series = points(mine, ("figures", f"epsilon_{unit}"), ("metrics", "auc"))
        title, label = f"Per {unit}", f"true epsilon per {unit}"
        panels.append(Panel(title, label, "AUC", series, log_x=True))
    promised = [row for row in rows if row["facts"].get("promised") == _EPSILON]
    swept = [row for row in promised if row["facts"]["unit"] == "person"]
    series = points(swept, ("facts", "sweeps"), ("metrics", "auc"))
    if any(len(line) > 1 for line in series.values()):
        title = f"By exchanges, epsilon {_EPSILON} per person"
        panels.append(Panel(title, "exchanges", "AUC", series))
    plot = StudyPlot(
        study_plots.lines(panels),
        "AUC on hidden people against the true epsilon of the noised channels per "
        "person, per day and per visit, and of Falcon Field by the number of "
        "exchanges. Methods without a bound are only in the table.",
    )
    return {"frontier": plot}


STUDY = Study(
    name="frontier",
    cpu_hours={"hamlet": 0.15, "full": 3.24},
    title="Accuracy against true epsilon",
    what="Falcon with the paper's noise and with exact budgets, and Falcon Field.",
    shows="nothing, the study is ours",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "dep", "f1"),
    columns=(
        *(Column(f"epsilon_{unit}", f"epsilon per {unit}") for unit in UNITS),
        Column("rounds", "rounds", 0),
    ),
    seeds={"hamlet": 2, "full": 3},
    notes=(
        (
            "Epsilons cover only the noised channels, at delta 1e-6, up to the end of "
            "training; claimed places among pseudo places have no bound in any mode, "
            "nor have the places of messages of Falcon Field in mode local"
        ),
    ),
)
