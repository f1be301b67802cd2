import numpy as np
import pytest

from epifalcon.baselines.duration_dct import DurationDct
from epifalcon.baselines.method import Scene
from epifalcon.baselines.soft_dct import SoftDct, SoftDctRatio
from epifalcon.errors import DataError
from tests.baselines.small_cities import ODD, RESULTS, results_of
from tests.oracles.contacts_loop import encounters_by_loop
from tests.studies import town

GRADED = [DurationDct, SoftDct, SoftDctRatio]


def test_risk_rises_with_the_slots_spent_with_cases():
    traces, known = town.traces(), town.known()
    last = np.where(known.status == 1, traces.slots, -1).tolist()
    slots = np.array(encounters_by_loop(traces, last, 0)[0])
    risk = DurationDct(Scene(traces)).fit(known).predict_proba()
    order = np.argsort(slots, kind="stable")
    step = np.diff(slots[order]) > 0
    assert (np.diff(risk[order])[step] > 0).all()
    assert np.allclose(np.diff(risk[order])[~step], 0)


@pytest.mark.parametrize("method", GRADED)
def test_a_persons_own_result_moves_its_risk_by_the_curve_alone(method):
    # Both positive or both negative, the two have met the same.
    traces, known = town.traces(), town.known()
    found = method(Scene(traces)).fit(known)
    assert sorted(found.found.masked) == np.flatnonzero(known.tested).tolist()
    person = int(np.flatnonzero(known.status == 1)[0])
    other = method(Scene(traces)).fit(town.flipped(known, [person]))
    assert abs(found.predict_proba([person]) - other.predict_proba([person])) < 0.1


@pytest.mark.parametrize("method", GRADED)
@pytest.mark.parametrize("name", ODD)
def test_odd_cities_have_probabilities(name, method):
    risk = method(Scene(ODD[name])).fit(results_of(*RESULTS)).predict_proba()
    assert ((risk > 0) & (risk < 1)).all()
    if name in ("alone", "never seen"):
        np.testing.assert_allclose(risk, 3 / 9)


@pytest.mark.parametrize("method", GRADED)
@pytest.mark.parametrize("result", [0, 1])
def test_one_kind_of_result_is_refused(method, result):
    with pytest.raises(DataError, match="nobody tested"):
        method(Scene(town.traces())).fit(results_of(*[result] * 80))
