"""Findings of a run as sentences, and the table of who finds the infected."""

import math
from collections.abc import Sequence

import numpy as np

from epifalcon.evaluation.metrics import MetricSettings
from epifalcon.evaluation.uncertainty import auc_difference, auc_interval
from epifalcon.experiments.judged import Judged
from epifalcon.methods.registry import entry
from epifalcon.reports.formats import number, percent
from epifalcon.reports.tables import Table

_MANY, _FEW = 100, 10
_ENOUGH_PEOPLE = 500
"""Hidden people from which on the highest hundred are a small part."""
_CLOSE = 0.1
"""Risks within this range are shown with one more digit."""
_ROUGH = 0.2
"""Calibration error, as a share of the prevalence, of rough probabilities."""
_CALIBRATION_GROUPS = MetricSettings().bins
_NOT_RUN = {
    "oracle": "the forward oracle, which knows the true history of everybody else and "
    "is the ceiling (add `--beside oracle`)",
    "hbp": "HBP, which knows how the disease spreads and learns nothing (add "
    "`--beside hbp`)",
}


def top_count(people: int) -> int:
    """Return how many of the highest risks are reported: 100, or 10 of few people."""
    return min(people, _MANY if people >= _ENOUGH_PEOPLE else _FEW)


def findings(judged: Sequence[Judged], preset: str) -> list[str]:
    """Return what the run's own method, the first, found, and how others compare.

    Empty if nobody was hidden.
    """
    if not judged:
        return []
    own = judged[0]
    if own.metrics.auc is None:
        kind = "infected" if own.metrics.infected else "healthy"
        return [
            (
                f"All {own.metrics.people:,} hidden people are {kind}: nobody can be "
                "ranked above anybody, so no method can be evaluated."
            )
        ]
    return [
        _highest(own),
        _pairs(own),
        _best(judged, preset),
        *_ceilings(judged),
        _extinction(own),
        _probabilities(own),
    ]


def who_is_found(judged: Sequence[Judged]) -> Table:
    """Return one row per method: infected people among the highest risks, and AUC."""
    if not judged:
        return Table("", [], [])
    first = judged[0]
    top = top_count(first.metrics.people)
    rows = []
    for one in judged:
        interval = auc_interval(one.ranked["raw"])
        within = "-"
        if interval.low is not None and interval.high is not None:
            within = f"{interval.low:.3f} to {interval.high:.3f}"
        rows.append(
            [
                one.title,
                f"{float(one.ranked['raw'].found(top)):.0f}",
                percent(one.metrics.recall_at_budget),
                number(one.metrics.auc),
                within,
                "" if one is first else _difference(one, first),
            ]
        )
    # The last row is what chance would give.
    chance = f"{top * first.metrics.prevalence:.0f}"
    budget = percent(first.metrics.tests / first.metrics.people)
    rows.append(["by chance", chance, budget, "0.500", "", ""])
    columns = [
        "method",
        f"infected of the {top} highest",
        f"infected found by {first.metrics.tests:,} tests",
        "AUC",
        "95 % interval",
        f"minus {first.title}",
    ]
    return Table("Who finds the infected", columns, rows)


def _highest(own: Judged) -> str:
    top = top_count(own.metrics.people)
    found = float(own.ranked["raw"].found(top))
    return (
        f"Of the {top} hidden people with the highest risk by {_name(own)}, "
        f"{found:.0f} are infected; of {top} chosen at random it would be "
        f"{top * own.metrics.prevalence:.0f}."
    )


def _pairs(own: Judged) -> str:
    interval = auc_interval(own.ranked["raw"])
    sure = ""
    if interval.low is not None and interval.high is not None:
        sure = f" (95 % interval {100 * interval.low:.0f} to {100 * interval.high:.0f})"
    return (
        f"Of an infected and a healthy person, {_name(own)} gives the infected one the "
        f"higher risk in {100 * (own.metrics.auc or 0):.0f} of 100 pairs{sure}; chance "
        "would in 50."
    )


