"""``epifalcon compare``: a study with one cell, in the folder that holds its runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from epifalcon import store
from epifalcon.experiments.measurements import SCALINGS, Measured
from epifalcon.reports import study_plots
from epifalcon.reports.metrics import STUDY_METRICS
from epifalcon.reports.paper_values import OVERALL
from epifalcon.settings import json_text
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import TABLE, Against, Cell, Drawn, Study
from epifalcon.studies.study_curves import curves_by_group, draw_comparison
from epifalcon.studies.study_plan import Plan, Planned, comparison_command
from epifalcon.studies.study_report import REPORT, write_files
from epifalcon.studies.towns import printed
from epifalcon.types import Plain

REFERENCES: Final = ("hgnn", "hbp")
"""Methods that all others are compared with: nothing private, and nothing learnt."""
_PANELS = 6
_RELIABILITY = (
    "Infected share of hidden people against their predicted risk, raw and after "
    "recalibration on masked people."
)


def plan_of(plan: Plan) -> Planned:
    """Return the comparison as a study with one cell."""
    cell = Cell(
        label=plan.name,
        preset=plan.name,
        methods=plan.methods,
        overrides=plan.overrides,
        against=tuple(Against(name, method=name) for name in REFERENCES),
        published=printed(OVERALL.get(plan.name, {})),
    )
    study = Study(
        name="compare",
        title=f"Methods on {plan.name}",
        what="Methods on the same cities, outbreaks and tests, evaluated on people who "
        "were not tested.",
        shows="",
        cells=lambda _scale: [cell],
        draw=_draw,
        metrics=STUDY_METRICS,
        ranked=True,
        recalibration=True,
        more=_more,
    )
    command = comparison_command(plan)
    return Planned(study, "", plan.seeds, (cell,), {cell.label: plan}, command)


def _more(ran: StudyRun, rows: Sequence[Plain]) -> dict[str, Any]:
    """Return what the result of a comparison has beside that of any study."""
    (cell,) = ran.planned.cells
    measured = [
        one
        for by_seed in ran.results[cell.label].values()
        for one in by_seed.values()
        if isinstance(one, Measured)
    ]
    # Methods share the people of a seed, but some may have failed on some seeds.
    shares = {one["seed"]: one["prevalence"] for row in rows for one in row["by_seed"]}
    first = measured[0].metrics if measured else {}
    return {
        "preset": cell.preset,
        "references": [one for one in REFERENCES if one in cell.methods],
        "hidden_people": first.get("people"),
        "prevalence": sum(shares.values()) / len(shares) if shares else None,
        "extinction_recall": first.get("extinction_recall"),
        **curves_by_group(ran, rows, reliability=True),
    }


def _draw(result: Plain) -> dict[str, Drawn]:
    drawn = draw_comparison(result)
    (curves,) = result["curves"].values()
    rows = [row for row in result["rows"] if row["method"] in curves["methods"]]
    rows = [row for row in rows if row["kind"] != "ceiling"]
    # The references first, then the best of the others.
    rows.sort(key=lambda row: row["method"] not in REFERENCES)
    figure = study_plots.reliability(
        [
            study_plots.Diagram(
                row["title"],
                dict(
                    zip(
                        SCALINGS,
                        curves["methods"][row["method"]]["reliability"],
                        strict=True,
                    )
                ),
                row["left_raw"],
            )
            for row in rows[:_PANELS]
        ]
    )
    if figure is not None:
        drawn["reliability"] = Drawn(figure, _RELIABILITY)
    return drawn


def keep_comparison(planned: Planned, result: Plain) -> Path:
    """Write the files of the comparison into its folder; return its page.

    What is there already and is the same is left as it is.
    """
    (plan,) = planned.comparisons
    stored = plan.folder / f"{TABLE}.json"
    with store.writing(plan.folder):
        before = stored.read_text(encoding="utf-8") if stored.is_file() else ""
        # What findings and plots add stands behind the result.
        if not before.startswith(json_text(result, indent=1)[:-2]):
            stored.unlink(missing_ok=True)
            write_files(plan.folder, planned, result)
    return plan.folder / REPORT
