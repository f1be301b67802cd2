"""How many people are tested: the sweep of lambda."""

from epifalcon.studies.study import Cell, Drawn, Scale, Study
from epifalcon.studies.sweeps import METRICS, draw_sweep, read_sweep, sweep_cells
from epifalcon.types import Plain

SHARES = (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The paper has six, "from high to low", and does not print which."""


def _cells(scale: Scale) -> list[Cell]:
    return sweep_cells(scale, "labels.label_share", "λ", SHARES)


def _draw(result: Plain) -> dict[str, Drawn]:
    caption = "AUC and F1 on hidden people by the share of people who are tested."
    return draw_sweep(result, "label_share", "share of people tested, λ", caption)


def _read(result: Plain) -> list[str]:
    return read_sweep(result, "label_share", "{:.0%} of people are tested")


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        (
            "The paper shows curves alone and does not print its six shares: these are "
            "ours"
        ),
        (
            "With another share other people are hidden: rows of two shares are of the "
            "same outbreak, not of the same people"
        ),
    )


STUDY = Study(
    name="label-share",
    title="Share of people tested",
    what="Falcon and representative rivals where more or fewer people are tested.",
    shows="the figure of reporting rates, (b)",
    cells=_cells,
    draw=_draw,
    read=_read,
    metrics=METRICS,
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
