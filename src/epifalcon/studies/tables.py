"""Figures and tables of a run: methods, privacy, forecast."""

import resource
import sys
from collections.abc import Sequence
from typing import Any

from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.report import Table
from epifalcon.studies.run_folder import Begun
from epifalcon.studies.summaries import outbreak_figures

_METRICS = {
    "auc": "AUC",
    "dep": "DEP",
    "f1": "F1",
    "accuracy": "accuracy",
    "bep": "BEP",
    "average_precision": "AP",
    "brier": "Brier",
    "log_loss": "log loss",
    "ece": "ECE",
}
_FORECASTS = {
    "model": "DCRNN",
    "last": "last value",
    "line": "linear extrapolation",
    "mean": "mean so far",
}
_UNITS = ("visit", "day", "person")


def run_figures(begun: Begun, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What ``epifalcon run --json`` prints, apart from the mobility statistics."""
    prepared, traces = begun.prepared, begun.prepared.traces
    first = outcomes[0].as_plain()
    metrics = first.pop("metrics")
    figures: dict[str, Any] = {
        "preset": prepared.name,
        "seed": begun.seed,
        "people": traces.people,
        "regions": len(traces.regions),
        "slots": traces.slots,
        "tested": int(begun.known.tested.sum()),
        "share_reported": begun.reported.observed_share,
        **first,
        "metrics": metrics,
        "prevalence": None if metrics is None else metrics["prevalence"],
        "epsilon": first.get("epsilon", dict.fromkeys(_UNITS)),
        "peak_rss_mb": peak_rss_mb(),
        "beside": {item.method: item.as_plain() for item in outcomes[1:]},
    }
    if begun.epidemic is not None:
        figures["outbreak"] = outbreak_figures(
            prepared.experiment, traces, [begun.epidemic], prepared.name
        )
    return figures


def methods_table(outcomes: Sequence[Outcome]) -> Table:
    """One row a method: every metric on hidden people, and what privacy costs."""
    rows = [
        [item.title, *_metrics(item), _epsilon(item), f"{item.seconds:.1f}"]
        for item in outcomes
    ]
    columns = ["method", *_METRICS.values(), "epsilon", "s"]
    judged = outcomes[0].metrics
    caption = "Methods" if judged is None else f"Methods on {judged.people:,} hidden"
    if judged is not None:
        caption += f" people, {judged.prevalence:.1%} of them infected"
    return Table(caption, columns, rows)


def privacy_table(outcomes: Sequence[Outcome]) -> Table:
    """What left devices under which protection, for each trained method."""
    rows = []
    for item in outcomes:
        if item.trained is None or item.trained.spent["mode"] == "off":
            continue
        spent = item.trained.spent
        for channel, units in spent["channels"].items():
            cells = [_spent(units[unit]) for unit in _UNITS]
            rows.append([channel, "noise", *cells])
        rows += [[one["channel"], one["what"], *["-"] * 3] for one in _bare(spent)]
        if spent["channels"]:
            total = [_spent(spent["epsilon"][unit]) for unit in _UNITS]
            rows.append(["all noised channels", f"delta {spent['delta']:g}", *total])
    return Table(
        "What left people's devices, and the true epsilon of it",
        ["channel", "protection", *(f"a {unit}" for unit in _UNITS)],
        rows,
    )


def forecast_table(outcomes: Sequence[Outcome]) -> Table:
    """The region model's forecasts beside simple ones, by days ahead."""
    rows: list[list[str]] = []
    columns: list[str] = []
    caption = "Region model"
    for item in outcomes:
        if item.trained is None or item.trained.forecast is None:
            continue
        found = item.trained.forecast
        caption = f"Region model: error of its forecasts of {found['source']} cases"
        ahead = len(found["scores"]["model"]["mae"])
        for kind in ("mae", "rmse"):
            columns += [f"{kind.upper()}, day {day + 1}" for day in range(ahead)]
        for name, score in found["scores"].items():
            errors = [*score["mae"], *score["rmse"]]
            rows.append([_FORECASTS[name], *(f"{error:.4f}" for error in errors)])
    return Table(caption, ["forecast", *columns], rows)


def shown(value: float | None) -> str:
    """A metric with three digits."""
    return "-" if value is None else f"{value:.3f}"


def peak_rss_mb() -> float:
    """The most memory that this process has held, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1024)


def _metrics(item: Outcome) -> list[str]:
    return [
        "-" if item.metrics is None else shown(getattr(item.metrics, name))
        for name in _METRICS
    ]


def _epsilon(item: Outcome) -> str:
    if item.trained is None:
        return "-"
    return _spent(item.trained.spent["epsilon"]["person"])


def _spent(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:,.4g}"


def _bare(spent: dict[str, Any]) -> list[dict[str, Any]]:
    """Unprotected channels that are not listed with an epsilon already."""
    return [
        one for one in spent["unprotected"] if one["channel"] not in spent["channels"]
    ]
