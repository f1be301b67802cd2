import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from epifalcon.errors import DataError
from epifalcon.mobility.regions import Regions
from epifalcon.privacy.pseudo.domains import (
    Domains,
    DomainSettings,
    epidemic_domains,
    features,
)

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def cluster(regions, cases, seed=0, count=2, gamma=1.0, least=1):
    chosen = DomainSettings(count=count, gamma=gamma, least_regions=least)
    return epidemic_domains(regions, cases, chosen, np.random.default_rng(seed))


def four_groups(seed=0):
    """Two towns far apart, each with quiet and burning regions."""
    rng = np.random.default_rng(seed)
    east, hot = np.repeat([0, 0, 1, 1], 25), np.tile(np.repeat([0, 1], 25), 2)
    centre = rng.normal(0, 1, (100, 2)) + 40 * east[:, None]
    cases = rng.poisson(np.where(hot, 30, 0.1)[:, None], (100, 6)).astype(float)
    return Regions("area", centre), cases, east, hot


def same_split(one, other):
    pairs = {*zip(one.tolist(), other.tolist(), strict=True)}
    return len(pairs) == len(np.unique(one)) == len(np.unique(other))


@pytest.mark.parametrize("seed", range(5))
def test_gamma_weighs_the_place_against_the_cases(seed):
    regions, cases, east, hot = four_groups(seed)
    assert same_split(cluster(regions, cases, seed, gamma=0.0).of_region, hot)
    assert same_split(cluster(regions, cases, seed, gamma=100.0).of_region, east)
    both = cluster(regions, cases, seed, count=4).of_region
    assert same_split(both, 2 * east + hot)


@pytest.mark.parametrize("seed", range(3))
def test_the_clusters_are_about_as_tight_as_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    regions = Regions("area", rng.lognormal(2, 1, (600, 2)))
    cases = rng.poisson(rng.lognormal(0, 1, (600, 1)), (600, 7)).astype(float)
    points = features(regions, cases, 1.0)
    label = cluster(regions, cases, seed, count=12).of_region
    centres = np.stack([points[label == one].mean(axis=0) for one in range(12)])
    ours = ((points - centres[label]) ** 2).sum()
    theirs = KMeans(12, n_init=10, random_state=seed).fit(points).inertia_
    assert ours < 1.15 * theirs


def test_the_two_terms_weigh_the_same_at_gamma_one():
    rng = np.random.default_rng(0)
    regions = Regions("area", rng.normal(50, 1e3, (80, 2)))
    points = features(regions, rng.poisson(0.01, (80, 9)).astype(float), 1.0)
    history, ground = points[:, :9], points[:, 9:]
    assert (history**2).sum(axis=1).mean() == pytest.approx(1)
    assert (ground**2).sum(axis=1).mean() == pytest.approx(1)


@CASES
@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 15),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 99),
)
def test_no_domain_is_small_unless_it_is_the_only_one(size, count, least, gamma, seed):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(size, 2))
    centre[rng.random(size) < 0.2] = np.nan
    cases = rng.poisson(0.5, (size, 3)).astype(float)
    made = cluster(Regions("area", centre), cases, seed, count, gamma, least)
    assert made.of_region.shape == (size,)
    assert len(made) <= count
    assert len(made) == 1 or made.sizes.min() >= least
    assert made.sizes.sum() == size
    again = cluster(Regions("area", centre), cases, seed, count, gamma, least)
    np.testing.assert_array_equal(made.of_region, again.of_region)


def test_a_small_cluster_joins_the_nearest():
    centre = np.array([[0.0, 0]] * 9 + [[10.0, 0]] * 9 + [[8.0, 0]])
    made = cluster(Regions("area", centre), np.zeros((19, 1)), count=3, least=2)
    assert sorted(made.sizes.tolist()) == [9, 10]
    assert made.of_region[18] == made.of_region[10]


def test_without_cases_and_places_there_is_one_domain():
    nowhere = Regions("area", np.full((7, 2), np.nan))
    assert len(cluster(nowhere, np.zeros((7, 3)), count=5)) == 1


def test_equal_regions_share_a_domain():
    regions, cases, _, _ = four_groups()
    twice = Regions("area", np.vstack([regions.centre_km, regions.centre_km]))
    label = cluster(twice, np.vstack([cases, cases]), count=9).of_region
    np.testing.assert_array_equal(label[:100], label[100:])


@pytest.mark.parametrize(
    "ids",
    [
        np.array([0, 2], np.int32),
        np.array([-1, 0], np.int32),
        np.array([0, 1]),
        np.zeros((2, 2), np.int32),
        np.zeros(0, np.int32),
    ],
)
def test_domains_are_numbered_without_gaps(ids):
    with pytest.raises(DataError):
        Domains(ids)
