"""Figures and tables of a run: methods, privacy, forecast, and what words mean."""

from collections.abc import Sequence
from typing import Any, Final

from epifalcon.machine import peak_rss_mb
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.privacy_words import bare_channels
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
    "ece_mass": "ECE, equal groups",
}
FEW_METRICS = ("auc", "dep", "f1", "bep", "log_loss")
"""As many as a terminal of 80 columns can show."""
_MEASURES = {
    "count": "",
    "share": " in a hundred tested visitors",
    "presence": ", as slots that they spent there",
}
_FORECASTS = {
    "model": "region model",
    "last": "last value",
    "line": "linear extrapolation",
    "mean": "mean so far",
    "city": "trend of the city",
}
_UNITS = ("visit", "day", "person")
_MEANINGS = {
    "hidden": "Not tested; no method was told anything of their state.",
    "masked": "Tested, but the method told their risk without knowing their result.",
    "AUC": "Share of pairs, an infected and a healthy person, ranked rightly; 0.5 is a "
    "coin.",
    "DEP": "Precision where the recall would end the epidemic; the paper's measure.",
    "F1": "Balance of precision and recall at the best threshold, an upper end.",
    "accuracy": "Share told rightly at the best threshold; 'nobody' counts as one.",
    "BEP": "Precision when as many people are called as are infected.",
    "AP": "Mean precision over all recalls.",
    "Brier, log loss": "Errors of the risks as probabilities; lower is better.",
    "ECE, equal groups": "Calibration error: how far mean risk and infected share lie "
    "apart, in the mean over 15 groups of equally many people, from the lowest risks "
    "to the highest; lower is better.",
    "Platt, isotonic": "Two ways to recalibrate risks on masked people: by one "
    "S-shaped curve, and by a rising staircase.",
    "epsilon": "Bound on what noised channels tell of one person; beyond 10 next to "
    "nothing is ruled out.",
    "s": "Seconds of training or computing.",
}
STATISTICS: Final = {
    "radius_of_gyration_q10": "how far around the middle of its places a person is; a "
    "tenth of people is less",
    "radius_of_gyration_median": "the same; half of people is less",
    "radius_of_gyration_q90": "the same; a tenth of people is more",
    "distinct_1d": "different regions a person is in within 1 day, mean",
    "distinct_7d": "the same within 7 days",
    "distinct_14d": "the same within 14 days",
    "distinct_exponent": "how fast that number grows with time: 1 is ever new places",
    "zipf_exponent": "how steeply time falls from one's first place to the tenth",
    "jump_exponent": "how steeply moves become rarer the longer they are",
    "stay_exponent": "how steeply stays away from home become rarer the longer they "
    "are",
    "stay_away_mean": "length of a stay away from home, mean",
    "entropy": "disorder of a person's places, mean; 1 bit is two places by coin",
    "predictability": "how often the next place could be guessed at best, mean",
    "commute_q10": "from home to work; a tenth of people who work is nearer",
    "commute_median": "the same; half is nearer",
    "commute_q90": "the same; a tenth is farther",
    "copresence": "1 divided by the people in one's region, oneself among them, mean",
    "share_alone": "share of people's time with nobody else in the region",
    "occupancy_gini": "how unevenly people are spread over regions: 0 evenly, 1 all in "
    "one",
    "occupancy_top_1pct": "share of people in the fullest hundredth of regions",
    "at_home_night": "share of people at home from 2 to 5 o'clock",
    "at_home_midday": "share of people at home from 11 to 16 o'clock",
}
"""What each statistic of a city is, in plain words."""


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
        without = dict(bare_channels(spent, item.method))
        for channel, units in spent["channels"].items():
            cells = [shown_epsilon(units[unit]) for unit in _UNITS]
            what = without.get(channel)
            protection = "noise" if what is None else f"none: {what}"
            rows.append([channel, protection, *cells])
        # A channel that lost its bound stands above already, with its epsilons.
        rows += [
            [channel, f"none: {what}", *["no bound"] * 3]
            for channel, what in without.items()
            if channel not in spent["channels"]
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


def meanings_table() -> Table:
    """What the words and numbers of a run's results mean."""
    rows = [list(one) for one in _MEANINGS.items()]
    return Table("What the words mean", ["word", "meaning"], rows)


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
