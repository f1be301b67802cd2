import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.federation.field import denoising
from epifalcon.federation.field.denoising import (
    ExpectedProfile,
    NoisySums,
    estimate_crowd,
    estimate_excess,
    estimate_share,
)
from tests.belief_propagation.graphs import cohorts_of, graph_of, rates_of
from tests.methods.test_hbp import town_scene
from tests.oracles import private_field_loop as oracle
from tests.studies import town

ONE = np.ones(1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.3, 3.0]))
@settings(max_examples=25, deadline=None)
def test_regions_are_shrunk_as_plain_loops_do(seed, noise):
    rng = np.random.default_rng(seed)
    crowd = rng.gamma(2.0, 4.0, 30) + 0.1
    sigma = noise * rng.integers(0, 3, 30)
    total = np.sqrt(0.1 * crowd) * rng.standard_normal(30)
    total = (total + sigma * rng.standard_normal(30)) * (sigma > 0)
    found = estimate_excess(NoisySums(total[None], sigma[None]), crowd, ONE)
    priors = denoising._SPREADS, denoising._CITY_APART
    wanted = oracle.excess(total, sigma, crowd, *priors)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-9, atol=1e-12)


def drawn(noise, regions=4000, seed=0):
    """Regions of which the truth is known: (mean excess, people, noised sums)."""
    rng = np.random.default_rng(seed)
    crowd = rng.gamma(3.0, 3.0, regions) + 0.5
    mean = np.sqrt(0.1 / crowd) * rng.standard_normal(regions)
    sigma = np.full((1, regions), noise)
    total = crowd * mean + sigma * rng.standard_normal((1, regions))
    return mean, crowd, NoisySums(total, sigma)


@pytest.mark.parametrize("noise", [0.1, 1.0, 4.0])
def test_what_is_read_is_as_near_the_truth_as_can_be(noise):
    """The error of the best linear reader, who knows the true spread."""
    mean, crowd, sums = drawn(noise)
    error = np.mean((estimate_excess(sums, crowd, ONE)[0] - mean) ** 2)
    spread = 0.1 / crowd
    best = np.mean(spread * noise**2 / (spread * crowd**2 + noise**2))
    assert error == pytest.approx(best, rel=0.1)
    # As good as nothing is less than to believe the sums as they are.
    assert error < np.mean((sums.total[0] / crowd - mean) ** 2)


def test_days_are_read_against_what_their_region_shows():
    """Days that truly differ come through; of equal ones little is made."""
    rng = np.random.default_rng(1)
    profile = np.full(4, 0.5)
    region = 0.3 * rng.standard_normal(3000)
    crowd = np.full(3000, 6.0)
    for of_days, most in ((0.3, 0.1), (0.0, 0.055)):
        mean = region + of_days * rng.standard_normal((4, 3000))
        sigma = np.full((4, 3000), 0.3)
        total = profile[:, None] * crowd * mean + 0.3 * rng.standard_normal((4, 3000))
        found = estimate_excess(NoisySums(total, sigma), crowd, profile)
        assert np.sqrt(np.mean((found - mean) ** 2)) < most
    assert np.corrcoef(found.mean(axis=0), region)[0, 1] > 0.98


def test_a_crowd_is_shrunk_towards_the_mean_region_and_adds_up():
    rng = np.random.default_rng(2)
    true = rng.gamma(2.0, 5.0, 2000)
    people = int(true.sum())
    for noise in (0.01, 4.0, 500.0):
        sigma = np.full((1, 2000), noise)
        received = 0.7 * true + noise * rng.standard_normal((1, 2000))
        found = estimate_crowd(NoisySums(received, sigma), people)
        assert found.min() >= denoising.LEAST_CROWD
        if noise < 1:
            np.testing.assert_allclose(found, np.maximum(true, 0.5), atol=0.1)
        elif noise < 100:
            naive = received[0] * people / received.sum()
            assert np.var(found - true) < 0.8 * np.var(naive - true)
        else:
            assert found.std() < 0.1 * true.mean()


def test_a_share_behind_noise_is_the_usual_one():
    assert estimate_share(800, 200, 0.1) == pytest.approx(0.25, abs=1e-4)
    assert estimate_share(800, 200, 1e6) == pytest.approx(0.15, abs=1e-4)
    assert 0 <= estimate_share(-50.0, 700.0, 300.0) <= 1
    assert 0 <= estimate_share(30.0, -700.0, 3.0) <= 1


def test_the_profile_is_how_a_positive_of_the_town_differs():
    scene, known = town_scene(), town.known()
    people, clock = cohorts_of(scene, known), scene.traces.clock
    graph = graph_of(scene, people.crowd())
    received = graph.first_messages(np.full(clock.slots, 0.003))
    profile = ExpectedProfile.of(received, rates_of(scene), clock, 16.0)
    people.sweep(received, denoising.SweepOptions(1.0, np.ones(clock.slots), 16.0))
    state = people.cohorts[0].state
    untested = np.flatnonzero(~known.tested)[0]
    at_the_end = known.slot == clock.slots - 1
    positive = known.person[known.positive & at_the_end][0]
    np.testing.assert_allclose(profile.usual, state.infectious[:, untested])
    more = state.infectious[:, positive] - state.infectious[:, untested]
    np.testing.assert_allclose(profile.excess, more, atol=1e-6)
    np.testing.assert_allclose(profile.news, state.evidence[:, positive])
    assert profile.by_cell(clock.slots) == pytest.approx(profile.excess.sum())
