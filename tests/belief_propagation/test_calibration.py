import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from epifalcon.belief_propagation.calibration import (
    IDENTITY,
    ModelLosses,
    PlattScaling,
    choose_scaling,
    current_given_ever,
    ensemble_variance,
    fit_scaling,
    interval,
    log_odds,
    perturbed,
)
from epifalcon.belief_propagation.seir_chain import OwnTests
from epifalcon.belief_propagation.settings import EQUALLY_RICH
from epifalcon.epidemic.pathogen import OMICRON

RIGHT, WRONG = (0.0, 0.0), (0.05, 0.2)
"""Shares of false positive and of false negative results."""


def own_tests(positive, wrong):
    """The likelihood of one result per person."""
    positive, (false, missed) = np.asarray(positive), wrong
    infected = np.where(positive, 1 - missed, missed)
    return OwnTests(infected, np.where(positive, false, 1 - false))


def people(count, slope, offset, wrong=RIGHT, seed=0):
    """Risks, and results of people whose true odds are scaled from them."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.2, 0.8, count)
    truth = expit(slope * (odds + 1.2) - 1.2 + offset)
    chance = wrong[0] + (1 - sum(wrong)) * truth
    return expit(odds), own_tests(rng.random(count) < chance, wrong)


@pytest.mark.parametrize("wrong", [RIGHT, WRONG])
def test_a_known_scaling_is_recovered_with_and_without_test_errors(wrong):
    found = fit_scaling(*people(40_000, 1.4, -0.5, wrong))
    assert found.slope == pytest.approx(1.4, abs=0.08)
    assert found.offset == pytest.approx(-0.5, abs=0.05)


def test_the_fit_is_the_highest_posterior():
    risk, tests = people(200, 0.6, 0.8, WRONG, seed=3)
    found = fit_scaling(risk, tests)

    def lost(point):
        slope, offset = point
        odds = log_odds(risk)
        recalibrated = expit(slope * (odds - odds.mean()) + odds.mean() + offset)
        missed = tests.healthy * (1 - recalibrated)
        result = np.log(tests.infected * recalibrated + missed).sum()
        return -result + ((slope - 1) / 0.2) ** 2 / 2 + (offset / 0.5) ** 2 / 2

    best = minimize(lost, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    np.testing.assert_allclose([found.slope, found.offset], best.x, atol=1e-4)


def test_calibrated_risks_are_unchanged_and_others_are_not():
    drawn = (people(500, 1, 0, seed=k) for k in range(9))
    left = [choose_scaling(*one) == IDENTITY for one in drawn]
    assert sum(left) >= 7
    assert choose_scaling(*people(500, 1, 0.7)) != IDENTITY


def test_few_people_change_nothing():
    risk, tests = people(149, 1, 3)
    few = np.arange(149) < 19
    assert fit_scaling(risk[few], tests.of(few)) == IDENTITY
    assert choose_scaling(risk, tests) == IDENTITY
    assert choose_scaling(*people(150, 1, 3)) != IDENTITY


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=20, max_size=60),
    st.sampled_from([RIGHT, WRONG]),
)
def test_scaled_risks_are_probabilities_in_the_same_order(pairs, wrong):
    risk = np.array([one for one, _ in pairs])
    scaling = fit_scaling(risk, own_tests([one for _, one in pairs], wrong))
    rising = scaling(np.sort(risk))
    assert ((rising >= 0) & (rising <= 1)).all()
    assert (np.diff(rising) >= 0).all()


def test_a_mean_is_met_unless_it_is_out_of_reach():
    risk, _ = people(300, 1, 0)
    scaling = PlattScaling(1.3, -0.2, -1.0)
    assert scaling.with_mean(risk, 0.4)(risk).mean() == pytest.approx(0.4)
    assert scaling.with_mean(risk, 1.0) == scaling
    assert scaling.with_mean(np.empty(0), 0.4) == scaling


def test_current_risks_are_rescaled_like_ever_risks():
    now, risk = np.array([0.0, 0.1, 0.3, 0.0]), np.array([0.2, 0.2, 0.3, 0.0])
    result = np.array([0.4, 0.1, 0.9, 0.2])
    found = current_given_ever(now, risk, result)
    np.testing.assert_allclose(found, [0.0, 0.05, 0.9, 0.0])


def lost(gain, noise, people=400, seed=0):
    rng = np.random.default_rng(seed)
    before = rng.random(people)
    return before, before - gain + noise * rng.normal(size=people)


def best(losses, alike=()):
    """The choice by sums over three sites, and by all people at once."""
    table = np.stack(list(losses.values()), axis=1)
    first, *others = [ModelLosses.of(part) for part in np.array_split(table, 3)]
    found = sum(others, first).best(list(losses), alike)
    assert found == ModelLosses.of(table).best(list(losses), alike)
    return found


def test_a_richer_model_must_win_by_more_than_its_standard_error():
    one, better = lost(gain=0.1, noise=0.5)
    assert best({"fixed": one, "regional": better}) == "regional"
    one, doubtful = lost(gain=0.001, noise=0.5)
    assert best({"fixed": one, "regional": doubtful}) == "fixed"
    assert best({"fixed": one, "global": one, "regional": one}) == "fixed"
    one, apart = lost(gain=0.1, noise=0.1)
    assert (
        best({"fixed": one, "regional-strong": apart, "regional": apart - 0.05})
        == "regional"
    )
    assert (
        best({"fixed": one, "regional-strong": apart - 0.05, "regional": apart})
        == "regional-strong"
    )
    none = np.empty(0)
    assert best({"fixed": none, "regional": none}) == "fixed"


def test_of_models_equally_rich_the_better_one_is_selected():
    mild, doubtful = lost(gain=0.0, noise=0.5)
    doubtful += (mild - doubtful).mean() - 0.01
    assert best({"regional-strong": mild, "regional": doubtful}) == "regional-strong"
    models = {"regional-strong": mild, "regional": doubtful}
    assert best(models, EQUALLY_RICH) == "regional"
    assert best({"global": mild, "regional": doubtful}, EQUALLY_RICH) == "global"


def test_the_standard_error_is_that_of_the_paired_gains():
    one, other = lost(gain=0.03, noise=0.4, people=57)
    gain = one - other
    doubt = gain.mean() - gain.std(ddof=1) / np.sqrt(57)
    for shift, better in ((1e-6, True), (-1e-6, False)):
        # Moved to where the mean gain just exceeds its standard error, and not.
        losses = ModelLosses.of(np.stack([one, other + doubt - shift], axis=1))
        assert losses.is_better(1, 0) == better


EVERYBODY = np.ones(4000, np.bool_)


def runs(spread, level, count, seed=0):
    """Risks of runs that differ by ``spread`` in each person and ``level`` in all."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1, 0.5, 4000)
    return [
        expit(odds + rng.normal(0, level) + rng.normal(0, spread, 4000))
        for _ in range(count)
    ]


