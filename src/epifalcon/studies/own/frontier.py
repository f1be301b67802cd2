"""Accuracy against the true epsilon of a visit, a day and a person."""

from collections.abc import Iterator, Sequence
from itertools import product

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.report import shown_epsilon
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.study_figures import Panel, points
from epifalcon.studies.study_reading import mean
from epifalcon.studies.towns import PAPER, SARS
from epifalcon.types import Plain

SIGMAS: dict[Scale, tuple[float, ...]] = {
    "hamlet": (0.1, 1.0),
    "full": (0.05, 0.1, 0.2, 0.5, 1.0),
}
"""Noise of Falcon as published, whatever it costs."""
BUDGETS: dict[Scale, dict[str, tuple[int, ...]]] = {
    "hamlet": {"person": (8,), "day": (8,), "visit": (8,)},
    "full": {"person": (8, 64, 512, 4096), "day": (8, 64), "visit": (1, 8)},
}
"""Epsilons asked of Falcon in mode ``local``, by the unit they are promised for."""
FIELD_EPSILONS: dict[Scale, tuple[int, ...]] = {
    "hamlet": (1, 8),
    "full": (1, 3, 8, 30),
}
SWEEPS: dict[Scale, dict[str, tuple[int, ...]]] = {
    "hamlet": {"person": (1, 3), "day": (1,), "visit": (1,)},
    "full": {"person": (1, 2, 3, 5), "day": (1, 2, 3, 5), "visit": (1, 2, 3, 5)},
}
"""Exchanges of Falcon Field at an epsilon of 8; with others there is one."""
UNITS = ("person", "day", "visit")
_PROMISE = 8
_SMALL = 10
"""An epsilon beyond which next to nothing is ruled out."""
_CLEAR = "nothing private"


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    clear = Cell(
        label=_CLEAR,
        preset=town.preset,
        overrides=town.overrides,
        methods=("hbp", "hgnn", "soft-dct-ratio", FIELD),
    )
    return [clear, *_falcon(scale), *_field(scale)]


def _falcon(scale: Scale) -> Iterator[Cell]:
    for sigma in SIGMAS[scale]:
        both = (f"privacy.upload_sigma={sigma}", f"privacy.gradient_sigma={sigma}")
        yield _private(scale, f"paper, σ {sigma:g}", "Falcon, paper", (*PAPER, *both))
    for unit, epsilons in BUDGETS[scale].items():
        for epsilon in epsilons:
            words = (
                "privacy.mode=local",
                f"privacy.unit={unit}",
                f"privacy.epsilon={epsilon}",
            )
            label = f"local, epsilon {epsilon} for a {unit}"
            yield _private(scale, label, "Falcon, local", words, {"unit": unit})


def _field(scale: Scale) -> Iterator[Cell]:
    """Falcon Field by what is promised, and by the number of exchanges."""
    promises = product(("sums", "local"), UNITS, FIELD_EPSILONS[scale])
    for mode, unit, epsilon in promises:
        for sweeps in SWEEPS[scale][unit] if epsilon == _PROMISE else (1,):
            yield _field_cell(scale, mode, unit, epsilon, sweeps)


def _field_cell(scale: Scale, mode: str, unit: str, epsilon: int, sweeps: int) -> Cell:
    words = (
        f"field_privacy.mode={mode}",
        f"field_privacy.epsilon={epsilon}",
        f"field_privacy.unit={unit}",
        f"field_privacy.sweeps={sweeps}",
    )
    times = "1 sweep" if sweeps == 1 else f"{sweeps} sweeps"
    label = f"field, {mode}, epsilon {epsilon} for a {unit}, {times}"
    facts = {"unit": unit, "sweeps": sweeps, "promised": epsilon}
    return _private(scale, label, f"Falcon Field, {mode}", words, facts)


def _private(
    scale: Scale,
    label: str,
    title: str,
    words: Sequence[str],
    facts: Plain | None = None,
) -> Cell:
    method = FIELD if title.startswith("Falcon Field") else "falcon"
    town = SARS[scale]
    return Cell(
        label=label,
        preset=town.preset,
        overrides=(*town.overrides, *words),
        methods=(method,),
        facts=facts or {},
        titles={method: title},
        against=(Against("HBP, nothing private", _CLEAR, "hbp"),),
    )


