"""Study of the stages before and after the Omicron outbreak: table 5 of the paper."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from epifalcon.epidemic import outbreak as state
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import formats, study_plots
from epifalcon.reports.paper_values import STAGE_DAYS, STAGES
from epifalcon.studies.scenarios import (
    EPSILON,
    EVERYBODYS,
    OMICRON,
    OTHER_DATA,
    PAPER,
    printed,
)
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import Cell, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

_METHODS = ("dct", "gcn", "graph-wavenet", "fedpregnn", "hgnn", "hbp", FIELD, "oracle")
_LAST = "after"
"""Stage whose outbreak is plotted; it includes the days of earlier stages."""


def _cells(scale: Scale) -> list[Cell]:
    cells = []
    for stage, day in STAGE_DAYS.items():
        town = replace(
            OMICRON[scale].also((f"city.days={day}",)),
            label=stage,
            methods=_METHODS,
            group=f"{stage.capitalize()} the outbreak, day {day}",
            facts={"day": day},
            against=tuple(Reference(one, stage, one) for one in ("hgnn", "hbp")),
            published=printed(STAGES[stage]),
        )
        label, methods = f"{stage}, the paper's noise", ("falcon",)
        noised = replace(town.also(PAPER), label=label, methods=methods)
        label = f"{stage}, everybody's cases"
        cells += [town, noised, replace(noised.also(EVERYBODYS), label=label)]
    return cells


def _more(ran: StudyRun, _rows: Sequence[Plain]) -> dict[str, Any]:
    """Return ``epidemic``: counts of people by state, seed and day."""
    counted: dict[str, list[list[int]]] = {}
    if _LAST not in ran.study_plan.plans:
        return {"epidemic": counted}
    for seed in ran.study_plan.seeds:
        folder = ran.study_plan.plans[_LAST].run_folder(seed) / "outbreak"
        if not folder.is_dir():
            continue
        outbreak = Outbreak.load(folder)
        counts = outbreak.counts_by_day()
        ill = counts[:, state.ASYMPTOMATIC] + counts[:, state.SYMPTOMATIC]
        for name, values in (
            ("susceptible", counts[:, state.SUSCEPTIBLE]),
            ("exposed", counts[:, state.EXPOSED]),
            ("infectious", ill),
            ("recovered", counts[:, state.RECOVERED]),
            ("new", outbreak.new_cases_by_day()),
        ):
            counted.setdefault(name, []).append(np.asarray(values).tolist())
    return {"epidemic": counted}


def _draw(result: Plain) -> dict[str, StudyPlot]:
    plots = {}
    if counts := result["epidemic"]:
        states = {
            name: np.asarray(counts[name], float)
            for name in ("exposed", "infectious", "recovered", "susceptible")
            # Results stored by earlier versions have no count of the exposed.
            if name in counts
        }
        days = {day: stage for stage, day in STAGE_DAYS.items()}
        new = np.asarray(counts["new"], float)
        plots["epidemic"] = StudyPlot(
            study_plots.epidemic_curve(states, new, "Omicron, day by day", days),
            f"People {', '.join(states)} at the end of each day, and new infections by "
            f"day; median of {formats.plural(len(new), 'seed')}, with the middle 80 % "
            "if there are several. Dotted lines are the last days of the two stages.",
        )
    metrics, title = ("auc", "dep", "f1"), "Before and after the outbreak"
    plots["stages"] = StudyPlot(
        study_plots.dots(result["rows"], metrics, title),
        "Each method before and after the outbreak: mean and 95 % interval, the "
        "paper's value as a hollow diamond; squares used the cases of all people.",
    )
    return plots


STUDY = Study(
    name="stages",
    cpu_hours={"hamlet": 0.14, "full": 2.01},
    title="Stages of the pandemic",
    what="Day 10 and day 14 of an Omicron outbreak, and its curve.",
    shows="table 5 and the figure of the epidemic's course",
    cells=_cells,
    draw=_draw,
    metrics=("dep", "f1", "auc"),
    columns=(EPSILON,),
    ranked=True,
    notes=(
        OTHER_DATA,
        (
            "A stage is an outbreak up to a given day: traces, tests and ground truth "
            "end there; before and after the outbreak are the paper's names for day 10 "
            "and day 14, although people are already infected by day 10"
        ),
    ),
    scale_notes={"hamlet": ("The town's outbreak starts from 10 people",)},
    more=_more,
)
