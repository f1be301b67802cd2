import json
import math
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.evaluation.metrics import evaluate
from epifalcon.mobility.validity.bands import BANDS
from epifalcon.settings import json_text
from epifalcon.studies.fitting import Prediction
from epifalcon.studies.looks import Look
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.privacy_card import PrivacyCard
from epifalcon.studies.report import shown_epsilon
from epifalcon.studies.tables import (
    STATISTICS,
    forecast_table,
    meanings_table,
    methods_table,
    privacy_table,
    run_figures,
    shown,
)
from tests.studies import town

METRICS = ("auc", "dep", "f1", "accuracy", "bep", "average_precision", "brier",
           "log_loss", "ece_mass")  # fmt: skip
UNITS = ("visit", "day", "person")
SCORES = np.linspace(0, 1, 80)
FORECAST = {
    "source": "reported",
    "measure": "count",
    "scores": {
        "model": {"mae": [0.1, 0.2], "rmse": [0.3, None]},
        "last": {"mae": [0.5, 0.6], "rmse": [0.7, 0.8]},
        "new rival": {"mae": [1.0, 1.0], "rmse": [1.0, 1.0]},
    },
}


def spent(mode="off", person=None):
    channels = {"upload/0": {"visit": 1.0, "day": 2.0, "person": 12345.6}}
    bare = [{"channel": "upload/0", "what": "rows", "rounds": 1}]
    bare += [{"channel": "places", "what": "places in clear", "rounds": 1}]
    return {
        "mode": mode,
        "epsilon": {"visit": 1.0, "day": 2.0, "person": person},
        "delta": 1e-6,
        "channels": {} if mode == "off" else channels,
        "unprotected": bare,
    }


def outcome(method="falcon", mode="off", person=None, forecast=None):
    metrics = evaluate(SCORES, SCORES > 0.6, 0.8)
    if method == "soft-dct-ratio":
        return Outcome(method, SCORES, metrics, 0.25)
    trained = Prediction(
        probability=SCORES,
        learning_rate=0.01,
        best_round=4,
        validation_auc=0.625,
        validation_log_loss=0.6,
        looks=(Look(6, 0.5, 0.625, math.inf, 0.6),),
        spent=spent(mode, person),
        forecast=forecast,
        seconds=12.34,
        seconds_per_round=0.5,
    )
    settings = town.CENTRAL if method == "hgnn" else town.with_mode(mode)
    return Outcome(method, SCORES, metrics, 12.34, settings, trained)


@pytest.mark.parametrize("method", ["falcon", "hgnn", "soft-dct-ratio"])
def test_the_figures_have_every_key_that_is_relied_on(tmp_path, method):
    figures = run_figures(town.begun(tmp_path), [outcome(method)])
    plain = json.loads(json_text(figures), parse_constant=pytest.fail)
    assert {*METRICS, "ece"} <= plain["metrics"].keys()
    assert all(isinstance(plain["metrics"][name], float) for name in METRICS)
    assert set(plain["epsilon"]) == set(UNITS)
    assert plain["prevalence"] == plain["metrics"]["prevalence"]
    assert plain["seconds"] > 0
    assert plain["peak_rss_mb"] > 10
    assert plain["seconds_per_round"] == (None if method == "soft-dct-ratio" else 0.5)
    assert plain["tested"] == 32


def test_methods_beside_stand_apart(tmp_path):
    methods = [outcome(), outcome("hgnn"), outcome("soft-dct-ratio")]
    figures = run_figures(town.begun(tmp_path), methods)
    assert figures["method"] == "falcon"
    assert set(figures["beside"]) == {"hgnn", "soft-dct-ratio"}
    assert figures["beside"]["hgnn"]["metrics"]["auc"] == 1.0


