from itertools import pairwise

import numpy as np
import pytest
from scipy import special, stats

from epifalcon.evaluation.attacks.upload_recorder import (
    KnownRows,
    RoundUploads,
    posterior,
)


def dense_notes(rows, window, weight, noise, spread):
    """Energy, correlation and evidence of each claim, by the formulas in full."""
    width = rows.shape[1]
    made = np.zeros((3, len(rows)))
    for claim, row in enumerate(rows):
        others = window != window[claim]
        made[0, claim] = np.linalg.norm(row) ** 2
        if others.any():
            made[1, claim] = row @ rows[others].mean(axis=0)
        # Each upload of weight w tells w times the row, with the noise of one.
        squares = (weight[others] ** 2).sum()
        certain = np.eye(width) * (squares / noise + 1 / spread)
        covariance = np.linalg.inv(certain)
        mean = covariance @ (weight[others] @ rows[others]) / noise
        true = stats.multivariate_normal(mean, covariance + noise * np.eye(width))
        pseudo = stats.multivariate_normal(np.zeros(width), noise * np.eye(width))
        made[2, claim] = true.logpdf(row) - pseudo.logpdf(row)
    return made


def noted(rows, start, weight, noise, spread):
    seen = RoundUploads(rows, start, weight, noise)
    return np.stack([seen.square, seen.correlation(), seen.evidence(spread)])


@pytest.mark.parametrize(
    "size", [[3, 1, 4], [5], [1, 1], [2, 3, 1, 1, 6]], ids=lambda size: f"{len(size)}"
)
def test_a_round_is_noted_as_the_formulas_say(size):
    rng = np.random.default_rng(len(size))
    start = np.concatenate([[0], np.cumsum(size)])
    window = np.repeat(np.arange(len(size)), size)
    rows = rng.normal(0.02, 0.1, (start[-1], 4))
    weight = rng.random(start[-1])
    found = noted(rows, start, weight, 0.01, 0.002)
    expected = dense_notes(rows, window, weight, 0.01, 0.002)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_what_is_kept_of_a_claim_does_not_hang_on_its_own_window():
    rng = np.random.default_rng(1)
    start, weight = np.array([0, 3, 6]), rng.random(6)
    rows = rng.normal(size=(6, 4))
    before = noted(rows, start, weight, 0.01, 0.002)
    rows[1] += 5
    weight[2] = 1 - weight[2]
    after = noted(rows, start, weight, 0.01, 0.002)
    assert np.allclose(after[:, [0, 2]], before[:, [0, 2]], rtol=1e-12)
    assert not np.allclose(after[1:, 3:], before[1:, 3:])


def test_one_claim_of_a_window_is_true():
    evidence = np.array([0.5, -0.2, 900.0, 1.0, -1e9, 7.0])
    start = np.array([0, 2, 5, 6])
    weight = posterior(evidence, start, 2, single=True)
    for first, last in pairwise(start.tolist()):
        assert np.allclose(
            weight[first:last], special.softmax(evidence[first:last]), atol=1e-300
        )


def test_in_wide_windows_each_claim_stands_for_itself():
    evidence = np.array([0.5, -0.2, 900.0, -1e9])
    weight = posterior(evidence, np.array([0, 4]), 9, single=False)
    assert np.allclose(weight, special.expit(evidence - np.log(9)))


def dense_known(rows, window, weight, known):
    """Evidence by the formulas in full: which row, by the other windows; then this."""
    noise, column, spread, before = known
    unit, made = np.eye(rows.shape[1]), np.zeros(len(rows))
    for claim, row in enumerate(rows):
        others = window != window[claim]
        certain = (weight[others] ** 2).sum()
        total = weight[others] @ rows[others]
        chance = np.array(before)
        if certain:
            for status, one in enumerate(column):
                around = (noise * certain + certain**2 * spread[status]) * unit
                told = stats.multivariate_normal(certain * one, around)
                chance[status] += told.logpdf(total)
        chance -= special.logsumexp(chance)
        true = [
            stats.multivariate_normal(one, (noise + extra) * unit).logpdf(row)
            for one, extra in zip(column, spread, strict=True)
        ]
        pseudo = stats.multivariate_normal(np.zeros(len(unit)), noise * unit)
        made[claim] = special.logsumexp(chance + true) - pseudo.logpdf(row)
    return made


@pytest.mark.parametrize("extra", [0.0, 0.004])
@pytest.mark.parametrize("size", [[3, 1, 4], [5], [2, 3, 1, 1, 6]], ids=len)
def test_a_round_of_known_rows_is_noted_as_the_formulas_say(size, extra):
    rng = np.random.default_rng(len(size))
    start = np.concatenate([[0], np.cumsum(size)])
    window = np.repeat(np.arange(len(size)), size)
    rows = rng.normal(0.02, 0.1, (start[-1], 4))
    weight, column = rng.random(start[-1]), rng.normal(0, 0.1, (3, 4))
    spread = extra * np.array([1.0, 0.5, 2.0])
    before = np.log([0.2, 0.1, 0.7])
    seen = RoundUploads(rows, start, weight, 0.01)
    found = seen.evidence_of_known(KnownRows(column, spread), before)
    expected = dense_known(rows, window, weight, (0.01, column, spread, before))
    assert np.allclose(found, expected, rtol=1e-8, atol=1e-10)