def _draw(result: Plain) -> dict[str, Drawn]:
    rows = [row for row in result["rows"] if row["cell"] != _CLEAR]
    panels = [
        Panel(
            title=f"For a {unit}",
            xlabel=f"true epsilon of a {unit}",
            ylabel="AUC",
            series=points(
                _of(rows, unit), ("figures", f"epsilon_{unit}"), ("metrics", "auc")
            ),
            log_x=True,
        )
        for unit in UNITS
    ]
    promised = [row for row in rows if row["facts"].get("promised") == _PROMISE]
    swept = [row for row in promised if row["facts"]["unit"] == "person"]
    series = points(swept, ("facts", "sweeps"), ("metrics", "auc"))
    if any(len(line) > 1 for line in series.values()):
        panels.append(
            Panel(
                title=f"By exchanges, epsilon {_PROMISE} for a person",
                xlabel="exchanges",
                ylabel="AUC",
                series=series,
            )
        )
    figure = study_figures.lines(panels)
    caption = (
        "AUC on hidden people against the true epsilon of what was noised, for a "
        "person, a day and a visit, and of Falcon Field by the number of exchanges. "
        "Methods without a bound are in the table alone."
    )
    return {} if figure is None else {"frontier": Drawn(figure, caption)}


def _of(rows: Sequence[Plain], unit: str) -> list[Plain]:
    """Rows promised for the unit, one exchange each, and those promised for none."""
    return [
        row
        for row in rows
        if row["facts"].get("unit", unit) == unit and row["facts"].get("sweeps", 1) == 1
    ]


def _read(result: Plain) -> list[str]:
    """The best AUC without privacy, and with a small epsilon for each unit."""
    rows = [row for row in result["rows"] if row["seeds"]]
    clear = [row for row in rows if row["cell"] == _CLEAR]
    told = []
    if clear:
        best = max(clear, key=_auc)
        told.append(f"With nothing private {best['title']} has AUC {_auc(best):.3f}.")
    for unit in UNITS:
        key = f"epsilon_{unit}"
        kept = [
            (row, epsilon)
            for row in rows
            if (epsilon := mean(row, "figures", key)) is not None and epsilon <= _SMALL
        ]
        if kept:
            best, epsilon = max(kept, key=lambda one: _auc(one[0]))
            person = shown_epsilon(mean(best, "figures", "epsilon_person"))
            whole = "" if unit == "person" else f"; of a person it is then {person}"
            told.append(
                f"With a true epsilon of at most {_SMALL} for a {unit} the most is "
                f"AUC {_auc(best):.3f}: {best['cell']} (epsilon {epsilon:.3g}{whole})."
            )
    papers = [row for row in rows if row["title"] == "Falcon, paper"]
    if papers:
        listed = "; ".join(
            f"{row['cell']}: AUC {_auc(row):.3f}, epsilon "
            f"{shown_epsilon(mean(row, 'figures', 'epsilon_person'))}"
            for row in papers
        )
        told.append(f"Falcon as published, epsilon of a person: {listed}.")
    return told


def _auc(row: Plain) -> float:
    return mean(row, "metrics", "auc") or 0.0


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        (
            "Epsilons are of the noised channels alone, at delta 1e-6, where training "
            "stopped; places claimed among pseudo places have no bound in any mode, "
            "nor have the places that Falcon Field sends for in mode local"
        ),
    )


STUDY = Study(
    name="frontier",
    title="Accuracy against true epsilon",
    what="The paper's noise, exact budgets and Falcon Field, by what they cost.",
    shows="nothing, the study is ours",
    cells=_cells,
    draw=_draw,
    read=_read,
    metrics=("auc", "dep", "f1"),
    columns=(
        *(Column(f"epsilon_{unit}", f"epsilon of a {unit}") for unit in UNITS),
        Column("rounds", "rounds", 0),
    ),
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
