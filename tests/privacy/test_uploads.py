import numpy as np
import pytest
import torch
from scipy import stats

from epifalcon.errors import DataError
from epifalcon.privacy.events import Releases, Terms
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.privacy.uploads import Claims, GaussianMechanism, perturb

FORTNIGHT = Releases(visit=1, day=12, person=168)
SURE = 1e-6
BARE = GaussianMechanism(clip=0.1, sigma=0.2)


def key(turn=0, channel="upload/0", seed=3):
    return NoiseKey(seed, Terms(channel=channel, releases=FORTNIGHT, round=turn))


def claims_of(people=40, places=30, each=12, seed=0):
    """Every person claims ``each`` places, a third of them true."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(places)[:each] for _ in range(people)]
    place = np.concatenate(drawn).astype(np.int64)
    row = np.repeat(np.arange(people), each)
    return Claims(
        people=rng.permutation(10 * people)[:people],
        row=row,
        place=place,
        true=np.tile(np.arange(each) < each // 3, people),
    )


def rows_of(people=40, width=8, seed=1):
    return 3 * torch.randn(people, width, generator=torch.Generator().manual_seed(seed))


def in_interval(values, sigma):
    flat = np.asarray(values, dtype=np.float64).ravel()
    low, high = stats.chi2.ppf([SURE / 2, 1 - SURE / 2], flat.size)
    return low < np.sum(flat**2) / sigma**2 < high


def test_without_noise_true_places_get_the_clipped_row_and_pseudo_places_zero():
    claims, rows = claims_of(), rows_of()
    silent = GaussianMechanism(clip=0.1, sigma=0.0)
    value = perturb(rows, claims, silent, key())
    for upload, row, true in zip(value, claims.row, claims.true, strict=True):
        expected = rows[row] * (0.1 / float(rows[row].norm())) if true else 0 * rows[0]
        assert torch.allclose(upload, expected, rtol=1e-5)


def test_noise_covers_true_and_pseudo_alike():
    claims, rows = claims_of(people=400), rows_of(people=400)
    silent = GaussianMechanism(clip=0.1, sigma=0.0)
    noise = perturb(rows, claims, BARE, key()) - perturb(rows, claims, silent, key())
    assert in_interval(noise[claims.true], 0.2)
    assert in_interval(noise[~claims.true], 0.2)
    result = stats.ks_2samp(noise[claims.true].flatten(), noise[~claims.true].flatten())
    assert result.pvalue > SURE


def test_a_true_place_met_again_by_a_pseudo_trace_is_refused():
    claims = Claims(
        people=np.array([5]),
        row=np.array([0, 0]),
        place=np.array([9, 9]),
        true=np.array([True, False]),
    )
    with pytest.raises(DataError, match="person 5 has place 9"):
        perturb(rows_of(1), claims, BARE, key())


def test_more_places_than_the_receipt_counts_are_refused():
    few = Terms(channel="upload", releases=Releases(visit=1, day=2, person=3))
    with pytest.raises(DataError, match="4 true places"):
        perturb(rows_of(), claims_of(), BARE, NoiseKey(1, few))


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": np.array([0, 2])},
        {"row": np.array([-1, 0])},
        {"people": np.array([5, 5])},
        {"place": np.array([1])},
    ],
)
def test_invalid_claims_are_refused(wrong):
    good = {
        "people": np.array([5, 6]),
        "row": np.array([0, 1]),
        "place": np.array([3, 3]),
        "true": np.array([True, False]),
    }
    assert Claims(**good).noise_rows().person.tolist() == [5, 6]
    with pytest.raises(DataError):
        Claims(**{**good, **wrong})
    with pytest.raises(DataError, match="one per person"):
        perturb(rows_of(3), Claims(**good), BARE, key())
