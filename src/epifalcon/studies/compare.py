"""``epifalcon compare``, a study with one cell, and plots shared by studies."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from epifalcon.experiments.run_folder import RECALLS, SCALINGS, MethodResult
from epifalcon.methods.registry import load_file, names
from epifalcon.progress import Progress, silent
from epifalcon.reports import study_plots
from epifalcon.reports.metric_registry import STUDY_METRICS
from epifalcon.reports.paper_values import OVERALL
from epifalcon.reports.study_plots import REFERENCES
from epifalcon.studies.scenarios import printed
from epifalcon.studies.scheduler import StudyRun, run_study
from epifalcon.studies.study import (
    ALL,
    Cell,
    Plan,
    Reference,
    Study,
    StudyPlan,
    StudyPlot,
    plan_comparison,
)
from epifalcon.studies.study_report import write_comparison
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.worker_pool import WorkerOptions
from epifalcon.types import Plain


@dataclass(frozen=True, eq=False)
class Comparison:
    """A finished comparison."""

    folder: Path
    """Holds ``report.html``, tables, figures and one run per seed."""
    result: dict[str, Any]
    """All numbers, as ``epifalcon compare --json`` prints them."""

    @property
    def table(self) -> pl.DataFrame:
        """One row per method: mean and 95 % interval of each metric over the seeds.

        Columns: ``method``, ``title``, ``kind``, ``seeds`` (finished ones), ``auc``,
        ``auc_low``, ``auc_high`` and likewise for the other metrics, ``seconds``.
        """
        rows = []
        for row in self.result["rows"]:
            values = {name: row[name] for name in ("method", "title", "kind")}
            values["seeds"] = len(row["seeds"])
            for name in self.result["metrics"]:
                over = row["metrics"][name]
                values[name] = over["mean"]
                values |= {f"{name}_{end}": over[end] for end in ("low", "high")}
            rows.append(values | {"seconds": row["seconds"]})
        return pl.DataFrame(rows, infer_schema_length=None)


def compare(
    out: str | Path,
    *,
    preset: str | None = None,
    methods: Sequence[str] | str = ALL,
    seeds: int = 5,
    first_seed: int = 0,
    overrides: Sequence[str] = (),
    sources: Sequence[str | Path] = (),
    jobs: int | None = None,
    retry: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Run methods on the same cities, outbreaks and tests; compare them over seeds.

    Each method of each seed runs in its own process. Called again, with more methods
    or seeds or after an interruption, it only computes what is missing.

    Args:
        out: Folder of the comparison.
        preset: Preset or TOML file; by default that of ``out``, or ``hamlet``.
        methods: Names of methods, or ``all``.
        seeds: Number of cities and outbreaks.
        first_seed: The first of the seeds.
        overrides: Settings such as ``"city.people=500"``.
        sources: Python files that register methods of your own.
        jobs: Processes at the same time; by default one per core.
        retry: Run failed methods again.
        progress: Called with the name of the stage and how much of it is done.

    Returns:
        The results, with ``table`` as a polars DataFrame.
    """
    files = tuple(Path(source).resolve() for source in sources)
    for file in files:
        load_file(file)
    plan = plan_comparison(
        Path(out),
        preset=preset,
        overrides=tuple(overrides),
        methods=methods if isinstance(methods, str) else ",".join(methods),
        seeds=seeds,
        first_seed=first_seed,
        sources=files,
    )
    study_plan = plan_of(plan)
    result = run_comparison(study_plan, WorkerOptions(jobs=jobs, retry=retry), progress)
    return Comparison(Path(out), result)


def run_comparison(
    study_plan: StudyPlan, workers: WorkerOptions, progress: Progress = silent
) -> dict[str, Any]:
    """Run a planned comparison, write its files and return its result."""
    result = study_result(run_study(study_plan, workers, progress, raise_errors=True))
    write_comparison(study_plan, result)
    return result


