"""Methods in worlds that differ from what they take for granted."""

from collections.abc import Mapping

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.study import Against, Cell, Drawn, Scale, Study
from epifalcon.studies.towns import SARS, TRUE_FACTORS
from epifalcon.types import Plain

WORLDS = (
    *("regional-1", "regional-1.5", "beta-double", "beta-half", "half-traces"),
    *("labels-05", "labels-20", "labels-60", "test-errors", "super-spreaders"),
    *("authors-sir",),
)
"""Layers, put on the town."""
ASSUMED = "as assumed"
METHODS: Mapping[Scale, tuple[str, ...]] = {
    "hamlet": (
        *("dct", "soft-dct-ratio", "exposure-logistic", "mean-field", "hbp", FIELD),
        *("gcn", "unimp", "dcrnn", "hgnn", "falcon", "oracle"),
    ),
    "full": ("soft-dct-ratio", "mean-field", "hbp", FIELD, "oracle"),
}
"""At full size those that need no training: ten seeds of all would take days."""


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    worlds = {ASSUMED: town.preset}
    worlds |= {one: f"{town.preset}+{one}" for one in WORLDS}
    return [
        Cell(
            label=world,
            preset=preset,
            overrides=town.overrides,
            methods=METHODS[scale] + (TRUE_FACTORS,) * world.startswith("regional"),
            group=world,
            facts={"world": world},
            against=(
                Against("hbp", world, "hbp"),
                Against(ASSUMED, ASSUMED),
            ),
        )
        for world, preset in worlds.items()
    ]


def _draw(result: Plain) -> dict[str, Drawn]:
    drawn = {}
    for world in dict.fromkeys(row["group"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["group"] == world]
        figure = study_figures.dots(rows, {"auc": "AUC", "dep": "DEP"}, world)
        if figure is not None:
            name = world.replace(" ", "-").replace(".", "-")
            caption = f"World {world}: mean and 95 % interval of each method."
            drawn[name] = Drawn(figure, caption)
    return drawn


def _notes(_scale: Scale) -> tuple[str, ...]:
    told = (
        "Seeds begin at 10: every setting was chosen on others, from 100 on, though "
        "some that were looked into had shown themselves on these"
    )
    return (told,)


STUDY = Study(
    name="worlds",
    title="Other worlds",
    what="Methods where the disease, the tests or the traces are not as they assume.",
    shows="nothing, the study is ours",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "dep", "f1", "log_loss", "ece", "precision_at_budget"),
    first_seed=10,
    seeds={"hamlet": 2, "full": 10},
    ranked=True,
    notes=_notes,
)
