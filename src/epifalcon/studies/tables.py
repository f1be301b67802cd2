"""Figures and tables of a run: methods, privacy, forecast."""

from collections.abc import Sequence
from typing import Any

from epifalcon.machine import peak_rss_mb
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.report import Table, shown_epsilon
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
FEW_METRICS = ("auc", "dep", "f1", "bep", "log_loss")
"""As many as a terminal of 80 columns can show."""
_MEASURES = {"count": "", "share": " in a hundred tested visitors"}
_FORECASTS = {
    "model": "DCRNN",
    "last": "last value",
    "line": "linear extrapolation",
    "mean": "mean so far",
    "city": "trend of the city",
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
        # Of methods that are only computed, too: the keys of a run are fixed.
        "seconds_per_round": None,
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


def methods_table(
    outcomes: Sequence[Outcome], metrics: Sequence[str] | None = None
) -> Table:
    """One row a method: its metrics on hidden people, what privacy costs, seconds.

    Every metric, or those named. Where nobody is hidden, validation people judge.
    """
    judged = outcomes[0].metrics
    if judged is None:
        caption = "Methods, by people tested but held back"
        columns, cells = ["validation AUC"], [[_validation(one)] for one in outcomes]
    else:
        caption = f"Methods on {judged.people:,} hidden people, "
        caption += f"{judged.prevalence:.1%} of them infected"
        names = tuple(_METRICS) if metrics is None else metrics
        columns = [_METRICS[name] for name in names]
        cells = [_metrics(item, names) for item in outcomes]
    rows = [
        [item.title, *found, _epsilon(item), f"{item.seconds:.1f}"]
        for item, found in zip(outcomes, cells, strict=True)
    ]
    return Table(caption, ["method", *columns, "epsilon", "s"], rows)


def privacy_table(outcomes: Sequence[Outcome]) -> Table:
    """What left devices under which protection, for each trained method."""
    rows = []
    for item in outcomes:
        spent = item.spent
        if spent is None or spent["mode"] == "off":
            continue
        for channel, units in spent["channels"].items():
            cells = [shown_epsilon(units[unit]) for unit in _UNITS]
            rows.append([channel, "noise", *cells])
        rows += [
            [one["channel"], f"none: {one['what']}", *["no bound"] * 3]
            for one in _bare(spent)
        ]
        if spent["channels"]:
            total = [shown_epsilon(spent["epsilon"][unit]) for unit in _UNITS]
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
        ahead = len(found["scores"]["model"]["mae"])
        caption = (
            f"Region model: error of its forecasts of {found['source']} cases"
            f"{_MEASURES[found['measure']]}, 1 to {ahead} days ahead"
        )
        for kind in ("mae", "rmse"):
            columns += [f"{kind.upper()} {day + 1}" for day in range(ahead)]
        for name, score in found["scores"].items():
            errors = [shown(one, 4) for one in (*score["mae"], *score["rmse"])]
            rows.append([_FORECASTS.get(name, name), *errors])
    return Table(caption, ["forecast", *columns], rows)


def shown(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def _metrics(item: Outcome, names: Sequence[str]) -> list[str]:
    return [
        "-" if item.metrics is None else shown(getattr(item.metrics, name))
        for name in names
    ]


def _validation(item: Outcome) -> str:
    return shown(None if item.trained is None else item.trained.validation_auc)


def _epsilon(item: Outcome) -> str:
    # What is only computed sees places and tests as they are.
    if item.spent is None:
        return shown_epsilon(None)
    return shown_epsilon(item.spent["epsilon"]["person"])


def _bare(spent: dict[str, Any]) -> list[dict[str, Any]]:
    """Unprotected channels that are not listed with an epsilon already."""
    return [
        one for one in spent["unprotected"] if one["channel"] not in spent["channels"]
    ]
