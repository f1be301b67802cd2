"""All methods, with SARS-CoV-2 (table 4) and with Omicron: tables and curves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from epifalcon.reports.paper_values import OVERALL, Row
from epifalcon.studies.compare import curves_by_group, draw_comparison
from epifalcon.studies.study import EPSILON, Against, Cell, Scale, Study
from epifalcon.studies.towns import (
    EVERYBODYS,
    OMICRON,
    OTHER_DATA,
    PAPER,
    SARS,
    Town,
    all_methods,
    printed,
)

_ONE_BASIC = "Basic has one seed, since forty days of all methods take hours"


@dataclass(frozen=True)
class _Scenario:
    """A town with all methods, and the paper's figures for it."""

    label: str
    group: str
    town: Town
    figures: Mapping[str, Row] = field(default_factory=dict)
    most_seeds: int | None = None


_SARS: Mapping[Scale, tuple[_Scenario, ...]] = {
    "hamlet": (
        _Scenario(
            "town", "Town of 2,000 people", SARS["hamlet"], OVERALL["larger-sars"]
        ),
    ),
    "full": (
        _Scenario("basic", "Basic", Town("basic-sars"), OVERALL["basic-sars"], 1),
        _Scenario("larger", "Larger", Town("larger-sars"), OVERALL["larger-sars"]),
    ),
}
_OMICRON: Mapping[Scale, tuple[_Scenario, ...]] = {
    "hamlet": (_Scenario("town", "Town of 2,000 people, Omicron", OMICRON["hamlet"]),),
    "full": (
        _Scenario("basic", "Basic, Omicron", Town("basic-omicron"), most_seeds=1),
        _Scenario("larger", "Larger, Omicron", OMICRON["full"]),
    ),
}


def _cells(scenario: _Scenario) -> list[Cell]:
    """Return all methods in one town, Falcon also with its noise, and with the leak.

    The paper's figures for Falcon stand beside Falcon with noise.
    """
    town, label = scenario.town, scenario.label
    figures = printed(scenario.figures)
    falcon = {name: one for name, one in figures.items() if name == "falcon"}
    others = {name: one for name, one in figures.items() if name != "falcon"}
    return [
        town.cell(
            name,
            methods,
            words,
            group=scenario.group,
            most_seeds=scenario.most_seeds,
            against=tuple(Against(one, label, one) for one in ("hgnn", "hbp")),
            published=published,
        )
        for name, methods, words, published in (
            (label, all_methods(), (), others),
            (f"{label}, the paper's noise", ("falcon",), PAPER, falcon),
            (
                f"{label}, the paper's noise, everybody's cases",
                ("falcon",),
                (*PAPER, *EVERYBODYS),
                falcon,
            ),
        )
    ]


STUDY = Study(
    name="overall",
    cpu_hours={"hamlet": 0.28, "full": 7.11},
    title="Overall performance",
    what="Twelve rivals, references, ceilings, Falcon and what is ours, on SARS-CoV-2.",
    shows="table 4 and the figure of precision and recall",
    cells=lambda scale: [cell for one in _SARS[scale] for cell in _cells(one)],
    draw=draw_comparison,
    columns=(EPSILON,),
    ranked=True,
    notes=(OTHER_DATA, "Falcon, off, is Falcon without noise and pseudo traces"),
    scale_notes={
        "hamlet": (
            "One town stands for both scenarios; the paper's figures are of Larger",
        ),
        "full": (_ONE_BASIC,),
    },
    more=curves_by_group,
)
OMICRON_STUDY = Study(
    name="omicron",
    cpu_hours={"hamlet": 0.28, "full": 5.27},
    title="Generalisation to Omicron",
    what="All methods where the disease is transmitted faster.",
    shows="the figure of precision and recall with the Omicron settings",
    cells=lambda scale: [cell for one in _OMICRON[scale] for cell in _cells(one)],
    draw=draw_comparison,
    seeds={"hamlet": 2, "full": 3},
    columns=(EPSILON,),
    ranked=True,
    notes=("The paper shows curves alone, no figures to compare with",),
    scale_notes={"full": (_ONE_BASIC,)},
    more=curves_by_group,
)
