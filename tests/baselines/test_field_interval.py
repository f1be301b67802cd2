import dataclasses

import numpy as np
import pytest
from scipy.special import expit

from epifalcon.baselines.falcon_field import FalconField
from epifalcon.baselines.field_interval import interval, shaken, spread_of
from epifalcon.epidemic.pathogen import OMICRON
from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.models.field.calibrating import AS_IT_IS, Bend
from epifalcon.models.field.settings import FieldSettings, TransmissionSettings
from tests.baselines.test_hbp import town_scene
from tests.studies import town

EVERYBODY = np.ones(4000, np.bool_)


def runs(spread, level, count, seed=0):
    """Risks of runs that differ by ``spread`` in each person and ``level`` in all."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1, 0.5, 4000)
    return [
        expit(odds + rng.normal(0, level) + rng.normal(0, spread, 4000))
        for _ in range(count)
    ]


def test_the_spread_is_that_of_people_and_not_of_the_level():
    found = spread_of(runs(0.3, 2.0, 12), EVERYBODY)
    assert np.sqrt(found.mean()) == pytest.approx(0.3, rel=0.03)
    none = spread_of(runs(0.0, 2.0, 4), ~EVERYBODY)
    assert none.max() < 1e-12


def test_nine_of_ten_intervals_hold_the_odds_that_runs_spread_around():
    rng = np.random.default_rng(2)
    true = rng.normal(-1, 0.5, 4000)
    bend, unsure = Bend(1.2, 0.3, -1.0), np.diag([0.04, 0.09])
    spread = np.full(4000, 0.16)
    held = []
    for _ in range(40):
        slope, offset = rng.normal([1.2, 0.3], np.sqrt(np.diag(unsure)))
        seen = true + rng.normal(0, 0.4, 4000)
        wanted = expit(-1.0 + slope * (true + 1.0) + offset)
        ends = interval(bend(expit(seen)), spread, bend, unsure)
        held.append(((ends.low <= wanted) & (wanted <= ends.high)).mean())
    assert np.mean(held) == pytest.approx(0.9, abs=0.06)


def test_ends_are_risks_around_the_one_told():
    risk = np.array([0.0, 1e-9, 0.5, 1.0])
    ends = interval(risk, np.full(4, 100.0), AS_IT_IS, np.zeros((2, 2)))
    assert (ends.low <= risk).all()
    assert (ends.high >= risk).all()
    assert ((ends.low >= 0) & (ends.high <= 1)).all()


def test_shaken_rates_stay_near_the_published_ones():
    rng = np.random.default_rng(0)
    betas = [shaken(OMICRON, rng).beta / OMICRON.beta for _ in range(400)]
    assert np.log(betas).std() == pytest.approx(0.2, rel=0.15)


def test_a_run_tells_an_interval_where_one_is_wished_for():
    one = TransmissionSettings(law="one", choosing_sweeps=3)
    field = FieldSettings(sweeps=4, folds=3, region=one, ensemble=3)
    found = FalconField(town_scene(), FieldWishes(field=field)).fit(town.known()).found
    plain = dataclasses.replace(field, ensemble=0)
    without = FalconField(town_scene(), FieldWishes(field=plain)).fit(town.known())
    np.testing.assert_array_equal(found.risk, without.found.risk)
    assert without.found.low is None
    assert (found.low < found.risk).all()
    assert (found.risk < found.high).all()
    width = found.told["interval_width"]
    assert width == pytest.approx((found.high - found.low).mean())
    with pytest.raises(SettingsError, match="ensemble=1"):
        FieldSettings(ensemble=1)
