"""Rows of a study's result: metrics over seeds, and differences to references.

The result has plain values, as in ``table.json``: t intervals over seeds, paired
differences, and p values adjusted by Holm over all rows compared with one reference,
without ceilings.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from epifalcon import store
from epifalcon.errors import EpifalconError
from epifalcon.evaluation.uncertainty import LEVEL, Summary, holm, over_seeds, paired
from epifalcon.experiments.run_folder import (
    CALIBRATED,
    PREDICTION,
    SCALINGS,
    TRAINING,
    FollowUpResult,
    MethodFailure,
    MethodResult,
)
from epifalcon.methods.registry import entry
from epifalcon.privacy.events import UNITS
from epifalcon.reports.metric_registry import METRICS as REGISTRY
from epifalcon.reports.metric_registry import STUDY_METRICS as METRICS
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import Cell, Plan, StudyPlan
from epifalcon.types import Plain

CHANCE: Final = 0.05
"""Significance level: a difference with a smaller adjusted p is significant."""


def study_result(ran: StudyRun) -> dict[str, Any]:
    """Return the result that ``--json`` prints and ``table.json`` stores."""
    study_plan, study = ran.study_plan, ran.study_plan.study
    rows = [
        _row(ran, cell, method) for cell in study_plan.cells for method in cell.methods
    ]
    _add_differences(study_plan, rows)
    if study.ranked:
        order = list(dict.fromkeys(row["group"] for row in rows))

        def rank(row: Plain) -> tuple[int, bool, float]:
            auc = row["metrics"]["auc"]["mean"]
            return order.index(row["group"]), auc is None, -(auc or 0.0)

        rows.sort(key=rank)
    return {
        "study": study.name,
        "title": study.title,
        "what": study.what,
        "shows": study.shows,
        "scale": study_plan.scale,
        "seeds": list(study_plan.seeds),
        "level": LEVEL,
        "metrics": list(study.metrics),
        "rows": rows,
        "notes": [
            *study.notes,
            *study.scale_notes.get(study_plan.scale, ()),
            *_fixed_seeds(study_plan, rows),
            *_failures(rows),
            *_limit_notes(rows),
            *_leaks(study_plan, rows),
        ],
        "made_by": study_plan.command,
        "cpu_hours": ran.cpu_hours,
        "versions": store.installed_versions(),
        **(study.more(ran, rows) if study.more else {}),
    }


def _row(ran: StudyRun, cell: Cell, method: str) -> dict[str, Any]:
    by_seed = ran.results[cell.label][method]
    runs = by_seed.items()
    done = {seed: item for seed, item in runs if isinstance(item, MethodResult)}
    results = list(done.values())
    plan = ran.study_plan.plans[cell.label]
    after = {seed: ran.follow_up(cell, method, seed) for seed in done}
    flat = [
        {
            "seed": seed,
            **{name: item.metrics[name] for name in METRICS},
            "seconds": item.seconds,
            "cpu_seconds": item.cpu_seconds,
            "peak_rss_mb": item.peak_rss_mb,
            "prevalence": item.metrics["prevalence"],
            "mean_risk": item.metrics["mean_risk"],
            "calibration_slope": item.metrics.get("calibration_slope"),
            "hidden_people": item.metrics["people"],
            **item.training,
            **_spent(plan, seed, method),
            **(
                follow_up.row_values
                if isinstance(follow_up := after[seed], FollowUpResult)
                else {}
            ),
        }
        for seed, item in done.items()
    ]
    apart = ("seed", *METRICS, *TRAINING)
    extra = dict.fromkeys(key for item in flat for key in item if key not in apart)
    values = {name: _over(one.get(name) for one in flat) for name in extra}
    method_title = results[0].title if results else entry(method).title
    peaks = [item.peak_rss_mb for item in results if item.peak_rss_mb is not None]
    return {
        "cell": cell.label,
        "group": cell.group,
        "facts": dict(cell.facts),
        "method": method,
        "title": cell.titles.get(method) or method_title,
        "method_title": method_title,
        "kind": entry(method).kind,
        "protocol": protocol(ran.study_plan, cell, method),
        "metrics": {name: _over(one[name] for one in flat) for name in METRICS},
        "figures": values,
        "seconds": values["seconds"]["mean"] if values else None,
        "cpu_seconds": values["cpu_seconds"]["mean"] if values else None,
        "peak_rss_mb": max(peaks, default=None),
        "published": dict(cell.published.get(method, {})) or None,
        "differences": {},
        "recalibrated": {
            scaling: {
                name: _over(item.recalibrated[scaling][name] for item in results)
                for name in CALIBRATED
            }
            for scaling in SCALINGS
        },
        "masked": _over(item.masked for item in results)["mean"],
        "left_raw": next((item.left_raw for item in results if item.left_raw), None),
        **_training(results),
        "seeds": list(done),
        "failed": _failure_text({**by_seed, **after}),
        "then": cell.then,
        "by_seed": flat,
    }


def protocol(study_plan: StudyPlan, cell: Cell, method: str) -> str:
    """Return whose cases the method saw, and whether test people chose its round."""
    if entry(method).is_ceiling:
        return "truth of others"
    if not entry(method).trains_in_rounds:
        return "reported"
    settings = study_plan.plans[cell.label].experiment.prediction_of(method)
    seen = "all cases" if settings.macro_cases == "all" else "reported"
    if settings.stopping.selected_on == "test":
        return f"{seen}, selected on test people"
    return seen


def _spent(plan: Plan, seed: int, method: str) -> dict[str, float | None]:
    """Return the number of rounds and the epsilon per unit, if reported."""
    try:
        meta = store.read_manifest(plan.place(seed, method) / PREDICTION)["meta"]
    except EpifalconError:
        return {}
    details = {**meta, **meta.get("told", {})}
    details |= details.get("spent", {})
    values: dict[str, float | None] = {}
    if details.get("looks"):
        values["rounds"] = details["looks"][-1]["round"]
    epsilon = details.get("epsilon")
    if isinstance(epsilon, Mapping):
        values |= {f"epsilon_{unit}": epsilon.get(unit) for unit in UNITS}
    return values


def _over(values: Iterable[float | None]) -> dict[str, float | None]:
    return _interval(over_seeds(list(values)))


def _interval(summary: Summary) -> dict[str, float | None]:
    return {"mean": summary.mean, "low": summary.low, "high": summary.high}


def _add_differences(study_plan: StudyPlan, rows: Sequence[dict[str, Any]]) -> None:
    """Add differences to each row, with p values adjusted per reference."""
    cells = {cell.label: cell for cell in study_plan.cells}
    by_key = {(row["cell"], row["method"]): row for row in rows}
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for against in cells[row["cell"]].against:
            cell, method = against.cell or row["cell"], against.method or row["method"]
            other = by_key.get((cell, method))
            if other is None or other is row or not row["by_seed"]:
                continue
            row["differences"][against.name] = _difference(study_plan, row, other)
            if row["kind"] != "ceiling":
                families.setdefault((other["group"], against.name), []).append(row)
    for (_, name), family in families.items():
        for metric in study_plan.study.metrics:
            gaps = [row["differences"][name][metric] for row in family]
            adjusted = holm({str(place): gap["p"] for place, gap in enumerate(gaps)})
            for place, gap in enumerate(gaps):
                gap |= {"p_holm": adjusted[str(place)], "compared": len(gaps)}


def _difference(study_plan: StudyPlan, row: Plain, other: Plain) -> dict[str, Any]:
    """Return paired differences of two rows on their common seeds, by metric."""
    theirs = {one["seed"]: one for one in other["by_seed"]}
    ours = {one["seed"]: one for one in row["by_seed"] if one["seed"] in theirs}
    differences = {}
    for name in study_plan.study.metrics:
        pairs = paired(
            [one[name] for one in ours.values()],
            [theirs[seed][name] for seed in ours],
            lower_wins=REGISTRY[name].lower_is_better,
        )
        differences[name] = {
            **_interval(pairs.difference),
            "seeds": pairs.difference.count,
            "wins": pairs.wins,
            "losses": pairs.losses,
            "p": pairs.p_t,
            "p_flip": pairs.p_flip,
            "p_holm": None,
            "compared": None,
        }
    return differences


def _leaks(study_plan: StudyPlan, rows: Sequence[Plain]) -> list[str]:
    """Return a note for each method significantly above the oracle of its cell."""
    if "auc" not in study_plan.study.metrics:
        return []
    bounds = [row for row in rows if entry(row["method"]).bounds_methods]
    honest = [row for row in rows if row["protocol"] == "reported" and row["by_seed"]]
    return [
        f"{row['title']} is above the ceiling {bound['title']}: check for a leak of "
        "hidden labels"
        for bound in bounds
        for row in honest
        if row["cell"] == bound["cell"]
        and (_difference(study_plan, row, bound)["auc"]["low"] or 0) > 0
    ]


def _fixed_seeds(study_plan: StudyPlan, rows: Sequence[Plain]) -> list[str]:
    """Return a note if privacy noise was drawn from the seeds of the study."""
    drawn = any(
        study_plan.plans[row["cell"]].experiment.is_private(row["method"])
        for row in rows
    )
    return ["Noise comes from fixed seeds: NOT PRIVATE"] if drawn else []


def _failures(rows: Sequence[Plain]) -> list[str]:
    several = len({row["cell"] for row in rows}) > 1
    return [
        row["title"] + (f" ({row['cell']})" if several else "") + f": {row['failed']}"
        for row in rows
        if row["failed"]
    ]


def _training(results: Sequence[MethodResult]) -> dict[str, Any]:
    """Return ``TRAINING`` of one row: lists by seed, and whether a limit was hit."""
    training: dict[str, Any] = {}
    for name in TRAINING:
        values = [one.training.get(name) for one in results]
        training[name] = values if any(value is not None for value in values) else None
    if training["at_limit"] is not None:
        training["at_limit"] = any(training["at_limit"])
    return training


def _limit_notes(rows: Sequence[Plain]) -> list[str]:
    """Return one note naming the methods whose best training step was the last."""
    at_limit, runs = Counter[str](), Counter[str]()
    for row in rows:
        for one in row["by_seed"]:
            runs[row["title"]] += 1
            at_limit[row["title"]] += bool(one.get("at_limit"))
    named = ", ".join(
        f"{title} ({count} of {runs[title]} runs)"
        for title, count in at_limit.items()
        if count
    )
    return [f"Still improving at the limit of training steps: {named}"] if named else []


def _failure_text(by_seed: Mapping[int, Any]) -> str | None:
    """Return each distinct failure message with its seeds; None without failures."""
    seeds: dict[str, list[str]] = {}
    for seed, one in by_seed.items():
        if isinstance(one, MethodFailure):
            seeds.setdefault(" ".join(one.message.split()), []).append(str(seed))
    parts = [
        f"seed{'s' * (len(which) > 1)} {', '.join(which)}: {message}"
        for message, which in seeds.items()
    ]
    return "; ".join(parts) or None