def test_the_spread_is_that_of_people_and_not_of_the_level():
    found = ensemble_variance(runs(0.3, 2.0, 12), EVERYBODY)
    assert np.sqrt(found.mean()) == pytest.approx(0.3, rel=0.03)
    none = ensemble_variance(runs(0.0, 2.0, 4), ~EVERYBODY)
    assert none.max() < 1e-12


def test_nine_of_ten_intervals_contain_the_true_odds():
    rng = np.random.default_rng(2)
    true = rng.normal(-1, 0.5, 4000)
    scaling, unsure = PlattScaling(1.2, 0.3, -1.0), np.diag([0.04, 0.09])
    spread = np.full(4000, 0.16)
    held = []
    for _ in range(40):
        slope, offset = rng.normal([1.2, 0.3], np.sqrt(np.diag(unsure)))
        seen = true + rng.normal(0, 0.4, 4000)
        wanted = expit(-1.0 + slope * (true + 1.0) + offset)
        ends = interval(scaling(expit(seen)), spread, scaling, unsure)
        held.append(((ends.low <= wanted) & (wanted <= ends.high)).mean())
    assert np.mean(held) == pytest.approx(0.9, abs=0.06)
    risk = np.array([0.0, 1e-9, 0.5, 1.0])
    ends = interval(risk, np.full(4, 100.0), IDENTITY, np.zeros((2, 2)))
    assert (ends.low >= 0).all()
    assert (ends.low <= risk).all()
    assert (risk <= ends.high).all()
    assert (ends.high <= 1).all()


def test_perturbed_rates_stay_near_the_published_ones():
    rng = np.random.default_rng(0)
    betas = [perturbed(OMICRON, rng).beta / OMICRON.beta for _ in range(400)]
    assert np.log(betas).std() == pytest.approx(0.2, rel=0.15)
