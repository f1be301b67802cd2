import numpy as np

from epifalcon.baselines.exposure import daily_exposure
from epifalcon.baselines.exposure_boosting import (
    ExposureBoosting,
    ExposureBoostingSettings,
    with_summaries,
)
from epifalcon.baselines.method import Scene
from epifalcon.baselines.out_of_fold import Fold
from epifalcon.epidemic.known import Known
from tests.baselines.small_cities import city_of


def two_kinds_of_places(people=240):
    """A city in which half of the places burn; who lives there, and tests."""
    rng = np.random.default_rng(0)
    home = np.arange(people) % 24
    by_slot = np.where(rng.random((6, people)) < 0.2, rng.integers(24), home)
    burning = home < 12
    infected = rng.random(people) < np.where(burning, 0.8, 0.1)
    person = np.flatnonzero(rng.random(people) < 0.6).astype(np.int32)
    known = Known(people, person, infected[person], np.full(len(person), 5, np.int32))
    return city_of(by_slot, days=3), known, burning


def test_boosting_learns_what_differs_and_stops_early():
    traces, known, burning = two_kinds_of_places()
    settings = ExposureBoostingSettings(trees=40, least_people=5, folds=4)
    found = ExposureBoosting(Scene(traces), settings).fit(known).found
    assert 0 < found.told["trees"] <= 40
    assert found.steps == found.told["trees"]
    assert found.risk[burning].mean() > found.risk[~burning].mean() + 0.3
    masked = burning[found.masked]
    assert found.masked_risk[masked].mean() > found.masked_risk[~masked].mean() + 0.2


def test_boosting_on_results_by_lot_grows_next_to_nothing():
    traces, known, _ = two_kinds_of_places()
    lot = np.random.default_rng(1).permutation(known.positive)
    by_lot = Known(known.people, known.person, lot, known.slot)
    settings = ExposureBoostingSettings(trees=40, least_people=5, folds=4)
    found = ExposureBoosting(Scene(traces), settings).fit(by_lot).found
    assert found.told["trees"] <= 5
    assert np.ptp(found.risk) < 0.2


def test_risk_never_falls_with_known_positives_met():
    traces, known, _ = two_kinds_of_places()
    method = ExposureBoosting(Scene(traces), ExposureBoostingSettings(least_people=2))
    x = with_summaries(daily_exposure(traces, known.status))
    asked = np.tile(x[:1], (50, 1))
    # Known positives of the three days, and the summaries that rise with them.
    rising = [0, 4, 8, 12, 16, 17, 18, 19, 20]
    asked[:, rising] = np.linspace(0, x.max(0)[rising], 50)
    tested = known.tested
    fold = Fold(
        x[tested], known.status[tested] == 1, np.arange(50, dtype=np.int32), asked
    )
    *_, risk = method._risks(fold, 30)
    assert np.ptp(risk) > 0.1
    assert (np.diff(risk) >= 0).all()


def test_summaries_of_a_case_worked_by_hand():
    # Two days, observed for the whole of the first and half of the second.
    days = np.array([[[0.2, 0.6, 1.0, 1.0], [0.5, 0.0, 4.0, 0.5]]], np.float32)
    found = with_summaries(days)[0]
    np.testing.assert_allclose(found[:8], days.ravel())
    positive, negative = (0.2 + 0.25) / 1.5, 0.6 / 1.5
    expected = [
        positive,
        negative,
        (1 + 2) / 1.5,
        0.75,
        positive / (positive + negative),
        0.5,
        0.2 / 1.5,
        0.25 / 1.5,
        (0.25 + 0.5) / 1.5,
    ]
    np.testing.assert_allclose(found[8:], expected, rtol=1e-6)
    assert not with_summaries(np.zeros((1, 3, 4), np.float32)).any()
