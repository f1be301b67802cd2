"""Precision-recall curves and differences for studies that compare all methods."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from epifalcon.experiments.measurements import RECALLS, Measured
from epifalcon.reports import study_plots
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import Drawn, drawn, keyed
from epifalcon.types import Plain


def curves_by_group(
    ran: StudyRun, rows: Sequence[Plain], *, reliability: bool = False
) -> dict[str, Any]:
    """Return what ``draw_comparison`` draws, by group: ``curves``.

    Precision at each recall is the mean over seeds; the sums of the reliability
    diagram, on request, are those of all seeds.
    """
    found: dict[str, Any] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        by_key = {
            key: ran.results[row["cell"]][row["method"]]
            for key, row in keyed(mine).items()
        }
        curves: dict[str, Any] = {}
        for key, by_seed in by_key.items():
            held = [one for one in by_seed.values() if isinstance(one, Measured)]
            # Without infected people there is no curve.
            held = [one for one in held if np.isfinite(one.precision).all()]
            if held:
                mean = np.mean([one.precision for one in held], axis=0)
                curves[key] = {"precision": mean.tolist()}
                if reliability:
                    sums = np.sum([one.reliability for one in held], axis=0)
                    curves[key]["reliability"] = sums.tolist()
        recalls = [
            one.metrics["extinction_recall"]
            for by_seed in by_key.values()
            for one in by_seed.values()
            if isinstance(one, Measured)
        ]
        found[group] = {
            "recalls": RECALLS.tolist(),
            "methods": curves,
            "extinction_recall": recalls[0] if recalls else None,
        }
    return {"curves": found}


def draw_comparison(result: Plain) -> dict[str, Drawn]:
    """Draw precision and recall, and differences, of each group."""
    pictures: dict[str, Drawn] = {}
    for number, (group, kept) in enumerate(result["curves"].items(), start=1):
        rows = [row for row in result["rows"] if row["group"] == group]
        named = [{**row, "method": key} for key, row in keyed(rows).items()]
        shares = [row["figures"]["prevalence"]["mean"] for row in rows if row["seeds"]]
        seeds = len({seed for row in rows for seed in row["seeds"]})
        over = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
        of_group = f"{group}: " if group else ""
        ending = f"-{number}" if len(result["curves"]) > 1 else ""
        intervals = (
            "mean and 95 % intervals over paired seeds, not adjusted for several "
            "comparisons (the verdict in the tables is, by Holm)"
            if seeds > 1
            else "one seed: no interval, nothing may be claimed"
        )
        pictures |= drawn(
            f"precision-recall{ending}",
            study_plots.precision_recall(
                study_plots.method_lines(named, kept),
                f"{of_group}precision and recall on hidden people, {over}",
                shares[0] if shares else None,
                kept["extinction_recall"],
            ),
            f"{of_group}precision against recall on hidden people, {over}. The dotted "
            "line is the recall that would end the epidemic; the precision there is "
            "DEP. Black is the ceiling, which is not a method.",
        ) | drawn(
            f"differences{ending}",
            study_plots.differences(named, f"{of_group}{over}"),
            f"{of_group}each method's AUC minus that of HGNN and of HBP; {intervals}. "
            "A hollow dot is the ceiling, which is not a method.",
        )
    return pictures
