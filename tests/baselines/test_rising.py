import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.rising import rising_risk
from epifalcon.errors import DataError


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(2, 40), st.sampled_from([1e-12, 1.0, 1e6]))
def test_it_never_falls_and_stays_a_probability(seed, people, size):
    rng = np.random.default_rng(seed)
    score = size * rng.choice([rng.random(people), rng.integers(0, 3, people)])
    status = rng.choice([-1, 0, 1], people).astype(np.int8)
    status[:2] = 1, 0
    risk = rising_risk(score, status)
    assert np.isfinite(risk).all()
    assert ((risk >= 0) & (risk <= 1)).all()
    assert (np.diff(risk[np.argsort(score, kind="stable")]) >= -1e-12).all()
    tested = status >= 0
    assert risk[tested].mean() == pytest.approx((status[tested] == 1).mean(), abs=1e-6)


def test_one_kind_of_result_is_refused():
    for status, word in (([1, -1], "negative"), ([0, -1], "positive")):
        with pytest.raises(DataError, match=f"nobody tested {word}"):
            rising_risk(np.zeros(2), np.array(status, np.int8))
