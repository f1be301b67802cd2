"""The same methods with Omicron's rates: the paper's second precision-recall figure."""

from epifalcon.studies.paper.overall import BASIC, ONE_BASIC, cells_of
from epifalcon.studies.study import EPSILON, Cell, Scale, Study
from epifalcon.studies.study_curves import curves_by_group, draw_comparison
from epifalcon.studies.towns import OMICRON, Town

_SCENARIOS = {
    "hamlet": {"town": ("Town of 2,000 people, Omicron", OMICRON["hamlet"])},
    "full": {
        BASIC: ("Basic, Omicron", Town("basic-omicron")),
        "larger": ("Larger, Omicron", OMICRON["full"]),
    },
}


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for label, (group, town) in _SCENARIOS[scale].items()
        for cell in cells_of(label, group, town, {})
    ]


def _notes(scale: Scale) -> tuple[str, ...]:
    told = "The paper shows curves alone, no figures that could stand beside ours"
    return (told,) if scale == "hamlet" else (told, ONE_BASIC)


STUDY = Study(
    name="omicron",
    title="Generalisation to Omicron",
    what="All methods where the disease passes on faster.",
    shows="the figure of precision and recall with the Omicron settings",
    cells=_cells,
    draw=draw_comparison,
    seeds={"hamlet": 2, "full": 3},
    columns=(EPSILON,),
    ranked=True,
    notes=_notes,
    more=curves_by_group,
)
