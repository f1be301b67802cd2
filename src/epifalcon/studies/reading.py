"""What the figures of a run say, in sentences that need no glossary."""

from collections.abc import Sequence

from epifalcon.baselines.catalogue import entry
from epifalcon.evaluation.uncertainty import auc_difference, auc_interval
from epifalcon.studies.judged import Judged
from epifalcon.studies.report import Table

_MANY, _FEW = 100, 10
_ENOUGH_PEOPLE = 500
"""Hidden people from which on the highest hundred are a small part."""
_MISSING = {
    "oracle": "the forward oracle, told the true history of everybody else, which is "
    "the ceiling (add `--beside oracle`)",
    "hbp": "HBP, which knows how the disease spreads and learns nothing (add "
    "`--beside hbp`)",
}


def top_count(people: int) -> int:
    """How many of the highest risks a reader is told of: 100, 10 of few people."""
    return min(people, _MANY if people >= _ENOUGH_PEOPLE else _FEW)


def findings(judged: Sequence[Judged], preset: str) -> list[str]:
    """What the run's own method, the first, found, and how it stands to others.

    Empty where nobody was judged.
    """
    if not judged:
        return []
    own = judged[0]
    if own.metrics.auc is None:
        kind = "infected" if own.metrics.infected else "healthy"
        return [
            (
                f"All {own.metrics.people:,} hidden people are {kind}: nobody can be "
                "ranked above anybody, so that no method can be judged."
            )
        ]
    told = [_highest(own), _pairs(own), *_standing(judged, preset)]
    return [*told, *_ceilings(judged), _extinction(own), _level(own)]


def plain_table(judged: Sequence[Judged]) -> Table:
    """One row a method: who is found among the highest risks, and how sure that is."""
    if not judged:
        return Table("", [], [])
    first = judged[0]
    top = top_count(first.metrics.people)
    rows = []
    for one in judged:
        found = float(one.ranked["raw"].found(top))
        rows.append(
            [
                one.title,
                f"{found:.0f}",
                _share(one.metrics.recall_at_budget),
                _number(one.metrics.auc),
                _within(one),
                _gap(one, first),
            ]
        )
    # A last row, so that every figure has what chance would give beside it.
    chance = top * first.metrics.prevalence
    budget = first.metrics.tests / first.metrics.people
    rows.append(["by chance", f"{chance:.0f}", _share(budget), "0.500", "", ""])
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
    chance = top * own.metrics.prevalence
    return (
        f"Of the {top} hidden people with the highest risk by {_name(own)}, "
        f"{found:.0f} are infected; of {top} chosen at random it would be "
        f"{chance:.0f}."
    )


def _pairs(own: Judged) -> str:
    interval = auc_interval(own.ranked["raw"])
    sure = ""
    if interval.low is not None and interval.high is not None:
        sure = f" (95 % interval {100 * interval.low:.0f} to {100 * interval.high:.0f})"
    return (
        f"Of an infected and a healthy person, {_name(own)} gives the infected one the "
        f"higher risk in {100 * (own.metrics.auc or 0):.0f} of 100 pairs{sure}; a coin "
        "would in 50."
    )


def _standing(judged: Sequence[Judged], preset: str) -> list[str]:
    methods = [one for one in judged if entry(one.method).kind != "ceiling"]
    if len(methods) < 2:
        return [
            (
                "No other method was run on the same tests, so nothing can be said of "
                "who is better: add `--beside hgnn --beside hbp`."
            )
        ]
    best, second = sorted(methods, key=lambda one: -(one.metrics.auc or 0))[:2]
    own = judged[0]
    rival = second if best is own else own
    gap = auc_difference(best.risk, rival.risk, best.infected)
    told = (
        f"{_name(best)} ranks best here: AUC {_number(best.metrics.auc)} against "
        f"{_number(rival.metrics.auc)} of {_name(rival)}. "
    )
    if gap.low is None or gap.high is None or gap.estimate is None:
        return [told + _one_outbreak(judged, preset)]
    sure = f"The difference, {gap.estimate:.3f} [{gap.low:.3f}, {gap.high:.3f}], "
    sure += (
        "can be chance even among these people. "
        if gap.low <= 0
        else "is more than chance among these people. "
    )
    return [told + sure + _one_outbreak(judged, preset)]


def _one_outbreak(judged: Sequence[Judged], preset: str) -> str:
    listed = ",".join(one.method for one in judged)
    return (
        "One outbreak proves nothing about the next: `epifalcon compare --preset "
        f"{preset} --methods {listed} --seeds 5 --out table` tells what holds over "
        "five."
    )


def _ceilings(judged: Sequence[Judged]) -> list[str]:
    by_name, own = {one.method: one for one in judged}, judged[0]
    told = []
    if (oracle := by_name.get("oracle")) is not None:
        told.append(
            f"The ceiling: told everybody else's true history, one would reach AUC "
            f"{_number(oracle.metrics.auc)}; {_name(own)} has "
            f"{_number(own.metrics.auc)}, chance 0.500."
        )
    if (hbp := by_name.get("hbp")) is not None and hbp is not own:
        told.append(
            f"HBP, which knows how the disease spreads and learns nothing, reaches "
            f"AUC {_number(hbp.metrics.auc)} from the same tests: what a method may "
            "hope for without better data."
        )
    missing = [words for name, words in _MISSING.items() if name not in by_name]
    if missing:
        told.append(f"Not run here: {'; '.join(missing)}.")
    return told


def _extinction(own: Judged) -> str:
    metrics, ranked = own.metrics, own.ranked["raw"]
    enough = ranked.recall >= metrics.extinction_recall
    called = int(ranked.called[int(enough.argmax())])
    return (
        f"Finding {metrics.extinction_recall:.0%} of the infected would end the "
        f"epidemic. By {_name(own)} {called:,} of {metrics.people:,} people have to be "
        f"called for that, {metrics.dep or 0:.0%} of them infected (DEP); called at "
        f"random it is {metrics.prevalence:.0%}."
    )


def _level(own: Judged) -> str:
    metrics = own.metrics
    if metrics.mean_risk is None:
        return f"The scores of {_name(own)} rank people and are no probabilities."
    gap = metrics.mean_risk - metrics.prevalence
    said = "about right" if abs(gap) < 0.02 else "too high" if gap > 0 else "too low"
    told = (
        f"The risks are {said} on the whole: their mean is {metrics.mean_risk:.0%}; "
        f"{metrics.prevalence:.0%} are infected."
    )
    if own.left_raw is None:
        return f"{told} How they read after recalibration is in the figure below."
    return f"{told} They were not recalibrated: {own.left_raw}."


def _within(one: Judged) -> str:
    interval = auc_interval(one.ranked["raw"])
    if interval.low is None or interval.high is None:
        return "-"
    return f"{interval.low:.3f} to {interval.high:.3f}"


def _gap(one: Judged, first: Judged) -> str:
    if one is first:
        return ""
    gap = auc_difference(one.risk, first.risk, one.infected)
    if gap.estimate is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{gap.estimate:+.3f}"
    return f"{gap.estimate:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _name(one: Judged) -> str:
    """The title as a sentence can hold it."""
    first, _, rest = one.title.partition(", ")
    return f"{first} ({rest})" if rest else first


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
