"""All methods, with SARS-CoV-2 (table 4) and with Omicron: tables and curves."""

from collections.abc import Mapping
from dataclasses import replace

from epifalcon.reports.paper_values import OVERALL
from epifalcon.studies.compare import curves_by_group, draw_comparison
from epifalcon.studies.scenarios import (
    EPSILON,
    EVERYBODYS,
    OMICRON,
    OTHER_DATA,
    PAPER,
    SARS,
    all_methods,
    printed,
)
from epifalcon.studies.study import Cell, Reference, Scale, Study

_ONE_BASIC = "Basic has one seed, since forty days of all methods take hours"
_BASIC = Cell(label="basic", group="Basic", preset="basic-sars", most_seeds=1)
_LARGER, _TOWN = printed(OVERALL["larger-sars"]), "Town of 2,000 people"
_SARS: Mapping[Scale, tuple[Cell, ...]] = {
    "hamlet": (replace(SARS["hamlet"], label="town", group=_TOWN, published=_LARGER),),
    "full": (
        replace(_BASIC, published=printed(OVERALL["basic-sars"])),
        replace(SARS["full"], label="larger", group="Larger", published=_LARGER),
    ),
}
"""Scenarios with the values printed in the paper."""
_OMICRON: Mapping[Scale, tuple[Cell, ...]] = {
    "hamlet": (replace(OMICRON["hamlet"], label="town", group=f"{_TOWN}, Omicron"),),
    "full": (
        replace(_BASIC, group="Basic, Omicron", preset="basic-omicron"),
        replace(OMICRON["full"], label="larger", group="Larger, Omicron"),
    ),
}


def _cells(town: Cell) -> list[Cell]:
    """Return cells of all methods, of Falcon with noise, and of Falcon with leak."""
    label, values = f"{town.label}, the paper's noise", dict(town.published)
    falcon = {"falcon": values.pop("falcon")} if values else {}
    against = tuple(Reference(one, town.label, one) for one in ("hgnn", "hbp"))
    everything = replace(town, methods=all_methods(), published=values, against=against)
    noised = replace(
        everything.also(PAPER), label=label, methods=("falcon",), published=falcon
    )
    leaking = replace(noised.also(EVERYBODYS), label=f"{label}, everybody's cases")
    return [everything, noised, leaking]


STUDY = Study(
    name="overall",
    cpu_hours={"hamlet": 0.28, "full": 7.11},
    title="Overall performance",
    what="All methods on SARS-CoV-2: baselines, references, ceilings, Falcon and ours.",
    shows="table 4 and the figure of precision and recall",
    cells=lambda scale: [cell for one in _SARS[scale] for cell in _cells(one)],
    draw=draw_comparison,
    columns=(EPSILON,),
    ranked=True,
    notes=(OTHER_DATA, "Falcon, off, is Falcon without noise and pseudo traces"),
    scale_notes={
        "hamlet": (
            "One town replaces both scenarios; the paper's values are those of Larger",
        ),
        "full": (_ONE_BASIC,),
    },
    more=curves_by_group,
)
OMICRON_STUDY = replace(
    STUDY,
    name="omicron",
    cpu_hours={"hamlet": 0.28, "full": 5.27},
    title="Generalisation to Omicron",
    what="All methods with a pathogen that spreads faster.",
    shows="the figure of precision and recall with the Omicron settings",
    cells=lambda scale: [cell for one in _OMICRON[scale] for cell in _cells(one)],
    seeds={"hamlet": 2, "full": 3},
    notes=("The paper shows only curves, no values to compare with",),
    scale_notes={"full": (_ONE_BASIC,)},
)
