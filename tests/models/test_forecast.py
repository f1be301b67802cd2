"""Forecast errors, worked by hand, of the model and of the baselines."""

import numpy as np
import pytest

from epifalcon.models import forecast
from epifalcon.models.region_model import RegionHistory
from epifalcon.models.settings import TrainingSettings
from tests.models.regions import flows_of, small_history


class Clairvoyant:
    """Returns the truth plus a fixed error for each day ahead."""

    def __init__(self, errors):
        self.errors = np.array(errors, dtype=float)
        self.training = TrainingSettings(horizon=len(errors))
        self.requested = []

    def forecast(self, history, origins):
        self.requested += origins
        ahead = len(self.errors)
        padded = np.pad(history.cases, ((0, 0), (0, ahead)), mode="edge")
        windows = [padded[:, day + 1 : day + 1 + ahead] for day in origins]
        return np.stack(windows) + self.errors


def test_each_day_ahead_is_compared_with_its_own_day():
    model = Clairvoyant([0.0, 0.25, 2.0])
    report = forecast.forecast_errors(model, small_history(days=15, source="all"))
    assert report.scores["model"].mae == pytest.approx([0.0, 0.25, 2.0])
    assert report.scores["model"].rmse == pytest.approx([0.0, 0.25, 2.0])
    assert report.days == [12, 14]
    assert model.requested == list(range(9, 14))
    assert report.source == "all"


def test_baselines_by_hand():
    cases = np.array([[0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [4.0] * 10])
    flows = flows_of(np.ones((10, 2, 2)) - np.eye(2))
    history = RegionHistory(flows, cases)
    report = forecast.forecast_errors(Clairvoyant([0.0, 0.0]), history)
    # Region 0 rises by one per day, region 1 stays: half of the regions are off.
    assert report.scores["last"].mae == pytest.approx([0.5, 1.0])
    assert report.scores["last"].rmse == pytest.approx([0.5**0.5, 2**0.5])
    assert report.scores["line"].mae == pytest.approx([0.0, 0.0], abs=1e-12)
    # Days 8 and 9 against the means of days 0..7 and 0..8: 3.5 and 4.
    assert report.scores["mean"].mae[0] == pytest.approx((4.5 + 5.0) / 4)
    assert report.mean_cases == pytest.approx((8.5 + 4) / 2)


def test_the_line_is_least_squares_over_a_week_and_never_below_zero():
    rng = np.random.default_rng(0)
    past = rng.random((3, 20)) * 5
    past[2] = np.linspace(30, 0.1, 20)
    result = forecast.line(past, 4)
    for region in range(3):
        fit = np.polyfit(np.arange(13, 20), past[region, 13:], 1)
        wanted = np.polyval(fit, np.arange(20, 24)).clip(0)
        np.testing.assert_allclose(result[region], wanted, atol=1e-9)
    assert result[2, -1] == 0


def test_the_citys_trend_is_exact_where_all_regions_share_one_curve():
    part = np.array([0.5, 0.3, 0.2, 0.0])
    curve = 40 * np.exp(0.1 * np.arange(14))
    result = forecast.city_trend(np.outer(part, curve[:11]), 3)
    np.testing.assert_allclose(result, np.outer(part, curve[11:]), rtol=1e-9)
    # Noise of single regions is averaged out over all days so far.
    flat = np.random.default_rng(0).poisson(5, size=(6, 40)).astype(float)
    result = forecast.city_trend(flat / flat.sum(axis=0), 2)
    wanted = forecast.mean_value(flat / flat.sum(axis=0), 2)
    np.testing.assert_allclose(result, wanted, rtol=1e-9)


def test_a_week_with_an_empty_day_has_no_trend():
    past = np.ones((2, 9))
    past[:, 5] = 0
    result = forecast.city_trend(past, 2)
    np.testing.assert_array_equal(result, forecast.mean_value(past, 2))
    nothing = np.zeros((2, 9))
    np.testing.assert_array_equal(forecast.city_trend(nothing, 1), np.zeros((2, 1)))


def test_errors_are_those_of_a_plain_loop():
    history = small_history(days=16)
    report = forecast.forecast_errors(Clairvoyant([0.0] * 3), history)
    for name, baseline in forecast.BASELINES.items():
        for lead in (1, 2, 3):
            errors = [
                baseline(history.cases[:, : day - lead + 1], lead)[region, -1]
                - history.cases[region, day]
                for day in range(13, 16)
                for region in range(history.regions)
            ]
            score = report.scores[name]
            assert score.mae[lead - 1] == pytest.approx(np.mean(np.abs(errors)))
            wanted = np.sqrt(np.mean(np.square(errors)))
            assert score.rmse[lead - 1] == pytest.approx(wanted)
