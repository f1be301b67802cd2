import json
from dataclasses import replace

import numpy as np
import pytest

from epifalcon import store
from epifalcon.errors import CorruptFileError
from epifalcon.evaluation.calibration import reliability
from epifalcon.evaluation.curves import curve
from epifalcon.experiments.measurements import (
    BINS,
    RECALLS,
    Failed,
    Measured,
    Training,
    precision_at_recalls,
    reliability_sums,
)
from tests.studies.measured_figures import measured


def test_figures_are_read_as_they_were_written(tmp_path):
    made = measured(3)
    made.save(tmp_path, store.Origin({}, 3))
    read = Measured.load(tmp_path)
    for name, value in vars(made).items():
        np.testing.assert_equal(getattr(read, name), value)
    measured(4).save(tmp_path, store.Origin({}, 4))
    assert Measured.load(tmp_path).seconds == 6
    assert Measured.load(tmp_path / "none") is None


def test_training_is_stored_and_may_be_missing(tmp_path):
    training = Training(learning_rate=0.01, steps=300, at_limit=True)
    replace(measured(3), training=training).save(tmp_path, store.Origin({}, 3))
    assert Measured.load(tmp_path).training == training
    place = tmp_path / "measured"
    kept = store.read(place, "measured")
    meta = {key: value for key, value in kept.meta.items() if key != "training"}
    store.write(place, "measured", kept.arrays, meta=meta, origin=kept.origin)
    assert Measured.load(tmp_path).training == Training()


def test_figures_of_another_version_are_told(tmp_path):
    made = measured(3)
    made.save(tmp_path, store.Origin({}, 3))
    kept = store.read(tmp_path / "measured", "measured")
    meta = {key: value for key, value in kept.meta.items() if key != "title"}
    store.write(
        tmp_path / "measured", "measured", kept.arrays, meta=meta, origin=kept.origin
    )
    with pytest.raises(CorruptFileError, match="another version"):
        Measured.load(tmp_path)


def test_a_failure_is_read_as_it_was_written(tmp_path):
    made = Failed("one\ntwo", "details", "abc", killed=True)
    made.save(tmp_path / "method")
    assert Failed.load(tmp_path / "method") == made
    assert Failed.load(tmp_path) is None
    for text in ("{", "[]", json.dumps({"strange": 1})):
        (tmp_path / "method" / "failed.json").write_text(text)
        assert "cannot be read" in Failed.load(tmp_path / "method").message


def test_precision_is_that_of_the_threshold_which_reaches_the_recall():
    rng = np.random.default_rng(1)
    scores, truth = rng.random(80).round(1), rng.random(80) < 0.4
    found = precision_at_recalls(curve(scores, truth))
    expected = []
    for recall in RECALLS:
        for threshold in sorted(set(scores), reverse=True):
            called = scores >= threshold
            if (truth & called).sum() >= recall * truth.sum() - 1e-9:
                expected.append(truth[called].mean())
                break
    np.testing.assert_allclose(found, expected)
    assert len(expected) == len(RECALLS)
    assert np.isnan(precision_at_recalls(curve([0.1], [False]))).all()


def test_sums_are_those_of_the_reliability_curve():
    rng = np.random.default_rng(2)
    risk = np.append(rng.random(500), [0.0, 1.0])
    ranked = curve(risk, rng.random(502) < risk)
    sums = reliability_sums(ranked)
    points = reliability(ranked, BINS, "width")
    held = sums[2] > 0
    np.testing.assert_allclose(sums[0][held] / sums[2][held], points.mean_risk)
    np.testing.assert_allclose(sums[1][held] / sums[2][held], points.infected_share)
    assert sums[2].sum() == 502
