import numpy as np
import pytest
from hypothesis import given, settings

from epifalcon.epidemic.hazard import (
    hazard_r0,
    kappa_for_r0,
    mean_share_of_others,
    resolve_kappa,
)
from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from tests.epidemic.worlds import mixing_city, traces_of
from tests.oracles.cities import cities

CASES = settings(max_examples=60, deadline=None, derandomize=True)


@CASES
@given(cities())
def test_mean_share_of_others_equals_the_loop(traces):
    over_all, somebody = [], []
    for here in traces.by_slot.tolist():
        for region in here:
            if region >= 0:
                crowd = here.count(region)
                over_all.append(1 - 1 / crowd)
                somebody.append(crowd > 1)
    if not over_all:
        with pytest.raises(DataError, match="nobody was observed"):
            mean_share_of_others(traces)
        return
    assert mean_share_of_others(traces) == pytest.approx(np.mean(over_all), abs=1e-12)
    assert mean_share_of_others(traces, "I/S") == pytest.approx(
        np.mean(somebody), abs=1e-12
    )


def test_a_worked_example():
    traces = traces_of([[0, 0, 1, -1], [0, 0, 0, 0]])
    # 1 - 1/N: a half twice, 0 once, three quarters four times.
    assert mean_share_of_others(traces) == pytest.approx((1 + 0 + 3) / 7)
    assert kappa_for_r0(traces, SARS_COV_2, OutbreakSettings()) == pytest.approx(7 / 4)


@pytest.mark.parametrize("contact", ["I/N", "I/S"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_kappa_gives_the_wished_hazard_r0(contact, weight):
    traces = mixing_city()
    rule = OutbreakSettings(contact=contact, asymptomatic_weight=weight)
    for pathogen in (SARS_COV_2, OMICRON):
        kappa = resolve_kappa(traces, pathogen, rule)
        assert hazard_r0(traces, pathogen, rule, kappa) == pytest.approx(pathogen.r0)
        kappa = kappa_for_r0(traces, pathogen, rule, 2.5)
        assert hazard_r0(traces, pathogen, rule, kappa) == pytest.approx(2.5)


def test_where_nobody_meets():
    alone = traces_of([[0, 1], [1, 0]])
    rule = OutbreakSettings()
    assert resolve_kappa(alone, SARS_COV_2, rule) == 1
    with pytest.raises(SettingsError, match=r"wished_r0=5\.7 cannot be reached"):
        kappa_for_r0(alone, SARS_COV_2, rule)


def test_a_harmless_pathogen_needs_no_kappa():
    harmless = Pathogen(name="harmless", beta=0, alpha=1, mu=1)
    assert resolve_kappa(mixing_city(), harmless, OutbreakSettings()) == 1
    with pytest.raises(SettingsError, match="cannot be reached"):
        kappa_for_r0(mixing_city(), harmless, OutbreakSettings(), 2.0)
