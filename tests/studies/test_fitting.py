from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.federation.settings import PrivacySettings, StoppingSettings
from epifalcon.models.settings import FalconSettings, RegionSettings, TrainingSettings
from epifalcon.privacy.pseudo.domains import DomainSettings
from epifalcon.privacy.pseudo.record import PseudoSettings
from epifalcon.streams import Streams
from epifalcon.studies import prediction
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from epifalcon.studies.prediction import HGNN, PredictionSettings, fit

SMALL = FalconSettings(rounds=20)
FALCON = PredictionSettings(
    model=SMALL,
    region=RegionSettings(training=TrainingSettings(steps=3)),
    pseudo=PseudoSettings(domains=DomainSettings(count=2, least_regions=5)),
)
CENTRAL = replace(HGNN, model=SMALL)


@pytest.fixture(scope="module")
def town():
    words = ["city.people=150", "city.regions=30", "city.days=5"]
    experiment = Experiment.load("hamlet", [*words, "outbreak.seed_count=15"])
    traces = make_city(experiment, seed=5)
    epidemic = next(run_epidemics(experiment, traces, seed=5))
    return traces, epidemic.labels.known


def flipped(known, people):
    positive = known.positive.copy()
    positive[np.isin(known.person, people)] ^= True
    return Known(known.people, known.person, positive, known.slot)


@pytest.mark.parametrize("settings", [CENTRAL, FALCON], ids=["hgnn", "falcon"])
def test_equal_arguments_give_equal_bits(town, settings):
    first, second = (fit(*town, settings, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.probability, second.probability)
    assert first.checks == second.checks
    assert ((first.probability >= 0) & (first.probability <= 1)).all()


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_results_held_back_reach_no_part_of_the_training(town, monkeypatch, mode):
    traces, known = town
    held_back = prediction._hold_back(known, FALCON.stopping, Streams(3))
    monkeypatch.setattr(prediction, "_hold_back", lambda *_: held_back)
    sigma = None if mode == "off" else 0.1
    settings = replace(
        FALCON,
        privacy=PrivacySettings(mode=mode, upload_sigma=sigma),
        stopping=StoppingSettings(patience=100),
    )
    before = fit(traces, known, settings, seed=3)
    after = fit(traces, flipped(known, held_back), settings, seed=3)
    assert [loss for _, loss, _ in before.checks] == [
        loss for _, loss, _ in after.checks
    ]
    for (_, _, auc), (_, _, opposite) in zip(before.checks, after.checks, strict=True):
        assert auc == pytest.approx(1 - opposite)


def test_a_trained_result_does_matter(town):
    traces, known = town
    held_back = prediction._hold_back(known, FALCON.stopping, Streams(3))
    others = np.setdiff1d(known.person[known.positive], held_back)
    before, after = (
        fit(traces, tests, CENTRAL, seed=3)
        for tests in (known, flipped(known, others[:3]))
    )
    assert before.checks[0] != after.checks[0]


def test_privacy_is_accounted_for(town):
    private = replace(FALCON, privacy=PrivacySettings(mode="local", epsilon=8.0))
    found = fit(*town, private, seed=3)
    assert found.spent.epsilon()["person"] <= 8.0 + 1e-6
    assert {item.channel for item in found.spent.unprotected} >= {"places"}
    assert found.forecast is not None
    assert fit(*town, CENTRAL, seed=3).forecast is None


@pytest.mark.parametrize("positive", [True, False])
def test_one_kind_of_result_is_not_enough(town, positive):
    traces, known = town
    one_kind = known.of_people((known.status == 1) == positive)
    with pytest.raises(DataError, match="at least 2 are needed"):
        fit(traces, one_kind, CENTRAL, seed=3)


def test_validation_people_are_of_both_kinds_and_tested(town):
    _, known = town
    held_back = prediction._hold_back(known, FALCON.stopping, Streams(3))
    assert set(known.status[held_back]) == {0, 1}
    assert len(held_back) == pytest.approx(0.1 * known.tested.sum(), abs=1)
