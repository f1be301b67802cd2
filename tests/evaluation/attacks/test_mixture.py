import numpy as np
import pytest
from scipy import stats

from epifalcon.evaluation.attacks import mixture


def people(rng, count=3000, centres=(0.0, 3.0, -4.0), share=(0.5, 0.3, 0.2)):
    kind = rng.choice(3, count, p=share)
    return np.take(centres, kind) + rng.standard_normal(count), kind


def test_kinds_far_apart_are_told_as_whoever_knows_them_would():
    values, _ = people(np.random.default_rng(0))
    found = mixture.fit(values, 10.0, (1.0, -1.0))
    exact = np.stack([stats.norm.logpdf(values, one) for one in (0, 3.0, -4.0)], axis=1)
    ours, theirs = (one - one[:, :1] for one in (found, exact))
    some = np.abs(values) < 5
    assert np.abs(ours - theirs)[some].mean() < 0.4


def test_posteriors_are_honest_where_kinds_overlap():
    values, kind = people(np.random.default_rng(1), 20_000, (0.0, 1.5, -2.0))
    found = mixture.fit(values, 3.0, (1.0, -1.0)) + np.log([0.5, 0.3, 0.2])
    chance = np.exp(found - np.logaddexp.reduce(found, axis=1)[:, None])
    for low in (0.1, 0.3, 0.5, 0.7):
        some = (chance[:, 1] >= low) & (chance[:, 1] < low + 0.2)
        right = (kind[some] == 1).mean()
        assert right == pytest.approx(chance[some, 1].mean(), abs=0.08)


def test_noise_alone_is_all_of_one_kind_where_signals_cannot_be_large():
    values = np.random.default_rng(2).standard_normal(300)
    found = mixture.fit(values, 0.01, (1.0, -1.0))
    assert np.ptp(found, axis=1).max() < 0.05


def test_no_centre_lies_farther_than_a_signal_can():
    values = np.append(np.zeros(50), np.full(50, 9.0))
    found = mixture.fit(values, 2.0, (1.0,))
    # At 2 the kinds differ by 2^2 / 2 more than at 0.
    assert found[-1, 1] - found[-1, 0] < 9.0**2 / 2


def test_a_list_without_any_noise_is_told_apart():
    values = np.append(np.zeros(20), np.linspace(50, 5000, 10))
    found = mixture.fit(values, 1e6, (1.0, -1.0))
    assert (found[:20, 0] > found[:20, 1:].max(axis=1)).all()
    assert (found[20:, 1] > found[20:, 0]).all()
    assert np.isfinite(found).all()
