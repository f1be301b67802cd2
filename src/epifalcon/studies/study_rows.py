"""The result of a study: every row's figures over seeds, and its differences.

Plain values throughout, as ``table.json`` holds them, in the form of
``studies.comparison``: t intervals over seeds, differences on the same seeds,
p values adjusted by Holm for all rows that are held against one reference, in
whatever table they stand. A ceiling is no method and takes no part in that adjustment.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from epifalcon import store
from epifalcon.baselines.catalogue import entry
from epifalcon.errors import EpifalconError
from epifalcon.evaluation.uncertainty import holm, over_seeds
from epifalcon.studies.comparison import (
    LEVEL,
    METRICS,
    interval,
    limit_notes,
    pair_up,
    told_adoptions,
    told_failures,
    training_columns,
)
from epifalcon.studies.comparison_plan import Plan
from epifalcon.studies.follow_ups import Followed
from epifalcon.studies.kept_runs import ADOPTED, AFTER_CPU, UNITS
from epifalcon.studies.measurements import TRAINING, Failed, Measured
from epifalcon.studies.method_folder import PREDICTION
from epifalcon.studies.methods import FALCONS
from epifalcon.studies.study import Against, Cell
from epifalcon.studies.study_plan import Planned
from epifalcon.studies.study_running import Ran, runs_of
from epifalcon.types import Plain

CHANCE: Final = 0.05
"""A difference whose adjusted p lies below is called larger than chance."""
ON_TEST: Final = "selected on test people"
"""Part of the protocol of rows whose round was chosen on the people they are
evaluated on."""
_EPSILONS: Final = tuple(f"epsilon_{unit}" for unit in UNITS)


def study_result(ran: Ran) -> dict[str, Any]:
    """What ``epifalcon study run --json`` prints, and ``table.json`` holds."""
    planned, study = ran.planned, ran.planned.study
    rows = [
        _row(ran, cell, method) for cell in planned.cells for method in cell.methods
    ]
    for number, cell in enumerate(planned.cells):
        if any(other.label == cell.label for other in planned.cells[:number]):
            raise EpifalconError(f"study {study.name}: two cells {cell.label!r}")
    _add_differences(planned, rows)
    if study.ranked:
        order = list(dict.fromkeys(row["group"] for row in rows))
        rows.sort(key=lambda row: (order.index(row["group"]), *_rank(row)))
    return {
        "study": study.name,
        "title": study.title,
        "what": study.what,
        "shows": study.shows,
        "scale": planned.scale,
        "seeds": list(planned.seeds),
        "level": LEVEL,
        "metrics": list(study.metrics),
        "rows": rows,
        "notes": [*study.notes(planned.scale), *_failures(rows), *limit_notes(rows)],
        "made_by": planned.command,
        "adopted": _adoptions(ran),
        "cpu_hours": ran.cpu_hours,
        "versions": store.installed_versions(),
        **study.more(ran, rows),
    }


def _row(ran: Ran, cell: Cell, method: str) -> dict[str, Any]:
    by_seed = ran.measured(cell, method)
    done = {seed: one for seed, one in by_seed.items() if isinstance(one, Measured)}
    plan = ran.planned.plans[cell.label]
    flat = [
        {
            "seed": seed,
            **{name: one.metrics[name] for name in METRICS},
            **_cost(one),
            **vars(one.training),
            **_spent(one, plan, seed, method),
            **_after(ran.followed(cell, method, seed)),
            **_adopted(one),
        }
        for seed, one in done.items()
    ]
    apart = ("seed", ADOPTED, *METRICS, *TRAINING)
    extra = dict.fromkeys(key for one in flat for key in one if key not in apart)
    after = {seed: ran.followed(cell, method, seed) for seed in done}
    failed: dict[int, Any] = {**by_seed}
    failed |= {seed: one for seed, one in after.items() if isinstance(one, Failed)}
    method_title = _title(list(done.values()), method)
    return {
        "cell": cell.label,
        "group": cell.group,
        "facts": dict(cell.facts),
        "method": method,
        "title": cell.titles.get(method) or method_title,
        "method_title": method_title,
        "kind": entry(method).kind,
        "protocol": protocol(ran.planned, cell, method),
        "metrics": {name: _over(flat, name) for name in METRICS},
        "figures": {name: _over(flat, name) for name in extra},
        "published": dict(cell.published.get(method, {})) or None,
        "differences": {},
        **training_columns(list(done.values())),
        "seeds": list(done),
        "failed": told_failures(failed),
        "then": cell.then,
        "by_seed": flat,
    }


def protocol(planned: Planned, cell: Cell, method: str) -> str:
    """Return whose results the method saw, and whether test people chose its round."""
    if entry(method).kind == "ceiling":
        return "truth of others"
    settings = planned.plans[cell.label].experiment.prediction
    leaks = method == "falcon" and settings.macro_cases == "all"
    seen = "all cases" if leaks else "reported"
    if method in FALCONS and settings.stopping.selected_on == "test":
        return f"{seen}, {ON_TEST}"
    return seen


def _title(measured: Sequence[Measured], method: str) -> str:
    return measured[0].title if measured else entry(method).title


def _cost(one: Measured) -> dict[str, float | None]:
    return {
        "seconds": one.seconds,
        "cpu_seconds": one.cpu_seconds,
        "peak_rss_mb": one.peak_rss_mb,
        "prevalence": one.metrics["prevalence"],
        "hidden_people": one.metrics["people"],
    }


def _spent(
    one: Measured, plan: Plan, seed: int, method: str
) -> dict[str, float | None]:
    """Rounds and the true epsilon by unit, of methods that tell them."""
    if one.adopted is not None:
        bare = method in FALCONS and plan.experiment.privacy.mode == "off"
        # A comparison keeps no epsilons; without noise there is none to keep.
        return {**(dict.fromkeys(_EPSILONS) if bare else {}), **one.adopted.spent}
    try:
        meta = store.read_manifest(plan.place(seed, method) / PREDICTION)["meta"]
    except EpifalconError:
        return {}
    told = {**meta, **meta.get("told", {})}
    told |= told.get("spent", {})
    found: dict[str, float | None] = {}
    if told.get("looks"):
        found["rounds"] = told["looks"][-1]["round"]
    epsilon = told.get("epsilon")
    if isinstance(epsilon, Mapping):
        found |= {f"epsilon_{unit}": epsilon.get(unit) for unit in UNITS}
    return found


def _after(followed: Followed | Failed | None) -> dict[str, float | None]:
    if not isinstance(followed, Followed):
        return {}
    return {**followed.values, AFTER_CPU: followed.cpu_seconds}


def _adopted(one: Measured) -> dict[str, Any]:
    """Where the figures of a seed are from that was not run here."""
    if one.adopted is None:
        return {}
    return {ADOPTED: {"folder": one.adopted.folder, "made_by": one.adopted.made_by}}


def _over(flat: Sequence[Plain], name: str) -> dict[str, float | None]:
    return interval(over_seeds([one.get(name) for one in flat], LEVEL))


def _add_differences(planned: Planned, rows: Sequence[dict[str, Any]]) -> None:
    """Put each row's differences into it, adjusted together for a reference."""
    cells = {cell.label: cell for cell in planned.cells}
    by_key = {(row["cell"], row["method"]): row for row in rows}
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for against in cells[row["cell"]].against:
            other = by_key.get(_reference(row, against))
            if other is None or other is row or not row["by_seed"]:
                continue
            row["differences"][against.name] = _difference(planned, row, other)
            if row["kind"] != "ceiling":
                families.setdefault((other["group"], against.name), []).append(row)
    for (_, name), family in families.items():
        for metric in planned.study.metrics:
            held = [row["differences"][name][metric] for row in family]
            adjusted = holm({str(place): one["p"] for place, one in enumerate(held)})
            for place, one in enumerate(held):
                one |= {"p_holm": adjusted[str(place)], "compared": len(held)}