def test_without_hidden_people_there_are_no_metrics(tmp_path):
    begun = replace(town.begun(tmp_path), epidemic=None)
    real = replace(outcome(), metrics=None)
    figures = run_figures(begun, [real])
    assert figures["metrics"] is None
    assert figures["prevalence"] is None
    assert "outbreak" not in figures
    table = methods_table([real, replace(outcome("soft-dct-ratio"), metrics=None)])
    assert table.columns == ["method", "validation AUC", "epsilon", "s"]
    assert [row[1] for row in table.rows] == ["0.625", "-"]


def test_the_table_of_methods():
    table = methods_table([outcome(mode="local", person=7.99999), outcome("hgnn")])
    assert table.caption == "Methods on 80 hidden people, 40.0% of them infected"
    assert [row[0] for row in table.rows] == ["Falcon, local", "HGNN"]
    assert len(table.columns) == len(METRICS) + 3
    assert [row[-2:] for row in table.rows] == [["8", "12.3"], ["no bound", "12.3"]]
    few = methods_table([outcome()], ("auc", "dep"))
    assert few.columns == ["method", "AUC", "DEP", "epsilon", "s"]


def test_everybody_in_one_bin_does_not_look_calibrated():
    """Everybody is told about 25 %; of the highest quarter all are infected."""
    risk, truth = np.linspace(0.235, 0.265, 80), np.arange(80) >= 60
    metrics = evaluate(risk, truth, 0.8)
    assert metrics.ece < 0.01
    table = methods_table([replace(outcome(), metrics=metrics)])
    shown_there = dict(zip(table.columns, table.rows[0], strict=True))
    assert "ECE" not in shown_there
    assert float(shown_there["ECE, equal groups"]) > 0.3
    assert "ECE, equal groups" in dict(meanings_table().rows)


@pytest.mark.parametrize("kind", ["area", "poi"])
def test_every_statistic_of_a_city_has_plain_words(kind):
    assert {band.name for band in BANDS[kind]} == set(STATISTICS)


def test_an_undefined_metric_is_a_dash():
    unknown = replace(outcome(), metrics=evaluate(SCORES, SCORES > 2, 0.8))
    assert methods_table([unknown]).rows[0][1:3] == ["-", "-"]


def test_the_table_of_privacy_leaves_nothing_out():
    table = privacy_table([outcome(mode="paper", person=12345.6), outcome("hgnn")])
    assert [row[0] for row in table.rows] == [
        "upload/0",
        "places",
        "downloads",
        "all noised channels",
    ]
    assert table.rows[0][-1] == "12,346"
    assert table.rows[1][1:] == ["none: places in clear", *["no bound"] * 3]
    assert privacy_table([outcome()]).rows == []


@pytest.mark.parametrize("mode", ["paper", "local"])
def test_table_and_card_list_the_same_channels_without_a_bound(mode):
    one = outcome(mode=mode, person=9.0)
    card = PrivacyCard(
        run="run", method="falcon", seed=0, people=0, rounds=6, spent=one.spent,
        attacks=(), releases=(), settings_toml="",
    )  # fmt: skip
    listed = {row[0] for row in privacy_table([one]).rows if "none:" in row[1]}
    assert listed == {channel for channel, _ in card.bare}
    assert "downloads" in listed


def test_the_table_of_forecasts():
    table = forecast_table([outcome(forecast=FORECAST), outcome("hgnn")])
    assert table.columns == ["forecast", "MAE 1", "MAE 2", "RMSE 1", "RMSE 2"]
    assert table.rows[0] == ["region model", "0.1000", "0.2000", "0.3000", "-"]
    assert [row[0] for row in table.rows[1:]] == ["last value", "new rival"]
    assert "reported cases" in table.caption
    assert forecast_table([outcome("hgnn")]).rows == []


def test_numbers_as_they_are_shown():
    assert (shown(0.12345), shown(None), shown(1, 4)) == ("0.123", "-", "1.0000")
    found = [
        shown_epsilon(one) for one in (None, 0.123456, 999.96, 1000, 12345.6, math.inf)
    ]
    assert found == ["no bound", "0.1235", "1000", "1,000", "12,346", "no bound"]
