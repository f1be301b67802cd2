"""The result of a comparison: each method's figures over seeds, and differences.

Plain values throughout, as ``comparison.json`` holds them. Means and intervals
are of ``evaluation.uncertainty``: t intervals over seeds, differences on the same
seeds, p values adjusted by Holm for all methods that one reference is held
against. The ceiling is no method and takes no part in that adjustment.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from epifalcon import store
from epifalcon.baselines.catalogue import entry
from epifalcon.evaluation.uncertainty import Paired, Summary, holm, over_seeds, paired
from epifalcon.studies.comparing import Found
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.measurements import (
    CALIBRATED,
    RECALLS,
    SCALINGS,
    TRAINING,
    Failed,
    Measured,
)
from epifalcon.studies.published_tables import OVERALL
from epifalcon.types import Plain

METRICS: Final = (
    "auc",
    "dep",
    "f1",
    "accuracy",
    "bep",
    "average_precision",
    "brier",
    "log_loss",
    "ece",
    "precision_at_budget",
)
LOWER_WINS: Final = ("brier", "log_loss", "ece")
"""Metrics of which less is better."""
REFERENCES: Final = ("hbp", "hgnn")
"""Whom all methods are held against: nothing learnt, and nothing private."""
LEVEL: Final = 0.95
_BOUND = "oracle"
"""What no method passes honestly; other ceilings are told a part of the truth."""


def comparison(plan: Plan, found: Found) -> dict[str, Any]:
    """What ``epifalcon compare --json`` prints: ``rows``, the best AUC first."""
    rows = [_row(plan, method, by_seed) for method, by_seed in found.items()]
    for reference in REFERENCES:
        _add_differences(rows, reference)
    rows.sort(key=_rank)
    first = next((one for one in _all_measured(found)), None)
    shared: Mapping[str, Any] = {} if first is None else first.metrics
    return {
        "rows": rows,
        "preset": plan.name,
        "seeds": list(plan.seeds),
        "level": LEVEL,
        "references": [one for one in REFERENCES if one in plan.methods],
        "hidden_people": shared.get("people"),
        "prevalence": _mean_of(found, lambda one: one.metrics["prevalence"]),
        "extinction_recall": shared.get("extinction_recall"),
        "notes": [*_notes(rows), *told_adoptions(_all_measured(found))],
        "made_by": plan.command,
        "versions": store.installed_versions(),
    }


def curves(found: Found) -> dict[str, Any]:
    """What figures draw: ``recalls``, and by method what seeds give together.

    ``precision`` at each recall is the mean over seeds, ``reliability`` the sum;
    a method without figures, or without infected people to find, is left out.
    An adopted seed has the mean of all seeds that were kept with it, so it counts
    only beside all of them: their mean is then theirs.
    """
    drawn: dict[str, Any] = {}
    for method, by_seed in found.items():
        held = [one for one in by_seed.values() if isinstance(one, Measured)]
        held = [one for one in held if np.isfinite(one.precision).all()]
        held = [one for one in held if _curve_is_of(one, by_seed)]
        if held:
            drawn[method] = {
                "precision": np.mean([one.precision for one in held], axis=0).tolist(),
                "reliability": np.sum(
                    [one.reliability for one in held], axis=0
                ).tolist(),
            }
    return {"recalls": RECALLS.tolist(), "methods": drawn}


def _curve_is_of(one: Measured, by_seed: Mapping[int, Measured | Failed]) -> bool:
    """Whether the curve is of this seed, or a mean whose seeds all stand here."""
    if one.adopted is None:
        return True
    beside = (by_seed.get(seed) for seed in one.adopted.seeds)
    return all(
        isinstance(other, Measured)
        and other.adopted is not None
        and other.adopted.seeds == one.adopted.seeds
        for other in beside
    )


def told_adoptions(measured: Sequence[Measured]) -> list[str]:
    """A line for each source of figures that were not measured here."""
    runs = Counter(
        (one.adopted.folder, one.adopted.made_by)
        for one in measured
        if one.adopted is not None
    )
    return [
        f"{count} of {len(measured)} runs are not new but adopted from {folder}, made "
        f"by: {made_by}"
        for (folder, made_by), count in runs.items()
    ]


def _row(
    plan: Plan, method: str, by_seed: Mapping[int, Measured | Failed]
) -> dict[str, Any]:
    listed = entry(method)
    done = {seed: one for seed, one in by_seed.items() if isinstance(one, Measured)}
    measured = list(done.values())
    values = {
        name: [_value(by_seed[seed], name) for seed in plan.seeds] for name in METRICS
    }
    return {
        "method": method,
        "title": measured[0].title if measured else listed.title,
        "kind": listed.kind,
        "metrics": {name: interval(over_seeds(values[name])) for name in METRICS},
        "seconds": _mean([one.seconds for one in measured]),
        "cpu_seconds": _mean([one.cpu_seconds for one in measured]),
        "peak_rss_mb": _most([one.peak_rss_mb for one in measured]),
        **training_columns(measured),
        "failed": told_failures(by_seed),
        "seeds": list(done),
        "by_seed": [
            {
                "seed": seed,
                **{name: one.metrics[name] for name in METRICS},
                **vars(one.training),
            }
            for seed, one in done.items()
        ],
        "differences": {},
        "recalibrated": {
            scaling: _recalibrated(measured, scaling) for scaling in SCALINGS
        },
        "masked": _mean([one.masked for one in measured]),
        "left_raw": next((one.left_raw for one in measured if one.left_raw), None),
        "published": _published(plan.name, method),
    }


def training_columns(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return ``TRAINING`` of one row: lists by seed, and if any run hit its limit.

    The lists have the order of the row's ``seeds``; None for untrained methods.
    """

    def by_seed(name: str) -> list[Any] | None:
        values = [getattr(one.training, name) for one in measured]
        return values if any(value is not None for value in values) else None

    limits = by_seed("at_limit")
    return {
        "learning_rate": by_seed("learning_rate"),
        "steps": by_seed("steps"),
        "at_limit": None if limits is None else any(limits),
    }


