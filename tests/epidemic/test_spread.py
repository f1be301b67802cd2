import numpy as np
import pytest

from epifalcon.epidemic.spread import expected_cases, slot_hazard
from tests.epidemic.worlds import traces_of


@pytest.mark.parametrize("dose", [0.0, 1e-9, 0.3, 0.999, 1.0, 5.0])
def test_slot_hazard_gives_the_chance(dose):
    assert -np.expm1(-slot_hazard(dose, False)) == pytest.approx(1 - np.exp(-dose))
    assert -np.expm1(-slot_hazard(dose, True)) == pytest.approx(min(dose, 1))


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("over_susceptible", [False, True])
def test_expected_cases_against_the_loop(linear, over_susceptible):
    rng = np.random.default_rng(8)
    rows = rng.integers(-1, 3, size=(9, 14))
    traces = traces_of(rows, regions=3)
    visits = rng.integers(0, 3, size=(2, 9)).astype(float)
    force, weight, factors = 0.8, 0.4, np.array([1.0, 0.2, 3.0])
    for person in range(14):
        escape = np.ones(14)
        for slot, here in enumerate(rows):
            if here[person] < 0:
                continue
            there = (here == here[person]) & (np.arange(14) != person)
            crowd = there.sum() + (not over_susceptible)
            if crowd == 0:
                continue
            for kind, factor in enumerate((weight, 1.0)):
                dose = factor * force / crowd * factors[here[person]]
                chance = min(dose, 1) if linear else 1 - np.exp(-dose)
                escape[there] *= (1 - chance) ** visits[kind, slot]
        rule = (force, weight, linear, over_susceptible)
        found = expected_cases(traces.by_slot, person, visits, rule, factors)
        assert found == pytest.approx((1 - escape).sum())
