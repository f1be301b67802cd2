"""Numbers of a run and of outbreaks: for JSON, as tables and as sentences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from epifalcon.epidemic.outbreak import ASYMPTOMATIC, SYMPTOMATIC
from epifalcon.epidemic.reproduction_number import empirical_r0, hazard_r0
from epifalcon.evaluation.metrics import MetricSettings
from epifalcon.evaluation.uncertainty import Interval, auc_difference, auc_interval
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import RunInputs
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.experiments.simulation import Epidemic
from epifalcon.machine import peak_rss_mb
from epifalcon.methods.registry import entry
from epifalcon.mobility.statistics import DEFINITIONS
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.events import UNITS
from epifalcon.reports import formats
from epifalcon.reports.metric_registry import METRICS, RUN_METRICS
from epifalcon.reports.paper_values import DAILY_INFECTIOUS, INFECTED_SHARE
from epifalcon.reports.privacy_card import Guarantee, channel_table
from epifalcon.reports.tables import Table
from epifalcon.streams import Streams

_ROUGH = 0.2
"""Calibration error, as a share of the prevalence, of rough probabilities."""
_CASE_MEASURES = {
    "count": "",
    "share": " per hundred tested visitors",
    "presence": ", as slots spent there",
}
_HANDFUL = 20
"""Fewer positive results do not show which of two methods ranks better."""
_CHANCE = 0.5
"""AUC by chance."""
_FORECASTS = {
    "model": "region model",
    "last": "last value",
    "line": "linear extrapolation",
    "mean": "mean so far",
    "city": "trend of the city",
}


def run_summary(inputs: RunInputs, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the values of ``epifalcon run --json`` without mobility statistics."""
    prepared, traces = inputs.prepared, inputs.prepared.traces
    first = outcomes[0].as_plain()
    metrics = first.pop("metrics")
    values: dict[str, Any] = {
        "preset": prepared.name,
        "seed": inputs.seed,
        "people": traces.people,
        "regions": len(traces.regions),
        "slots": traces.slots,
        "tested": int(inputs.known.tested.sum()),
        "pathogen": prepared.experiment.pathogen.name,
        "share_reported": inputs.reported.observed_share,
        # Also for methods that are not trained: the keys of a run are fixed.
        "seconds_per_round": None,
        **first,
        "insecure_seed": any(item.insecure_seed for item in outcomes),
        "simulated_on_real_people": inputs.simulated_on_real_people,
        "metrics": metrics,
        "prevalence": None if metrics is None else metrics["prevalence"],
        "epsilon": first.get("epsilon", dict.fromkeys(UNITS)),
        "peak_rss_mb": peak_rss_mb(),
        "beside": {item.method: item.as_plain() for item in outcomes[1:]},
    }
    if inputs.epidemic is not None:
        values["outbreak"] = outbreak_summary(
            prepared.experiment, traces, [inputs.epidemic], prepared.name
        )
    return values


_RATES = {
    "r0": "R0 {:.2g}",
    "seed_share": "share infected at the start {:.2g}",
    "latent_days": "days from infection to being infectious {:.2g}",
    "infectious_days": "days infectious {:.2g}",
}
"""Texts of estimated rates, by their name in the diagnostics."""


def disease(inputs: RunInputs, outcome: Outcome) -> str:
    """Describe the disease and its assumed or estimated rates, in sentences."""
    pathogen, found = inputs.prepared.experiment.pathogen, outcome.diagnostics
    if not entry(outcome.method).uses_pathogen:
        return f"Disease: {pathogen.name}. {outcome.title} does not use its rates."
    if (rates := found.get("rates")) is not None and inputs.shareable is None:
        given = {"latent_days": 1 / pathogen.alpha, "infectious_days": 1 / pathogen.mu}
        assumed = [
            f"{_RATES[name].format(value)} (assumed)"
            for name, value in given.items()
            if name not in rates
        ]
        estimated = [
            f"{_RATES[name].format(value)} [{low:.3g}, {high:.3g}]"
            for name, (value, low, high) in rates.items()
        ]
        return (
            f"Disease: {pathogen.name}. Estimated, with 90 % intervals: "
            f"{', '.join(estimated + assumed)}."
        )
    rates_text = (
        f"{1 / pathogen.alpha:.1f} days from infection to being infectious, "
        f"{1 / pathogen.mu:.1f} days infectious, R0 {pathogen.r0:.1f}"
    )
    if pathogen.is_unknown:
        return (
            f"Disease: unknown. {outcome.title} did not estimate its rates and used "
            f"those of a typical respiratory infection: {rates_text}."
        )
    return f"Disease: {pathogen.name} (assumed: {rates_text})."


