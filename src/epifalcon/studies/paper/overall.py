"""Every method on the paper's two scenarios: table 4 and its curves."""

from epifalcon.studies.published_tables import OVERALL
from epifalcon.studies.study import EPSILON, Against, Cell, Scale, Study
from epifalcon.studies.study_curves import curves_by_group, draw_comparison
from epifalcon.studies.towns import (
    EVERYBODYS,
    OTHER_DATA,
    PAPER,
    SARS,
    Town,
    all_methods,
    printed,
)
from epifalcon.types import Plain

BASIC = "basic"
ONE_BASIC = (
    "Basic is of one seed, since forty days of all methods take hours: what is told of "
    "it is of one city"
)
SCENARIOS = {
    "hamlet": {"town": ("Town of 2,000 people", SARS["hamlet"], "larger-sars")},
    "full": {
        BASIC: ("Basic", Town("basic-sars"), "basic-sars"),
        "larger": ("Larger", Town("larger-sars"), "larger-sars"),
    },
}


def cells_of(label: str, group: str, town: Town, figures: Plain) -> list[Cell]:
    """All methods in one town, Falcon also with its noise, and with the leak.

    ``figures`` are the paper's, by method; Falcon's stand beside Falcon with noise.
    """
    falcon = {name: one for name, one in figures.items() if name == "falcon"}
    others = {name: one for name, one in figures.items() if name != "falcon"}
    noisy = (*town.overrides, *PAPER)
    return [
        Cell(
            label=name,
            preset=town.preset,
            methods=methods,
            overrides=words,
            group=group,
            most_seeds=1 if label == BASIC else None,
            against=tuple(Against(one, label, one) for one in ("hgnn", "hbp")),
            published=printed_there,
        )
        for name, methods, words, printed_there in (
            (label, all_methods(), town.overrides, others),
            (f"{label}, the paper's noise", ("falcon",), noisy, falcon),
            (
                f"{label}, the paper's noise, everybody's cases",
                ("falcon",),
                (*noisy, *EVERYBODYS),
                falcon,
            ),
        )
    ]


def _cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for label, (group, town, table) in SCENARIOS[scale].items()
        for cell in cells_of(label, group, town, printed(OVERALL[table]))
    ]


def _notes(scale: Scale) -> tuple[str, ...]:
    notes = [OTHER_DATA, "Falcon, off, is Falcon without noise and pseudo traces"]
    if scale == "hamlet":
        notes.append("One town stands for both scenarios; the paper's are of Larger")
    else:
        notes.append(ONE_BASIC)
    return tuple(notes)


STUDY = Study(
    name="overall",
    title="Overall performance",
    what="Twelve rivals, references, ceilings, Falcon and what is ours, on SARS-CoV-2.",
    shows="table 4 and the figure of precision and recall",
    cells=_cells,
    draw=draw_comparison,
    columns=(EPSILON,),
    ranked=True,
    notes=_notes,
    more=curves_by_group,
)
