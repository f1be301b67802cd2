from dataclasses import dataclass

import numpy as np
import pytest

from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.methods.base import Context, Method, NoSettings
from tests.studies import town


@dataclass(frozen=True, kw_only=True)
class Settings:
    width: int = 3


class Says(Method):
    """Returns a given answer."""

    name, title = "says", "Says"
    settings_type = Settings
    answer = staticmethod(lambda traces: np.linspace(0, 1, traces.people))

    def score(self, traces, known):  # noqa: ARG002
        return self.answer(traces)


def says(answer=None):
    method = Says()
    method.answer = answer or method.answer
    return method


def fit(method, **context):
    return method.fit(town.traces(), town.known(), Context(**context))


def test_some_people_in_any_order():
    method = fit(says())
    risk = method.predict_proba()
    assert (method.predict_proba([7, 0, 7]) == risk[[7, 0, 7]]).all()
    assert method.predict_proba([]).shape == (0,)
    for wrong in ([80], [-1]):
        with pytest.raises(DataError, match="from 0 to 79"):
            method.predict_proba(wrong)
    # A caller's changes do not reach the method.
    risk[:] = 9
    assert (method.predict_proba() == method.scores.risk).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.full(80, np.nan), "a risk is not a number between 0 and 1"),
        (np.full(80, 1.1), "a risk is not a number between 0 and 1"),
        (np.full(80, -0.1), "a risk is not a number between 0 and 1"),
        (np.zeros(3), r"scores of shape \(3,\), expected \(80,\)"),
    ],
)
def test_risks_that_are_none_are_refused(wrong, message):
    method = fit(says())
    before = method.predict_proba()
    method.answer = lambda _traces: wrong
    with pytest.raises(DataError, match=f"says: {message}"):
        fit(method)
    # A failed fit leaves the former result.
    assert (method.predict_proba() == before).all()


def test_tests_of_another_city_are_refused():
    one = np.zeros(1, np.int32)
    with pytest.raises(DataError, match="of 3 people, but the traces have 80"):
        says().fit(town.traces(), TestResults(3, one, one == 0, one))


def test_swapped_data_is_refused_with_the_expected_types():
    with pytest.raises(DataError, match="Traces and TestResults, not TestResults"):
        says().fit(town.known(), town.traces())


def test_hyperparameters_by_name_or_as_settings():
    assert Says(width=5, seed=4).settings == Says(Settings(width=5)).settings
    assert Says().settings == Settings()
    assert Says(seed=4).seed == 4
    with pytest.raises(SettingsError, match="says takes Settings, not NoSettings"):
        Says(NoSettings())
    with pytest.raises(SettingsError, match=r"says\.widht.*says\.width"):
        Says(widht=5)
    with pytest.raises(SettingsError, match="not both"):
        Says(Settings(), width=5)