def methods_table(
    outcomes: Sequence[Outcome], metrics: Sequence[str] = RUN_METRICS
) -> Table:
    """Return one row per method: metrics on hidden people, epsilon, seconds.

    If nobody is hidden, the accuracy on tested people.
    """
    scored = outcomes[0].metrics
    if scored is None:
        return accuracy_table(outcomes)
    caption = f"Methods on {scored.people:,} hidden people, "
    caption += f"{scored.prevalence:.1%} of them infected"
    columns = [METRICS[name].title for name in metrics]
    rows = []
    for outcome in outcomes:
        values = [getattr(outcome.metrics, name, None) for name in metrics]
        cells = [formats.number(value) for value in values]
        # A method without a ledger uses places and tests without protection.
        spent = outcome.spent
        epsilon = None if spent is None else spent["epsilon"]["person"]
        cells += [formats.epsilon(epsilon), f"{outcome.seconds:.1f}"]
        rows.append([outcome.title, *cells])
    return Table(caption, ["method", *columns, "epsilon", "s"], rows)


def accuracy_table(outcomes: Sequence[Outcome]) -> Table:
    """Return each method's accuracy on tested people; no rows if none is measured."""
    rows = []
    for outcome in outcomes if any(one.tested for one in outcomes) else ():
        if (found := outcome.tested) is None:
            rows.append([outcome.title, "not measured", *["-"] * 4])
            continue
        error = f"{found.calibration_error:.3f} ({found.calibration_by_chance:.3f})"
        ranking = map(_with_interval, (found.auc, found.average_precision))
        used = "chose the model" if found.selected else "out-of-fold"
        rows.append(
            [
                *(outcome.title, used, f"{found.positives:,} of {found.people:,}"),
                *(*ranking, error),
            ]
        )
    caption = "Accuracy on tested people, by risks without their own results"
    columns = ["method", "these people", "positive", "AUC"]
    columns += [METRICS["average_precision"].title, "calibration error"]
    return Table(caption, columns, rows)


def doubts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a warning for each accuracy that rests on few people who chose it.

    A network is only compared with inference that uses the rates of the disease. Also
    warn if another method ranks the same people clearly better than the first one.
    """
    measured = [(one, one.tested) for one in outcomes if one.tested is not None]
    inferred = [
        (found.auc.estimate or 0.0, one.title, found)
        for one, found in measured
        if entry(one.method).uses_pathogen and not found.selected
    ]
    warnings = [
        f"{one.title} ranks tested people better than {outcomes[0].title}: AUC "
        f"{_with_interval(found.auc)} instead of {_with_interval(first.auc)}. For its "
        f"list: epifalcon predict RUN --method {one.method}."
        for one, found in measured
        if (first := outcomes[0].tested) is not None
        and not (first.selected or found.selected)
        and (found.auc.low or 0.0) > max(first.auc.estimate or 0.0, _CHANCE)
    ]
    for one, found in measured:
        auc = found.auc.estimate
        if not found.selected or found.positives >= _HANDFUL or auc is None:
            continue
        warning = (
            f"The AUC {auc:.3f} of {one.title} is of {found.people:,} people with "
            f"{found.positives:,} positive results, which also chose the model: it is "
            "too high, and can be chance"
        )
        if not inferred:
            hint = "compare with inference: add --beside falcon-field"
            warnings.append(f"{warning}; {hint}.")
            continue
        best, title, other = max(inferred, key=lambda item: item[0])
        if auc > best:
            better = f"Rely on {title}"
            if (other.auc.low or 0.0) <= _CHANCE:
                better = "No method is shown to rank better than chance. " + title
            warnings.append(
                f"{warning}. {better}: AUC {best:.3f}, out-of-fold, of "
                f"{other.people:,} people with {other.positives:,} positive results."
            )
    return warnings


def _with_interval(found: Interval) -> str:
    text = formats.number(found.estimate)
    if found.low is None or found.high is None:
        return text
    return f"{text} [{found.low:.2f}, {found.high:.2f}]"


def guarantee(outcome: Outcome) -> Guarantee | None:
    """Return the guarantee from the ledger of a method; None without noise."""
    if outcome.spent is None or outcome.spent["mode"] == "off":
        return None
    trained = entry(outcome.method).trains_in_rounds
    rounds = outcome.diagnostics["rounds" if trained else "sweeps"]
    return Guarantee(
        spent=outcome.spent,
        rounds=rounds,
        trained=trained,
        insecure_seed=outcome.insecure_seed,
    )


def privacy_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the channels of each private method with protection and epsilon."""
    rows: list[list[str]] = []
    for outcome in outcomes:
        if (stated := guarantee(outcome)) is not None:
            rows += stated.channel_rows()
    caption = "Released data and its true epsilon"
    if any(outcome.insecure_seed for outcome in outcomes):
        caption += " (NOT PRIVATE: fixed seed)"
    return channel_table(caption, rows)


