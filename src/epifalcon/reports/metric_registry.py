"""The metric registry: name, title, meaning and direction of every metric shown.

Values come from ``evaluation.metrics.Metrics``, whose fields have these names. A
new column of a table is one entry here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Metric:
    """Title, meaning and direction of one metric."""

    title: str
    meaning: str
    lower_is_better: bool = False
    bounded: bool = True
    """True if the metric lies between 0 and 1."""


METRICS: Final = {
    "auc": Metric(
        "AUC",
        "Area under the ROC curve: share of pairs of an infected and a healthy person "
        "that are ranked correctly; 0.5 is chance.",
    ),
    "dep": Metric(
        "DEP",
        "Disease extinction precision: precision at the recall that would end the "
        "epidemic; the paper's metric.",
    ),
    "f1": Metric(
        "F1",
        "Harmonic mean of precision and recall at the best threshold, an upper bound.",
    ),
    "accuracy": Metric(
        "accuracy",
        "Share of people classified correctly at the best threshold, an upper bound; "
        "predicting nobody as infected is often nearly as good.",
    ),
    "bep": Metric(
        "BEP",
        "Break-even point: precision when as many people are called as are infected; "
        "it equals the recall there.",
    ),
    "average_precision": Metric(
        "AP", "Average precision: mean precision over all recalls."
    ),
    "brier": Metric(
        "Brier",
        "Brier score: mean squared error of the risks as probabilities; lower is "
        "better.",
        lower_is_better=True,
    ),
    "log_loss": Metric(
        "log loss",
        "Mean negative log-likelihood of the true states under the risks; lower is "
        "better.",
        lower_is_better=True,
        bounded=False,
    ),
    "ece": Metric(
        "ECE",
        "Expected calibration error: mean gap between risk and infected share over 15 "
        "bins of equal width; also small if all risks are nearly equal. Lower is "
        "better.",
        lower_is_better=True,
    ),
    "ece_mass": Metric(
        "ECE, equal groups",
        "The same over 15 groups of equally many people, from the lowest risks to the "
        "highest; lower is better.",
        lower_is_better=True,
    ),
    "precision_at_budget": Metric(
        "prec. at 5 %", "Share of infected people among the 5 % with the highest risk."
    ),
}
"""By name: field of ``Metrics`` and key in JSON."""
RUN_METRICS: Final = tuple(name for name in METRICS if name != "precision_at_budget")
"""Columns of a run's table; the budget has columns in "Infected people found"."""
TERMINAL_METRICS: Final = ("auc", "dep", "f1", "bep", "log_loss")
"""Those that fit into a terminal with 80 columns."""
STUDY_METRICS: Final = tuple(name for name in METRICS if name != "ece_mass")
"""Metrics that a study or comparison stores for each seed, in this order."""
MEANINGS: Final = {
    "hidden": "Not tested; methods do not know their state.",
    "these people": "Out-of-fold: excluded in turn. Chose the model: held back from "
    "training, but their results selected the model or its round, so that its accuracy "
    "is too high. In brackets: 95 % intervals.",
    "calibration error": "Mean difference between the risk and the share of positive "
    "results in groups of equal size, of 20 people on average or more. In brackets: "
    "true probabilities have up to this error in 95 of 100 cases.",
    "masked": "Tested, but their result was not used for the prediction of their risk.",
    **{metric.title: metric.meaning for metric in METRICS.values()},
    "Platt, isotonic": "Two methods to recalibrate risks on masked people: a logistic "
    "curve (Platt scaling) and a non-decreasing step function (isotonic regression).",
    "epsilon": "Bound on what the noised channels reveal about one person, at delta "
    "1e-6; above 10 it excludes next to nothing.",
    "s": "Duration of training or inference in seconds.",
    "protocol": "Inputs of a method. reported: only the results of tested people. all "
    "cases: also those of hidden people, as in the paper. truth of others: a ceiling, "
    "not a method. selected on test people: the round was selected on the people on "
    "whom the row is evaluated, as in the authors' program.",
    "paper's": "The value printed in the paper, for its own 15,738 people: compare "
    "the order of methods, not the level.",
    "±": "Half width of the 95 % interval of the mean over seeds (Student's t).",
    "larger than chance": "On the same seeds, p below .05 after Holm's adjustment for "
    "all rows compared with that reference (their number is in the table's caption). "
    "Intervals are not adjusted: one may exclude 0 although the verdict is no.",
    "won": "Number of seeds in which the row is better than its reference.",
}
"""Glossary of all terms and columns of tables."""


def glossary(terms: Iterable[str]) -> dict[str, str]:
    """Return the meaning of those of ``terms`` that have one, in the order above."""
    used = {"epsilon" if term.startswith("epsilon") else term for term in terms}
    return {term: text for term, text in MEANINGS.items() if term in used}