def plan_of(plan: Plan) -> StudyPlan:
    """Return the comparison as a study with one cell."""
    cell = Cell(
        label=plan.name,
        preset=plan.name,
        methods=plan.methods,
        overrides=plan.overrides,
        against=tuple(Reference(name, method=name) for name in REFERENCES),
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
    arguments = ["epifalcon", "compare", "--preset", plan.name]
    chosen = ALL if list(plan.methods) == names() else ",".join(plan.methods)
    arguments += ["--methods", chosen, "--seeds", str(len(plan.seeds))]
    if plan.seeds[0]:
        arguments += ["--first-seed", str(plan.seeds[0])]
    for option, given in (("--set", plan.overrides), ("--with", plan.sources)):
        arguments += [word for one in given for word in (option, str(one))]
    command = shlex.join([*arguments, "--out", str(plan.folder)])
    return StudyPlan(study, "", plan.seeds, (cell,), {cell.label: plan}, command)


def _more(ran: StudyRun, rows: Sequence[Plain]) -> dict[str, Any]:
    """Return the additional result entries of a comparison."""
    (cell,) = ran.study_plan.cells
    first = next(iter(_finished_results(ran, rows)), None)
    # Methods share the people of a seed, but some may have failed on some seeds.
    shares = {one["seed"]: one["prevalence"] for row in rows for one in row["by_seed"]}
    return {
        "preset": cell.preset,
        "references": [one for one in REFERENCES if one in cell.methods],
        "hidden_people": first and first.metrics["people"],
        "prevalence": sum(shares.values()) / len(shares) if shares else None,
        "extinction_recall": first and first.metrics["extinction_recall"],
        **curves_by_group(ran, rows, reliability=True),
    }


def _finished_results(ran: StudyRun, rows: Sequence[Plain]) -> list[MethodResult]:
    """Return the finished runs of ``rows``."""
    by_row = [ran.results[row["cell"]][row["method"]] for row in rows]
    runs = [one for by_seed in by_row for one in by_seed.values()]
    return [one for one in runs if isinstance(one, MethodResult)]


def _by_key(rows: Sequence[Plain], group: str) -> dict[str, Plain]:
    """Return the rows of a group by method; repeated methods by method and cell."""
    keyed: dict[str, Plain] = {}
    for row in rows:
        if row["group"] == group:
            method = row["method"]
            keyed[method if method not in keyed else f"{method}: {row['cell']}"] = row
    return keyed


def curves_by_group(
    ran: StudyRun, rows: Sequence[Plain], *, reliability: bool = False
) -> dict[str, Any]:
    """Return mean precision curves by group, optionally with reliability sums."""
    by_group: dict[str, Any] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        by_key = _by_key(rows, group)
        curves: dict[str, Any] = {}
        for key, row in by_key.items():
            runs = _finished_results(ran, [row])
            # Without infected people there is no curve.
            runs = [one for one in runs if np.isfinite(one.precision).all()]
            if runs:
                mean = np.mean([one.precision for one in runs], axis=0)
                curves[key] = {"precision": mean.tolist()}
                if reliability:
                    sums = np.sum([one.reliability for one in runs], axis=0)
                    curves[key]["reliability"] = sums.tolist()
        first = next(iter(_finished_results(ran, [*by_key.values()])), None)
        by_group[group] = {
            "recalls": RECALLS.tolist(),
            "methods": curves,
            "extinction_recall": first and first.metrics["extinction_recall"],
        }
    return {"curves": by_group}


def draw_comparison(result: Plain) -> dict[str, StudyPlot]:
    """Plot precision-recall curves and metric differences between methods."""
    plots = {}
    for number, (group, curves) in enumerate(result["curves"].items(), start=1):
        by_key = _by_key(result["rows"], group)
        rows = [{**row, "method": key} for key, row in by_key.items()]
        shares = [row["figures"]["prevalence"]["mean"] for row in rows if row["seeds"]]
        seeds = len({seed for row in rows for seed in row["seeds"]})
        over = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
        of_group = f"{group}: " if group else ""
        ending = f"-{number}" if len(result["curves"]) > 1 else ""
        intervals = "one seed: no interval, no conclusion"
        if seeds > 1:
            intervals = (
                "mean and 95 % interval over paired seeds, not adjusted for multiple "
                "comparisons (the verdicts in the tables are, by Holm's method)"
            )
        plots[f"precision-recall{ending}"] = StudyPlot(
            study_plots.precision_recall(
                rows,
                curves,
                f"{of_group}precision and recall on hidden people, {over}",
                shares[0] if shares else None,
                curves["extinction_recall"],
            ),
            f"{of_group}precision against recall on hidden people, {over}. The dotted "
            "line is the recall that would end the epidemic; the precision there is "
            "the disease extinction precision (DEP). Black is the ceiling, which is "
            "not a method.",
        )
        plots[f"differences{ending}"] = StudyPlot(
            study_plots.differences(rows, f"{of_group}{over}"),
            f"{of_group}each method's AUC minus that of HGNN and of HBP; {intervals}. "
            "A hollow dot is the ceiling, which is not a method.",
        )
    return plots


def _draw(result: Plain) -> dict[str, StudyPlot]:
    (curves,) = result["curves"].values()
    rows = [
        row
        for row in result["rows"]
        if row["method"] in curves["methods"] and row["kind"] != "ceiling"
    ]
    # References first, then the other methods by rank.
    rows.sort(key=lambda row: row["method"] not in REFERENCES)
    sums = {
        name: dict(zip(SCALINGS, curve["reliability"], strict=True))
        for name, curve in curves["methods"].items()
    }
    caption = (
        "Infected share of hidden people against their predicted risk, raw and after "
        "recalibration on masked people."
    )
    plot = StudyPlot(study_plots.reliability(rows, sums), caption)
    return draw_comparison(result) | {"reliability": plot}