def forecast_table(outcomes: Sequence[Outcome]) -> Table:
    """Return forecast errors of the region model and of simple forecasts, by day."""
    rows: list[list[str]] = []
    columns: list[str] = []
    caption = "Region model"
    for item in outcomes:
        if (forecast := item.diagnostics.get("forecast")) is None:
            continue
        ahead = len(forecast["scores"]["model"]["mae"])
        caption = (
            "Region model: mean absolute error (MAE) and root mean square error (RMSE) "
            f"of forecasts of {forecast['source']} cases"
            f"{_CASE_MEASURES[forecast['measure']]}, 1 to {ahead} days ahead"
        )
        columns = [
            f"{kind} {day + 1}" for kind in ("MAE", "RMSE") for day in range(ahead)
        ]
        for name, score in forecast["scores"].items():
            errors = [formats.number(one, 4) for one in (*score["mae"], *score["rmse"])]
            rows.append([_FORECASTS.get(name, name), *errors])
    return Table(caption, ["forecast", *columns], rows)


def statistics_table(
    statistics: Sequence[dict[str, Any]], *, explained: bool = False
) -> Table:
    """Return each statistic with its plausible band and, if ``explained``, a text."""
    verdicts = {True: "yes", False: "NO", None: "-"}
    rows = []
    for item in statistics:
        low, high = (formats.significant(item[end]) for end in ("low", "high"))
        cells = [formats.significant(item["value"]), f"{low} to {high}", item["unit"]]
        what = [DEFINITIONS[item["name"]]["what"]] if explained else []
        rows.append([item["name"], *what, *cells, verdicts[item["holds"]]])
    named = ["statistic", *(["what it is"] if explained else [])]
    columns = [*named, "value", "band", "unit", "holds"]
    return Table("Mobility statistics", columns, rows)


