"""Accuracy on tested people in tables and warnings, for methods of all kinds."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.evaluation.tested_people import accuracy_on_tested as accuracy
from epifalcon.experiments.run_methods import Outcome
from epifalcon.experiments.run_tables import accuracy_table, doubts, methods_table
from epifalcon.methods.base import Scores


def outcome(method, people, positives, noise, selected=False):
    """A method whose risks rank tested people well if ``noise`` is low."""
    rng = np.random.default_rng(people)
    positive = np.arange(people) < positives
    risk = np.clip(0.3 + 0.3 * positive + noise * rng.normal(size=people), 0, 1)
    found = accuracy(risk, positive, rng, selected=selected)
    diagnostics = {"validation_auc": found.auc.estimate} if selected else {}
    return Outcome(method, Scores(risk, diagnostics=diagnostics), tested=found)


FIELD = outcome("falcon-field", 120, 40, 0.3)
LUCKY = outcome("falcon", 12, 3, 0.01, selected=True)


def test_every_method_has_one_row_that_says_who_was_used():
    rows = accuracy_table([LUCKY, FIELD, Outcome("dct", Scores(np.zeros(3)))]).rows
    assert [row[:3] for row in rows] == [
        ["Falcon", "chose the model", "3 of 12"],
        ["Falcon Field", "out-of-fold", "40 of 120"],
        ["DCT", "not measured", "-"],
    ]
    # Nobody is hidden: there is no other table of methods.
    assert methods_table([LUCKY, FIELD]) == accuracy_table([LUCKY, FIELD])


def test_a_network_above_inference_by_a_handful_of_positives_is_doubted():
    [warning] = doubts([LUCKY, FIELD])
    assert "of 12 people with 3 positive results" in warning
    assert "Rely on Falcon Field" in warning
    guessing = outcome("falcon-field", 120, 40, 30.0)
    [warning] = doubts([LUCKY, guessing])
    assert "No method is shown to rank better than chance. Falcon Field: " in warning
    [warning] = doubts([LUCKY])
    assert "--beside falcon-field" in warning


def test_a_method_that_ranks_clearly_better_than_the_main_one_is_named():
    guessing = outcome("falcon-field", 120, 40, 30.0)
    better = outcome("soft-dct-ratio", 120, 40, 0.2)
    [warning] = doubts([guessing, better])
    assert warning.startswith("Soft DCT, ratio ranks tested people better than Falcon")
    assert "predict RUN --method soft-dct-ratio" in warning
    # Not where the difference can be chance, and not for the main method.
    close = outcome("soft-dct-ratio", 120, 40, 0.29)
    assert doubts([FIELD, close]) == doubts([better, guessing]) == []
    assert doubts([outcome("hbp", 12, 4, 30.0), outcome("hbp", 12, 4, 0.3)]) == []


@pytest.mark.parametrize(
    "others",
    [
        [outcome("falcon", 200, 80, 0.01, selected=True), FIELD],
        [outcome("falcon", 40, 3, 2.0, selected=True), FIELD],
        [replace(FIELD, tested=None)],
        [FIELD],
    ],
    ids=["many positives", "below inference", "not measured", "inference alone"],
)
def test_nothing_else_is_doubted(others):
    assert doubts(others) == []