def training_cells(row: Plain) -> list[str]:
    """Return ``TRAINING`` of a row as CSV cells; values of seeds are spaced apart."""
    cells = []
    for name in TRAINING:
        # Tables written before these columns existed lack them.
        value = row.get(name)
        values = value if isinstance(value, list) else [value]
        cells.append("" if value is None else " ".join(map(json.dumps, values)))
    return cells


def limit_notes(rows: Sequence[Plain]) -> list[str]:
    """Return one note that names the methods whose best step was their last."""
    at_limit, runs = Counter[str](), Counter[str]()
    for row in rows:
        for one in row["by_seed"]:
            runs[row["title"]] += 1
            at_limit[row["title"]] += bool(one.get("at_limit"))
    named = [
        f"{title} ({count} of {runs[title]} runs)"
        for title, count in at_limit.items()
        if count
    ]
    if not named:
        return []
    told = ", ".join(named)
    return [f"Still improving at the limit of training steps: {told}"]


def _add_differences(rows: Sequence[dict[str, Any]], reference: str) -> None:
    """Put each row's difference to ``reference`` into it; None where none can be."""
    theirs = next((row for row in rows if row["method"] == reference), None)
    for row in rows:
        row["differences"][reference] = None
        if theirs is not None and row is not theirs and row["by_seed"]:
            row["differences"][reference] = _difference(row, theirs)
    others = [row for row in rows if row["differences"][reference] is not None]
    judged = [row for row in others if row["kind"] != "ceiling"]
    for name in METRICS:
        adjusted = holm(
            {row["method"]: row["differences"][reference][name]["p"] for row in judged}
        )
        for row in others:
            held = row["differences"][reference][name]
            held["p_holm"] = adjusted.get(row["method"])


def pair_up(name: str, pairs: Sequence[tuple[Plain, Plain]]) -> Paired:
    """The metric ``name`` of one row minus that of another, seed by seed."""
    ours, theirs = [a[name] for a, _ in pairs], [b[name] for _, b in pairs]
    return paired(ours, theirs, LEVEL, lower_wins=name in LOWER_WINS)


def _difference(row: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Ours minus theirs on the seeds that both have."""
    other = {one["seed"]: one for one in theirs["by_seed"]}
    pairs = [
        (one, other[one["seed"]]) for one in row["by_seed"] if one["seed"] in other
    ]
    found = {}
    for name in METRICS:
        held = pair_up(name, pairs)
        found[name] = {
            **interval(held.difference),
            "seeds": held.difference.count,
            "wins": held.wins,
            "losses": held.losses,
            "p": held.p_t,
            "p_flip": held.p_flip,
        }
    return found


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader of the table must know."""
    notes = [f"{row['title']}: {row['failed']}" for row in rows if row["failed"]]
    notes += limit_notes(rows)
    for ceiling in (row for row in rows if row["method"] == _BOUND):
        for row in rows:
            if row["kind"] == "ceiling" or not row["by_seed"]:
                continue
            gap = _difference(row, ceiling)["auc"]
            if gap["low"] is not None and gap["low"] > 0:
                notes.append(
                    f"{row['title']} is above the ceiling {ceiling['title']}: "
                    "look for a leak of hidden labels"
                )
    return notes


def _rank(row: dict[str, Any]) -> tuple[bool, float, str]:
    """The best AUC first; who has none last."""
    auc = row["metrics"]["auc"]["mean"]
    return auc is None, 0.0 if auc is None else -auc, row["method"]


def _value(one: Measured | Failed, name: str) -> float | None:
    return one.metrics[name] if isinstance(one, Measured) else None


def interval(summary: Summary) -> dict[str, float | None]:
    """Mean and ends of the interval, as JSON holds them."""
    plain = asdict(summary)
    return {key: plain[key] for key in ("mean", "low", "high")}


def _recalibrated(measured: Sequence[Measured], scaling: str) -> dict[str, Any]:
    return {
        name: interval(
            over_seeds([one.recalibrated[scaling][name] for one in measured])
        )
        for name in CALIBRATED
    }


def told_failures(by_seed: Mapping[int, Any]) -> str | None:
    """Each message once, with the seeds that it is of."""
    seeds: dict[str, list[str]] = {}
    for seed, one in by_seed.items():
        if isinstance(one, Failed):
            told = " ".join(one.message.split())
            seeds.setdefault(told, []).append(str(seed))
    if not seeds:
        return None
    return "; ".join(
        f"seed{'s' * (len(which) > 1)} {', '.join(which)}: {told}"
        for told, which in seeds.items()
    )


def _published(preset: str, method: str) -> dict[str, float] | None:
    """The paper's figures for this preset, where it has any."""
    row = OVERALL.get(preset, {}).get(method.replace("-", "_"))
    if row is None:
        return None
    return {name: value for name, value in vars(row).items() if value is not None}


def _all_measured(found: Found) -> list[Measured]:
    rows = (one for by_seed in found.values() for one in by_seed.values())
    return [one for one in rows if isinstance(one, Measured)]


def _mean_of(found: Found, of: Callable[[Measured], float]) -> float | None:
    """Over the seeds that some method has: all methods share a seed's people."""
    by_seed: dict[int, float] = {}
    for one in found.values():
        for seed, held in one.items():
            if isinstance(held, Measured):
                by_seed[seed] = of(held)
    return _mean(list(by_seed.values()))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
