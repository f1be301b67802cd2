"""The metric registry: name, title, meaning and direction of every metric shown.

Values come from ``evaluation.metrics.Metrics``, whose fields have these names. A
new column of a table is one entry here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Metric:
    """How one metric is called, explained and ordered."""

    name: str
    """Field of ``Metrics`` and key in JSON."""
    title: str
    meaning: str
    lower_is_better: bool = False
    bounded: bool = True
    """True if the metric lies between 0 and 1."""


_METRICS = (
    Metric(
        "auc",
        "AUC",
        "Share of pairs of an infected and a healthy person that are ranked correctly; "
        "0.5 is chance.",
    ),
    Metric(
        "dep",
        "DEP",
        "Precision at the recall that would end the epidemic; the paper's measure.",
    ),
    Metric(
        "f1",
        "F1",
        "Harmonic mean of precision and recall at the best threshold, an upper bound.",
    ),
    Metric(
        "accuracy",
        "accuracy",
        "Share of people classified correctly at the best threshold, an upper bound; "
        "calling nobody infected is often nearly as good.",
    ),
    Metric(
        "bep",
        "BEP",
        "Precision when as many people are called as are infected; it equals the "
        "recall there.",
    ),
    Metric("average_precision", "AP", "Mean precision over all recalls."),
    Metric(
        "brier",
        "Brier",
        "Mean squared error of the risks as probabilities; lower is better.",
        lower_is_better=True,
    ),
    Metric(
        "log_loss",
        "log loss",
        "Mean negative log-likelihood of the true states under the risks; lower is "
        "better.",
        lower_is_better=True,
        bounded=False,
    ),
    Metric(
        "ece",
        "ECE",
        "Expected calibration error: mean gap between risk and infected share over 15 "
        "bins of equal width; small where all risks are alike, whatever they are "
        "worth. Lower is better.",
        lower_is_better=True,
    ),
    Metric(
        "ece_mass",
        "ECE, equal groups",
        "The same over 15 groups of equally many people, from the lowest risks to the "
        "highest; lower is better.",
        lower_is_better=True,
    ),
    Metric(
        "precision_at_budget",
        "prec. at 5 %",
        "Share of infected people among the 5 % with the highest risk.",
    ),
)
METRICS: Final = {metric.name: metric for metric in _METRICS}
RUN_METRICS: Final = tuple(name for name in METRICS if name != "precision_at_budget")
"""Columns of a run's table; "Who finds the infected" has the budget's figures."""
TERMINAL_METRICS: Final = ("auc", "dep", "f1", "bep", "log_loss")
"""As many as fit on a terminal of 80 columns."""
STUDY_METRICS: Final = tuple(name for name in METRICS if name != "ece_mass")
"""Metrics that a study or comparison stores for each seed, in this order."""
MEANINGS: Final = {
    "hidden": "Not tested; methods know nothing of their state.",
    "masked": "Tested, but their result was withheld from the method that predicts "
    "their risk.",
    **{metric.title: metric.meaning for metric in _METRICS},
    "Platt, isotonic": "Two ways to recalibrate risks on masked people: by one "
    "S-shaped curve, and by a rising step function.",
    "epsilon": "Bound on what the noised channels reveal about one person, at delta "
    "1e-6; beyond 10 next to nothing is ruled out.",
    "s": "Seconds of training or computing.",
    "protocol": "What a method was shown. reported: the results of tested people "
    "alone. all cases: those of hidden people too, as in the paper. truth of others: "
    "a ceiling, not a method. selected on test people: the round was chosen on the "
    "people on whom the row is evaluated, as in the authors' program.",
    "paper's": "The figure printed in the paper, for its own 15,738 people: compare "
    "the order of methods, not the level.",
    "±": "Half width of the 95 % interval of the mean over seeds (Student's t).",
    "larger than chance": "On the same seeds, p below .05 after Holm's adjustment for "
    "all rows compared with that reference (their number is in the table's caption). "
    "Intervals are not adjusted: one may exclude 0 although the verdict is no.",
    "won": "Seeds in which the row is better than its reference.",
}
"""Glossary of all terms and columns that tables use."""


def glossary(terms: Iterable[str]) -> dict[str, str]:
    """Return the meaning of those of ``terms`` that have one, in the order above."""
    used = {"epsilon" if term.startswith("epsilon") else term for term in terms}
    return {term: text for term, text in MEANINGS.items() if term in used}
