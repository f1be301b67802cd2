import numpy as np
import pytest

from epifalcon.mobility.city.coverage import coverage
from epifalcon.mobility.synthetic import CitySettings, build_city


def city(**changed):
    settings = CitySettings(**{"people": 800, "regions": 60, "days": 10, **changed})
    return build_city(settings, np.random.default_rng(5))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.85])
@pytest.mark.parametrize("sigma", [0.0, 1.0, 3.0])
def test_mean_share_is_the_wished_one(share, sigma):
    seen = city(observed_share=share, observed_sigma=sigma)
    # 800 people, each with a share of their own: about 1.5 % either way.
    assert seen.observed_share == pytest.approx(share, abs=0.045)


def test_gaps_hide_and_change_nothing():
    whole, seen = city().by_slot, city(observed_share=0.4).by_slot
    assert np.array_equal(whole[seen >= 0], seen[seen >= 0])
    assert (whole >= 0).all()


def test_filled_gaps_repeat_the_last_region_and_before_the_first_that_one():
    sparse = {"observed_share": 0.02, "observed_sigma": 2.0}
    seen = city(**sparse).by_slot
    filled = city(**sparse, fill_gaps=True).by_slot
    expected = seen.copy()
    for person in range(seen.shape[1]):
        known = np.flatnonzero(seen[:, person] >= 0)
        for slot in range(len(seen)):
            earlier = known[known <= slot]
            source = earlier[-1:] if len(earlier) else known[:1]
            if len(source):
                expected[slot, person] = seen[source[0], person]
    assert np.array_equal(filled, expected)
    never = (seen < 0).all(axis=0)
    assert never.any()
    assert np.array_equal(never, (filled < 0).any(axis=0))


def test_all_or_nothing():
    assert city(observed_share=1.0).observed_share == 1
    assert city(observed_share=0.0).observed_share == 0


def test_gaps_come_in_bursts_that_last_longer_with_gap_hours():
    def repeats(hours):
        seen = (
            city(observed_share=0.5, observed_sigma=0.0, gap_hours=hours).by_slot >= 0
        )
        return (seen[1:] == seen[:-1]).mean()

    assert repeats(2.0) == pytest.approx(0.5, abs=0.03)
    # Kept with chance 2/3, else drawn anew: 2/3 + 1/3 * 1/2.
    assert repeats(6.0) == pytest.approx(5 / 6, abs=0.03)


def test_people_differ_by_sigma():
    def spread(sigma):
        seen = city(observed_share=0.5, observed_sigma=sigma).by_person >= 0
        return seen.mean(axis=1).std()

    assert spread(2.0) > spread(0.0) + 0.15


def test_centre_solves_the_mean_without_spread():
    assert coverage(0.25, 0.0, 1.0).centre == pytest.approx(np.log(1 / 3))


def test_gaps_know_nothing_of_the_home():
    """The stream of gaps is not the stream that drew the home."""
    home = city().by_slot[0]
    seen = city(observed_share=0.5, observed_sigma=2.0).by_person >= 0
    odd = np.abs(seen.mean(axis=1) - 0.5)
    assert abs(np.corrcoef(home, odd)[0, 1]) < 0.12
