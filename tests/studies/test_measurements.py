import json
from dataclasses import replace

import numpy as np
import pytest

from epifalcon import store
from epifalcon.errors import CorruptFileError
from epifalcon.evaluation.metrics import curve
from epifalcon.experiments.measurements import (
    RECALLS,
    Failed,
    Measured,
    Training,
    precision_at_recalls,
)
from tests.studies.measured_figures import measured


def without(folder, key):
    """Write the stored figures again, as a version that did not know ``key``."""
    read = store.read(folder / "measured", "measured")
    meta = {name: value for name, value in read.meta.items() if name != key}
    store.write(
        folder / "measured", "measured", read.arrays, meta=meta, origin=read.origin
    )


def test_figures_are_read_as_they_were_written(tmp_path):
    training = Training(learning_rate=0.01, steps=300, at_limit=True)
    made = replace(measured(3), training=training)
    made.save(tmp_path, store.Origin({}, 3))
    read = Measured.load(tmp_path)
    for name, value in vars(made).items():
        np.testing.assert_equal(getattr(read, name), value)
    assert Measured.load(tmp_path / "none") is None
    without(tmp_path, "training")
    assert Measured.load(tmp_path).training == Training()
    without(tmp_path, "title")
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
    expected = []
    for recall in RECALLS:
        for threshold in sorted(set(scores), reverse=True):
            called = scores >= threshold
            if (truth & called).sum() >= recall * truth.sum() - 1e-9:
                expected.append(truth[called].mean())
                break
    np.testing.assert_allclose(precision_at_recalls(curve(scores, truth)), expected)
    assert np.isnan(precision_at_recalls(curve([0.1], [False]))).all()
