import dataclasses

import numpy as np
import pytest

from epifalcon.baselines.method import Method, NoSettings, Scene, Scores, require_both
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from tests.studies import town


class Says(Method):
    """Says what it is told to."""

    name, title = "says", "Says"
    answer = None

    def score(self, traces, known):
        return self.answer(traces, known)


def says(answer):
    method = Says(Scene(town.traces()))
    method.answer = answer
    return method


def by_first_region(traces, _known):
    """A risk that tells people apart, by what they did."""
    return (traces.by_slot[0] + traces.by_slot[-1]) / (2 * len(traces.regions))


def test_the_answer_comes_back_in_the_order_of_the_city():
    traces = town.traces()

    def first_people_visits(own, _known):
        return (own.by_slot >= 0).mean(0) * np.linspace(0, 1, own.people)

    method = says(first_people_visits).fit(town.known())
    from epifalcon.baselines.ordering import own_order

    order = own_order(traces)
    expected = np.empty(traces.people)
    expected[order.people] = first_people_visits(order.traces(traces), None)
    assert (method.predict_proba() == expected).all()


def test_masked_people_come_back_in_the_order_of_the_city():
    def score(traces, known):
        masked = np.flatnonzero(known.tested)[:4].astype(np.int32)
        risk = np.linspace(0, 1, traces.people)
        return Scores(risk, masked=masked, masked_risk=risk[masked])

    found = says(score).fit(town.known()).found
    assert town.known().tested[found.masked].all()
    assert (found.risk[found.masked] == found.masked_risk).all()


def test_some_people_are_asked_for_in_any_order():
    method = says(by_first_region).fit(town.known())
    risk = method.predict_proba()
    assert (method.predict_proba([7, 0, 7]) == risk[[7, 0, 7]]).all()
    assert method.predict_proba([]).shape == (0,)


def test_what_was_found_cannot_be_changed_from_outside():
    method = says(by_first_region).fit(town.known())
    method.predict_proba()[:] = 0.5
    method.predict_proba([0, 1])[:] = 0.5
    assert (method.predict_proba() == method.found.risk).all()
    assert len(set(method.predict_proba())) > 1


@pytest.mark.parametrize("people", [[-1], [0, 80], [10**6]])
def test_people_who_are_not_there_are_refused(people):
    method = says(by_first_region).fit(town.known())
    with pytest.raises(DataError, match="from 0 to 79"):
        method.predict_proba(people)


@pytest.mark.parametrize("wrong", [-1e-9, 1 + 1e-9, np.nan, np.inf])
def test_a_risk_that_is_none_is_refused(wrong):
    def score(traces, _known):
        risk = np.full(traces.people, 0.5)
        risk[3] = wrong
        return risk

    told = "a number" if np.isnan(wrong) else "between 0 and 1"
    with pytest.raises(DataError, match=f"says: a risk is not {told}"):
        says(score).fit(town.known())


def test_scores_of_another_length_are_refused():
    with pytest.raises(DataError, match=r"says: scores of shape \(3,\)"):
        says(lambda _traces, _known: np.zeros(3)).fit(town.known())


def test_nothing_is_told_before_the_fit():
    method = says(by_first_region)
    for ask in (method.predict_proba, lambda: method.cost, lambda: method.found):
        with pytest.raises(DataError, match="says is not fitted yet"):
            ask()


def test_a_failed_fit_leaves_the_former_outcome():
    method = says(by_first_region).fit(town.known())
    before = method.predict_proba()
    method.answer = lambda _traces, _known: np.zeros(3)
    with pytest.raises(DataError):
        method.fit(town.known())
    assert (method.predict_proba() == before).all()


def test_cost_is_what_the_fit_took():
    def score(traces, _known):
        return Scores(np.zeros(traces.people), steps=7, parameters=11)

    cost = says(score).fit(town.known()).cost
    assert (cost.steps, cost.parameters) == (7, 11)
    assert cost.seconds > 0


def test_tests_of_another_city_are_refused():
    one = np.zeros(1, np.int32)
    tests = Known(3, one, one == 0, one)
    with pytest.raises(DataError, match="tests among 3 people, but traces of 80"):
        says(by_first_region).fit(tests)


def test_settings_of_another_method_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Others:
        pass

    with pytest.raises(SettingsError, match="says takes NoSettings, not Others"):
        Says(Scene(town.traces()), Others())
    assert Says(Scene(town.traces())).settings == NoSettings()


def test_the_truth_is_only_for_a_ceiling():
    scene = Scene(town.traces(), everybody=town.epidemic().outbreak)
    with pytest.raises(SettingsError, match="the truth is not for it"):
        Says(scene)

    class Ceiling(Says):
        kind = "ceiling"

    assert Ceiling(scene).scene.everybody is not None


@pytest.mark.parametrize(
    ("positive", "word"),
    [([], "positive"), ([True], "negative"), ([False], "positive")],
)
def test_one_kind_of_result_alone_is_refused(positive, word):
    person = np.arange(len(positive), dtype=np.int32)
    tests = Known(3, person, np.array(positive, np.bool_), person)
    with pytest.raises(DataError, match=f"nobody tested {word}"):
        require_both(tests)
