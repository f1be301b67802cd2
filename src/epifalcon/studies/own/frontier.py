"""Accuracy against the true epsilon of a visit, a day and a person."""

from collections.abc import Sequence

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.study_figures import Panel, points
from epifalcon.studies.towns import PAPER, SARS
from epifalcon.types import Plain

SIGMAS = (0.05, 0.1, 0.2, 0.5, 1.0)
BUDGETS = {"person": (8, 64, 512, 4096), "day": (8, 64), "visit": (1, 8)}
"""Epsilons asked of mode ``local``, by the unit that they are promised for."""
SWEEPS = (1, 2, 3, 4, 5)
FIELD_EPSILONS = (1, 8, 64)
UNITS = ("person", "day", "visit")
_CLEAR = "nothing private"


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    clear = ("hbp", "hgnn", "soft-dct-ratio")
    listed: list[tuple[str, str, tuple[str, ...]]] = []
    for sigma in SIGMAS:
        both = (f"privacy.upload_sigma={sigma}", f"privacy.gradient_sigma={sigma}")
        listed.append((f"paper, σ {sigma:g}", "Falcon, paper", (*PAPER, *both)))
    for unit, epsilons in BUDGETS.items():
        for epsilon in epsilons:
            words = (
                "privacy.mode=local",
                f"privacy.unit={unit}",
                f"privacy.epsilon={epsilon}",
            )
            label = f"local, epsilon {epsilon} for a {unit}"
            listed.append((label, f"Falcon, local for a {unit}", words))
    cells = [
        Cell(
            label=_CLEAR,
            preset=town.preset,
            overrides=town.overrides,
            methods=clear,
        )
    ]
    cells += [_private(scale, "falcon", *one) for one in listed]
    return [*cells, *_field(scale)]


def _private(
    scale: Scale, method: str, label: str, title: str, words: Sequence[str]
) -> Cell:
    town = SARS[scale]
    return Cell(
        label=label,
        preset=town.preset,
        overrides=(*town.overrides, *words),
        methods=(method,),
        titles={method: title},
        against=(Against("HBP, nothing private", _CLEAR, "hbp"),),
    )


def _field(scale: Scale) -> list[Cell]:
    """Falcon Field with each number of sweeps."""
    cells = []
    for epsilon in FIELD_EPSILONS:
        for sweeps in SWEEPS:
            words = (
                "field_privacy.mode=local",
                f"field_privacy.epsilon={epsilon}",
                "field_privacy.unit=person",
                f"field_privacy.sweeps={sweeps}",
            )
            label = f"field, epsilon {epsilon} for a person, {sweeps} sweeps"
            title = f"Falcon Field, {sweeps} sweeps"
            cells.append(_private(scale, FIELD, label, title, words))
    return cells


def _draw(result: Plain) -> dict[str, Drawn]:
    rows = result["rows"]
    panels = [
        Panel(
            title=f"For a {unit}",
            xlabel=f"true epsilon of a {unit}",
            ylabel="AUC",
            series=points(rows, ("figures", f"epsilon_{unit}"), ("metrics", "auc")),
            log_x=True,
        )
        for unit in UNITS
    ]
    figure = study_figures.lines(panels)
    caption = (
        "AUC on hidden people against the true epsilon of what was noised, for a "
        "person, a day and a visit. Methods without a bound are in the table alone."
    )
    return {} if figure is None else {"frontier": Drawn(figure, caption)}


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        (
            "Epsilons are of the noised channels alone, at delta 1e-6, where training "
            "stopped; places claimed among pseudo places have no bound in any mode"
        ),
    )


STUDY = Study(
    name="frontier",
    title="Accuracy against true epsilon",
    what="The paper's noise, exact budgets and Falcon Field, by what they cost.",
    shows="nothing: ours",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "dep", "f1"),
    columns=(
        *(Column(f"epsilon_{unit}", f"epsilon of a {unit}") for unit in UNITS),
        Column("rounds", "rounds", 0),
    ),
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
