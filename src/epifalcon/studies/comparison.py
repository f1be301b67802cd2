"""``epifalcon compare`` as a function: methods over several seeds, as one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from epifalcon.methods.registry import load_file
from epifalcon.progress import Progress, silent
from epifalcon.studies.compare import plan_of
from epifalcon.studies.scheduler import run_study
from epifalcon.studies.study import ALL, StudyPlan, plan_comparison
from epifalcon.studies.study_report import write_comparison
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.worker_pool import WorkerOptions


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