def _reference(row: Plain, against: Against) -> tuple[str, str]:
    return against.cell or row["cell"], against.method or row["method"]


def _difference(planned: Planned, row: Plain, other: Plain) -> dict[str, Any]:
    """The row minus the other on the seeds that both have."""
    theirs = {one["seed"]: one for one in other["by_seed"]}
    pairs = [
        (one, theirs[one["seed"]]) for one in row["by_seed"] if one["seed"] in theirs
    ]
    found = {}
    for name in planned.study.metrics:
        held = pair_up(name, pairs)
        found[name] = {
            **interval(held.difference),
            "seeds": held.difference.count,
            "wins": held.wins,
            "losses": held.losses,
            "p": held.p_t,
            "p_flip": held.p_flip,
            "p_holm": None,
            "compared": None,
        }
    return found


def _rank(row: Plain) -> tuple[bool, float]:
    auc = row["metrics"]["auc"]["mean"]
    return auc is None, 0.0 if auc is None else -auc


def _adoptions(ran: Ran) -> list[str]:
    """Which runs are from elsewhere, each told once however many cells share it."""
    measured = {}
    for cell, method, seed in runs_of(ran.planned):
        one = ran.found[cell.label][method][seed]
        if isinstance(one, Measured):
            measured[ran.planned.plans[cell.label].place(seed, method)] = one
    return told_adoptions(list(measured.values()))


def _failures(rows: Sequence[Plain]) -> list[str]:
    return [
        f"{row['title']} ({row['cell']}): {row['failed']}"
        for row in rows
        if row["failed"]
    ]
