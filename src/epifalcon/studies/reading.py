"""What the figures of a run say, in sentences that need no glossary."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from epifalcon.baselines.catalogue import entry
from epifalcon.evaluation.uncertainty import auc_difference, auc_interval
from epifalcon.studies.judged import Judged
from epifalcon.studies.report import Table
from epifalcon.types import Floats

_MANY, _FEW = 100, 10
_ENOUGH_PEOPLE = 500
"""Hidden people from which on the highest hundred are a small part."""
_CLOSE = 0.1
"""Risks that lie closer together are told with a digit more."""
_DOUBT = 2.0
"""Standard errors by which told and true differ before it is called a difference."""
_ROUGH_SPREAD, _ROUGH_LEVEL = 2.0, 0.2
"""How far risks may be off and still be rough probabilities: their spread by this
factor, their mean by this share of the infected."""
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
    """Whether the risks can be read as probabilities, by what they told and what is."""
    metrics = own.metrics
    if metrics.mean_risk is None:
        return f"The scores of {_name(own)} rank people and are no probabilities."
    risk = np.sort(own.risk)
    low, high = float(risk[0]), float(risk[-1])
    digits = 1 if high - low < _CLOSE else 0
    span = f"lie between {low:.{digits}%} and {high:.{digits}%}"
    told = (
        f"The risks of {_name(own)} {'are all alike' if low == high else span}; their "
        f"mean is {metrics.mean_risk:.{digits}%}, and {metrics.prevalence:.0%} of the "
        "hidden people are infected. "
    )
    told += _ends(own, risk, digits)
    if own.left_raw is None:
        return f"{told} How they read after recalibration is in the figure below."
    return f"{told} They were not recalibrated: {own.left_raw}."


def _ends(own: Judged, risk: Floats, digits: int) -> str:
    """What the highest and the lowest tenth were told, what is true, what follows.

    ``risk`` (hidden people,) in rising order.
    """
    tenth, ranked = len(risk) // 10, own.ranked["raw"]
    if not tenth or risk[0] == risk[-1]:
        return _verdict(own, _level_fault(own, risk))
    above = float(ranked.found(tenth))
    below = float(ranked.infected - ranked.found(len(risk) - tenth))
    top, low = risk[-tenth:], risk[:tenth]
    (over, over_doubt), (under, under_doubt) = _excess(top, above), _excess(low, below)
    apart = (over - under) / math.hypot(over_doubt, under_doubt)
    faults = _level_fault(own, risk)
    if abs(apart) > _DOUBT:
        told, true = float(top.mean() - low.mean()), (above - below) / tenth
        rough = told / _ROUGH_SPREAD <= true <= told * _ROUGH_SPREAD
        much = "less" if apart > 0 else "more"
        faults = {f"differ {much} than the people do": rough, **faults}
    return (
        f"Of the tenth with the highest risks, told {top.mean():.{digits}%} in the "
        f"mean, {above / tenth:.0%} are infected; of the tenth with the lowest, told "
        f"{low.mean():.{digits}%}, {below / tenth:.0%}. {_verdict(own, faults)}"
    )


def _excess(risk: Floats, infected: float) -> tuple[float, float]:
    """Infected share minus mean risk, and its standard error were the risks true."""
    error = math.sqrt(float((risk * (1 - risk)).sum())) / len(risk)
    return infected / len(risk) - float(risk.mean()), max(error, 1e-9)


def _level_fault(own: Judged, risk: Floats) -> dict[str, bool]:
    """That the risks are too high or too low, and whether only roughly so."""
    gap, doubt = _excess(risk, own.metrics.infected)
    if abs(gap) <= _DOUBT * doubt:
        return {}
    rough = abs(gap) <= _ROUGH_LEVEL * own.metrics.prevalence
    return {f"are too {'low' if gap > 0 else 'high'} on the whole": rough}


def _verdict(own: Judged, faults: Mapping[str, bool]) -> str:
    """What to do with the risks, by their faults and whether each is slight."""
    if not faults:
        return "That is no more apart than chance can put it."
    why = f"They {' and '.join(faults)}"
    if all(faults.values()):
        return f"{why}: take them as rough probabilities."
    low = auc_interval(own.ranked["raw"]).low
    if low is not None and low > 0.5:
        return f"{why}: use them to rank, not as probabilities."
    return (
        f"{why}: they are no probabilities, and that they rank people better than "
        "chance is not shown."
    )


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
