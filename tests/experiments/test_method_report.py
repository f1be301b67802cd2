"""What a fitted estimator shows: table, explanation and page."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.methods.base import Context, Method
from epifalcon.methods.falcon import Falcon
from epifalcon.methods.falcon_field import FalconField
from epifalcon.methods.registry import load
from tests.studies import town


class Ramp(Method):
    """Risk grows with the number of the person."""

    name, title = "ramp", "Ramp <b>"

    def score(self, traces, tests):  # noqa: ARG002
        return np.linspace(0, 0.5, traces.people)


def named():
    traces = town.traces()
    return replace(traces, names=tuple(f"<p{n}>" for n in range(traces.people)))


def fit(method, traces=None, context=None):
    return method.fit(
        town.traces() if traces is None else traces, town.known(), context
    )


def test_the_page_of_any_method(tmp_path):
    model, path = fit(Ramp(seed=2), named()), tmp_path / "new" / "page.html"
    model.report(path)
    text = path.read_text("utf-8")
    assert "Ramp &lt;b&gt;" in text
    assert "Ramp <b>" not in text
    highest = np.flatnonzero(~town.known().tested)[-1]
    assert f"&lt;p{highest}&gt;" in text
    assert "Risk grows with the number of the person." in text
    assert "No privacy protection" in text
    assert "data:image/png;base64," in text
    assert 'src="http' not in text
    # A second report replaces the first.
    model.report(path)
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]


def test_the_page_without_anybody_untested(tmp_path):
    people = np.arange(80, dtype=np.int32)
    tests = TestResults(80, people, people % 2 == 0, np.full(80, 59, np.int32))
    Ramp().fit(town.traces(), tests).report(tmp_path / "page.html")
    assert "Everybody was tested." in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    "model",
    [FalconField(privacy="sums"), Falcon(town.with_mode("paper"))],
    ids=["field", "falcon"],
)
def test_the_page_of_a_private_fit_has_its_epsilon(model, tmp_path):
    fit(model, context=Context(rule=town.experiment().outbreak))
    assert model.privacy_spent["epsilon"]["person"] > 0
    model.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "epsilon per person" in text
    assert "No privacy protection" not in text
    for channel in model.privacy_spent["channels"]:
        assert channel in text


def test_an_explanation_before_and_after_saving(tmp_path):
    traces = named()
    model = fit(FalconField(), traces)
    person = int(np.flatnonzero(~town.known().tested)[0])
    found = model.explain(f"<p{person}>")
    assert found.risk == pytest.approx(model.predict_proba()[person], abs=1e-6)
    assert found.before + found.by_day.sum() == pytest.approx(1)
    assert "day" in str(found)
    model.save(tmp_path / "fit")
    again = load(tmp_path / "fit").explain(f"<p{person}>")
    assert again.as_plain() == found.as_plain()
    with pytest.raises(DataError, match="nobody"):
        model.explain("nobody")
    brief = FalconField(field=FieldSettings(save_messages=False))
    fit(brief, traces).save(tmp_path / "brief")
    with pytest.raises(DataError, match="save_messages"):
        load(tmp_path / "brief").explain(f"<p{person}>")