def _best(judged: Sequence[Judged], preset: str) -> str:
    methods = [one for one in judged if entry(one.method).kind != "ceiling"]
    if len(methods) < 2:
        return (
            "No other method was run on the same tests, so nothing can be said about "
            "which is better: add `--beside hgnn --beside hbp`."
        )
    best, second = sorted(methods, key=lambda one: -(one.metrics.auc or 0))[:2]
    other = second if best is judged[0] else judged[0]
    said = (
        f"{_name(best)} ranks best here: AUC {number(best.metrics.auc)} against "
        f"{number(other.metrics.auc)} of {_name(other)}. "
    )
    gap = auc_difference(best.risk, other.risk, best.infected)
    if gap.low is not None and gap.high is not None and gap.estimate is not None:
        said += f"The difference, {gap.estimate:.3f} [{gap.low:.3f}, {gap.high:.3f}], "
        said += "can be chance" if gap.low <= 0 else "is larger than chance"
        said += " among these people. "
    listed = ",".join(one.method for one in judged)
    return (
        f"{said}One outbreak proves nothing about the next: `epifalcon compare "
        f"--preset {preset} --methods {listed} --seeds 5 --out table` shows what holds "
        "over five."
    )


def _ceilings(judged: Sequence[Judged]) -> list[str]:
    by_name, own = {one.method: one for one in judged}, judged[0]
    said = []
    if (oracle := by_name.get("oracle")) is not None:
        said.append(
            "The ceiling: given everybody else's true history, one would reach AUC "
            f"{number(oracle.metrics.auc)}; {_name(own)} has "
            f"{number(own.metrics.auc)}, chance 0.500."
        )
    if (hbp := by_name.get("hbp")) is not None and hbp is not own:
        said.append(
            "HBP, which knows how the disease spreads and learns nothing, reaches AUC "
            f"{number(hbp.metrics.auc)} from the same tests."
        )
    missing = [text for name, text in _NOT_RUN.items() if name not in by_name]
    return [*said, f"Not run here: {'; '.join(missing)}."] if missing else said


def _extinction(own: Judged) -> str:
    metrics, ranked = own.metrics, own.ranked["raw"]
    enough = ranked.recall >= metrics.extinction_recall
    called = int(ranked.called[int(enough.argmax())])
    return (
        f"Finding {metrics.extinction_recall:.0%} of the infected would end the "
        f"epidemic. By {_name(own)}, {called:,} of {metrics.people:,} people must be "
        f"called for that, {metrics.dep or 0:.0%} of them infected (DEP); at random it "
        f"is {metrics.prevalence:.0%}."
    )


def _probabilities(own: Judged) -> str:
    """Say whether the risks can be read as probabilities."""
    metrics, ranked = own.metrics, own.ranked["raw"]
    if metrics.mean_risk is None or metrics.ece_mass is None:
        return f"The scores of {_name(own)} rank people and are not probabilities."
    risk = np.sort(own.risk)
    digits = 1 if risk[-1] - risk[0] < _CLOSE else 0
    tenth = max(1, len(risk) // 10)
    top, bottom = risk[-tenth:].mean(), risk[:tenth].mean()
    above = float(ranked.found(tenth)) / tenth
    below = float(ranked.infected - ranked.found(len(risk) - tenth)) / tenth
    # What true probabilities near the prevalence would have by chance.
    variance = metrics.prevalence * (1 - metrics.prevalence)
    chance = math.sqrt(2 / math.pi * variance * _CALIBRATION_GROUPS / len(risk))
    said = (
        f"The risks of {_name(own)} lie between {percent(risk[0], digits)} and "
        f"{percent(risk[-1], digits)}, mean {percent(metrics.mean_risk, digits)}; "
        f"{metrics.prevalence:.0%} of the hidden people are infected. Of the 10 % with "
        f"the highest risks (mean {percent(top, digits)}), {above:.0%} are infected; "
        f"of the 10 % with the lowest ({percent(bottom, digits)}), {below:.0%}. In "
        f"equal groups risk and infected share differ by {metrics.ece_mass:.3f} on "
        f"average, by chance alone about {chance:.3f}: "
    )
    low = auc_interval(ranked).low
    if metrics.ece_mass <= max(_ROUGH * metrics.prevalence, 1.5 * chance):
        said += "take them as rough probabilities."
    elif low is not None and low > 0.5:
        said += "use them to rank, not as probabilities."
    else:
        said += "they are not probabilities, nor is it shown that they rank people."
    if own.left_raw is None:
        return f"{said} The figure below shows them after recalibration."
    return f"{said} They were not recalibrated: {own.left_raw}."


def _difference(one: Judged, first: Judged) -> str:
    gap = auc_difference(one.risk, first.risk, one.infected)
    if gap.estimate is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{gap.estimate:+.3f}"
    return f"{gap.estimate:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _name(one: Judged) -> str:
    """Return the title as part of a sentence: "Falcon (paper)"."""
    first, _, rest = one.title.partition(", ")
    return f"{first} ({rest})" if rest else first