def outbreak_summary(
    experiment: Experiment, traces: Traces, epidemics: Sequence[Epidemic], preset: str
) -> dict[str, Any]:
    """Return the values of ``epifalcon outbreak --json`` without times and paths."""
    outbreaks = [one.outbreak for one in epidemics]
    kappa = outbreaks[0].kappa
    # The cost grows with index people times people: fewer in a large city.
    index_people = int(np.clip(5_000_000 // traces.people, 20, 300))
    pathogen, settings = experiment.pathogen, experiment.outbreak
    rng = Streams(epidemics[0].seed).numpy("counted R0")
    counted = empirical_r0(traces, pathogen, settings, rng, index_people)
    shares = [one.infected_share for one in outbreaks]
    counts = [one.counts_by_day() for one in outbreaks]
    released = DAILY_INFECTIOUS.get(preset)
    return {
        "preset": preset,
        "people": traces.people,
        "regions": len(traces.regions),
        "slots": traces.slots,
        "seeds": [epidemic.seed for epidemic in epidemics],
        "infected_share": shares,
        "infected_share_mean": float(np.mean(shares)),
        "infected_share_sd": float(np.std(shares, ddof=1)) if len(shares) > 1 else None,
        "infected_share_authors": INFECTED_SHARE.get(preset),
        "daily_infectious": [
            (one[:, ASYMPTOMATIC] + one[:, SYMPTOMATIC]).tolist() for one in counts
        ],
        "daily_infectious_authors": None if released is None else list(released),
        "daily_new_cases": [one.new_cases_by_day().tolist() for one in outbreaks],
        "kappa": kappa,
        "hazard_r0": hazard_r0(traces, pathogen, settings, kappa),
        "counted_r0": counted.mean,
        "counted_r0_standard_error": counted.standard_error,
        "seconds_each": [epidemic.seconds for epidemic in epidemics],
    }


def outbreak_table(values: dict[str, Any]) -> Table:
    """Return one row per seed, then the mean and the authors' values if known."""
    rows = []
    for index, seed in enumerate(values["seeds"]):
        infectious = values["daily_infectious"][index]
        rows.append(
            [
                f"seed {seed}",
                f"{values['infected_share'][index]:.3f}",
                f"{max(infectious):,}",
                str(int(np.argmax(infectious)) + 1),
                f"{sum(values['daily_new_cases'][index]):,}",
                f"{values['seconds_each'][index] * 1000:.0f}",
            ]
        )
    if values["infected_share_sd"] is not None:
        mean, sd = values["infected_share_mean"], values["infected_share_sd"]
        rows.append([f"mean ± sd of {len(rows)}", f"{mean:.3f} ± {sd:.3f}", *[""] * 4])
    if values["infected_share_authors"] is not None:
        share = f"{values['infected_share_authors']:.3f}"
        peak = f"{max(values['daily_infectious_authors']):,}"
        rows.append(["authors' release (one draw)", share, peak, *[""] * 3])
    columns = ["outbreak", "infected share", "most infectious", "on day"]
    return Table("Outbreaks", [*columns, "infections", "ms"], rows)


def top_count(people: int) -> int:
    """Return how many of the highest risks are reported: 100, or 10 of few people."""
    return min(people, 100 if people >= 500 else 10)


def findings(evaluations: Sequence[Evaluation], preset: str | None) -> list[str]:
    """Return sentences on the run's own method, the first, and on the others.

    ``preset`` is None for a city that no preset describes.
    """
    if not evaluations:
        return []
    own = evaluations[0]
    metrics, ranked = own.metrics, own.ranked["raw"]
    if metrics.auc is None:
        kind = "infected" if metrics.infected else "healthy"
        return [f"All {metrics.people:,} hidden people are {kind}: nothing to rank."]
    top = top_count(metrics.people)
    called = int(ranked.called[(ranked.recall >= metrics.extinction_recall).argmax()])
    return [
        (
            f"Among the {top} hidden people with the highest risk by {_name(own)}, "
            f"{float(ranked.found(top)):.0f} are infected; among {top} chosen at "
            f"random, {top * metrics.prevalence:.0f} would be."
        ),
        _best(evaluations, preset),
        _ceilings(evaluations),
        (
            f"Finding {metrics.extinction_recall:.0%} of the infected would end the "
            f"epidemic. This takes {called:,} of {metrics.people:,} people, of whom "
            f"{metrics.dep or 0:.0%} are infected (disease extinction precision, DEP); "
            f"at random, {metrics.prevalence:.0%} would be."
        ),
        _probabilities(own),
    ]


def who_is_found(evaluations: Sequence[Evaluation]) -> Table:
    """Return one row per method: infected people among the highest risks, and AUC."""
    if not evaluations:
        return Table("", [], [])
    first = evaluations[0]
    top = top_count(first.metrics.people)
    rows = []
    for one in evaluations:
        interval = auc_interval(one.ranked["raw"])
        within = "-"
        if interval.low is not None and interval.high is not None:
            within = f"{interval.low:.3f} to {interval.high:.3f}"
        rows.append(
            [
                one.title,
                f"{float(one.ranked['raw'].found(top)):.0f}",
                formats.percent(one.metrics.recall_at_budget),
                formats.number(one.metrics.auc),
                within,
                "" if one is first else _difference(one, first),
            ]
        )
    chance = f"{top * first.metrics.prevalence:.0f}"
    budget = formats.percent(first.metrics.tests / first.metrics.people)
    rows.append(["by chance", chance, budget, "0.500", "", ""])
    columns = [
        "method",
        f"infected of the {top} highest",
        f"infected found by {first.metrics.tests:,} tests",
        "AUC",
        "95 % interval",
        f"minus {first.title}",
    ]
    return Table("Infected people found", columns, rows)


def _best(evaluations: Sequence[Evaluation], preset: str | None) -> str:
    methods = [one for one in evaluations if not entry(one.method).is_ceiling]
    if len(methods) < 2:
        return "No other method was run: add `--beside hgnn --beside hbp`."
    best, second = sorted(methods, key=lambda one: -(one.metrics.auc or 0))[:2]
    other = second if best is evaluations[0] else evaluations[0]
    gap = auc_difference(best.risk, other.risk, best.infected)
    chance = ""
    if gap.low is not None:
        chance = ", which can be chance" if gap.low <= 0 else ", larger than chance"
    found = (
        f"{_name(best)} has the highest AUC here; the difference to {_name(other)} is "
        f"{_difference(best, other)}{chance}. This is one outbreak"
    )
    if preset is None:
        return f"{found}; repeat the run with other seeds."
    listed = ",".join(one.method for one in evaluations)
    return (
        f"{found}; to run five: `epifalcon compare --preset {preset} --methods "
        f"{listed} --seeds 5 --out table`."
    )


def _ceilings(evaluations: Sequence[Evaluation]) -> str:
    ceilings = [
        f"{_name(one)} {formats.number(one.metrics.auc)}"
        for one in evaluations
        if entry(one.method).is_ceiling
    ]
    if not ceilings:
        return "No ceiling was run: add `--beside oracle`, which uses the true states."
    own = evaluations[0]
    return (
        f"AUC of ceilings, which use part of the ground truth: {'; '.join(ceilings)}; "
        f"of {_name(own)}: {formats.number(own.metrics.auc)}; by chance: 0.500."
    )


def _probabilities(own: Evaluation) -> str:
    """Return whether the risks can be read as probabilities, as a sentence."""
    metrics, ranked = own.metrics, own.ranked["raw"]
    if metrics.mean_risk is None or metrics.ece_mass is None:
        return f"The scores of {_name(own)} rank people and are not probabilities."
    # Expected error by chance of true probabilities near the prevalence.
    variance = metrics.prevalence * (1 - metrics.prevalence)
    groups = MetricSettings().bins
    chance = math.sqrt(2 / math.pi * variance * groups / metrics.people)
    low = auc_interval(ranked).low
    if metrics.ece_mass <= max(_ROUGH * metrics.prevalence, 1.5 * chance):
        advice = "they can be read as rough probabilities"
    elif low is not None and low > 0.5:
        advice = "use them for ranking, not as probabilities"
    else:
        advice = "they are not probabilities, and may not even rank people"
    raw = "" if own.left_raw is None else f" Not recalibrated: {own.left_raw}."
    return (
        f"The risks of {_name(own)} have mean {metrics.mean_risk:.1%}; "
        f"{metrics.prevalence:.1%} of the hidden people are infected. In groups of "
        f"equal size, risk and infected share differ by {metrics.ece_mass:.3f} on "
        f"average (about {chance:.3f} by chance): {advice}.{raw}"
    )


def _difference(one: Evaluation, first: Evaluation) -> str:
    gap = auc_difference(one.risk, first.risk, one.infected)
    if gap.estimate is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{gap.estimate:+.3f}"
    return f"{gap.estimate:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _name(one: Evaluation) -> str:
    """Return the title as part of a sentence: "Falcon (paper)"."""
    first, _, rest = one.title.partition(", ")
    return f"{first} ({rest})" if rest else first
