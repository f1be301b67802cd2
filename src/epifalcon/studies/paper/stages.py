"""Before and after the outbreak, with Omicron: table 5 and the epidemic curve."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from epifalcon.epidemic.outbreak import (
    ASYMPTOMATIC,
    EXPOSED,
    RECOVERED,
    SUSCEPTIBLE,
    SYMPTOMATIC,
    Outbreak,
)
from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.published_tables import STAGE_DAYS, STAGES
from epifalcon.studies.study import EPSILON, Against, Cell, Drawn, Scale, Study
from epifalcon.studies.study_running import Ran
from epifalcon.studies.towns import (
    EVERYBODYS,
    OMICRON,
    OTHER_DATA,
    PAPER,
    printed,
)
from epifalcon.types import Plain

_RIVALS = ("dct", "gcn", "graph-wavenet", "fedpregnn", "hgnn", "hbp", FIELD, "oracle")
_LAST = "after"
"""The stage whose outbreak is drawn: it holds the days before."""


def _cells(scale: Scale) -> list[Cell]:
    made = []
    for stage, day in STAGE_DAYS.items():
        town, figures = OMICRON[scale], printed(STAGES[stage])
        days = (*town.overrides, f"city.days={day}")
        noisy = (*days, *PAPER)
        for label, words, methods in (
            (stage, days, _RIVALS),
            (f"{stage}, the paper's noise", noisy, ("falcon",)),
            (f"{stage}, everybody's cases", (*noisy, *EVERYBODYS), ("falcon",)),
        ):
            made.append(
                Cell(
                    label=label,
                    preset=town.preset,
                    overrides=words,
                    methods=methods,
                    group=f"{stage.capitalize()} the outbreak, day {day}",
                    facts={"day": day},
                    against=tuple(Against(one, stage, one) for one in ("hgnn", "hbp")),
                    published=figures,
                )
            )
    return made


def _more(ran: Ran, _rows: Sequence[Plain]) -> dict[str, Any]:
    """People in each state by day, one line a seed: ``epidemic``."""
    counted: dict[str, list[list[int]]] = {}
    if _LAST not in ran.planned.plans:
        return {"epidemic": counted}
    for seed in ran.planned.seeds:
        folder = ran.planned.plans[_LAST].run_folder(seed) / "outbreak"
        if not folder.is_dir():
            continue
        outbreak = Outbreak.load(folder)
        counts = outbreak.counts_by_day()
        ill = counts[:, ASYMPTOMATIC] + counts[:, SYMPTOMATIC]
        for name, values in (
            ("susceptible", counts[:, SUSCEPTIBLE]),
            ("exposed", counts[:, EXPOSED]),
            ("infectious", ill),
            ("recovered", counts[:, RECOVERED]),
            ("new", outbreak.new_cases_by_day()),
        ):
            counted.setdefault(name, []).append(np.asarray(values).tolist())
    return {"epidemic": counted}


def _draw(result: Plain) -> dict[str, Drawn]:
    drawn = {}
    if counts := result["epidemic"]:
        days = {day: stage for stage, day in STAGE_DAYS.items()}
        seeds, exposed = len(counts["new"]), "exposed" in counts
        drawn["epidemic"] = Drawn(
            study_figures.epidemic(counts, "Omicron, day by day", days),
            f"Susceptible, {'exposed, ' * exposed}infectious and recovered people at "
            "the end of each day, and new infections on it: "
            + (
                f"mean of {seeds} seeds, with the least and the most of them. "
                if seeds > 1
                else "one seed. "
            )
            # Results that were kept before have no such count.
            + "Exposed people are not drawn: the others are fewer than all. "
            * (not exposed)
            + "Dotted lines are the days on which the two stages end.",
        )
    names = {"auc": "AUC", "dep": "DEP", "f1": "F1"}
    figure = study_figures.dots(result["rows"], names, "Before and after the outbreak")
    if figure is not None:
        drawn["stages"] = Drawn(
            figure,
            "Each method before and after the outbreak: mean and 95 % interval, the "
            "paper's figure as a hollow diamond; squares saw everybody's cases.",
        )
    return drawn


def _notes(scale: Scale) -> tuple[str, ...]:
    notes = (
        OTHER_DATA,
        (
            "A stage is an outbreak that is followed until its day: traces, tests and "
            "truth end there; before and after the outbreak are the paper's names for "
            "day 10 and day 14, and by day 10 people are infected already"
        ),
    )
    started = "The town's outbreak starts from 10 people"
    return (*notes, started) if scale == "hamlet" else notes


STUDY = Study(
    name="stages",
    title="Stages of the pandemic",
    what="Day 10 and day 14 of an Omicron outbreak, and its curve.",
    shows="table 5 and the figure of the epidemic's course",
    cells=_cells,
    draw=_draw,
    metrics=("dep", "f1", "auc"),
    columns=(EPSILON,),
    ranked=True,
    notes=_notes,
    more=_more,
)
