import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import SettingsError
from epifalcon.privacy.accounting import (
    Uploads,
    epsilon_of,
    gaussian_mu,
    log_delta_of,
    mu_for,
    paper_epsilon,
    paper_sigma,
    reference_epsilon,
)
from epifalcon.privacy.events import UNITS, GaussianRelease, Releases, Terms
from epifalcon.privacy.ledger import Ledger
from tests.oracles import gaussian_dp

mus = st.floats(-6, 4).map(lambda power: 10.0**power)
deltas = st.floats(-14, -0.01).map(lambda power: 10.0**power)
quick = settings(max_examples=60, deadline=None, derandomize=True)

# sigma, the paper's epsilon at delta .001, one visit, 168 slots, 480 slots.
TABLE = [
    (0.05, 3776, 1212, 170754, 484656),
    (0.10, 1888, 355, 43377, 122328),
    (0.15, 1259, 181, 19584, 54885),
    (0.20, 944, 115, 11188, 31163),
    # The published noise to four figures is 0.3776; the row belongs to 0.37764.
    (0.37764, 500, 45, 3309, 9030),
]


@pytest.mark.parametrize(("sigma", "paper", "visit", "fortnight", "forty"), TABLE)
def test_the_table_of_500_rounds_comes_out(sigma, paper, visit, fortnight, forty):
    assert paper_epsilon(sigma, 1e-3, 0.1, 500) == pytest.approx(paper, abs=0.7)
    for slots, expected in ((1, visit), (168, fortnight), (480, forty)):
        found = epsilon_of(gaussian_mu(0.1, sigma, 500 * slots), 1e-6)
        assert found == pytest.approx(expected, abs=0.7)


@quick
@given(mus, deltas)
def test_epsilon_meets_its_delta_by_the_oracle(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon == 0:
        # At epsilon 0 the definition is the total variation distance.
        assert math.erf(mu / math.sqrt(8)) <= delta * (1 + 1e-9)
    else:
        expected = math.log(delta)
        found = gaussian_dp.log_delta(epsilon, mu)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-8)


@quick
@given(mus, st.floats(-8, 8).map(lambda power: 10.0**power))
def test_delta_agrees_with_120_digits(mu, epsilon):
    # Beyond this the oracle's own digits run out; delta is under exp(-100 000).
    if epsilon / mu - mu / 2 > 400:
        return
    found = log_delta_of(epsilon, mu)
    expected = gaussian_dp.log_delta(epsilon, mu)
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-8)


@quick
@given(st.floats(-6, 6).map(lambda power: 10.0**power), deltas)
def test_mu_and_epsilon_undo_each_other(epsilon, delta):
    again = epsilon_of(mu_for(epsilon, delta), delta)
    # Where delta is large, a tiny epsilon is a difference of near equals.
    assert again == pytest.approx(epsilon, rel=1e-7, abs=1e-9)


def test_the_edges_of_mu():
    assert epsilon_of(0.0) == 0
    assert epsilon_of(math.inf) == math.inf
    assert log_delta_of(1.0, 0.0) == -math.inf
    assert log_delta_of(1.0, math.inf) == 0
    assert gaussian_mu(0.1, 0.0) == math.inf
    assert gaussian_mu(0.0, 0.0) == 0
    assert epsilon_of(mu_for(0.0, 1e-6) * 0.999, 1e-6) == 0
    assert mu_for(5e-324, 1e-6) == pytest.approx(mu_for(0.0, 1e-6))


@pytest.mark.parametrize("mu", [5e-324, 1e-200, 1e-9, 1e9, 1e74, 1e200, 1e308])
def test_no_mu_is_too_extreme(mu):
    for delta in (1e-300, 1e-6, 0.5, 0.999999):
        epsilon = epsilon_of(mu, delta)
        assert epsilon == pytest.approx(mu * mu / 2, rel=1e-6) or mu < 1
        assert epsilon == 0 or mu > 1 or epsilon < 1e-6
    for epsilon in (0.0, 1e-300, 1.0, 1e8, 1e300):
        assert -math.inf <= log_delta_of(epsilon, mu) <= 1e-12


def test_the_papers_formula_as_published():
    assert paper_sigma(1, 1e-3, 0.1, 500) == pytest.approx(188.8, abs=0.05)
    sigma = paper_sigma(3, 1e-5, 0.1, 20)
    assert paper_epsilon(sigma, 1e-5, 0.1, 20) == pytest.approx(3)
    assert paper_epsilon(0.0, 1e-5, 0.1, 20) == math.inf


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SettingsError, match=r"epifalcon\[audit\]"):
        reference_epsilon(1.0, 1)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_cost_is_what_a_ledger_of_such_a_run_says(relation):
    uploads = Uploads(
        clip=0.3, rounds=7, layers=2, slots=30, slots_per_day=6, relation=relation
    )
    ledger = Ledger()
    each = Releases(visit=1, day=6, person=30)
    for number in range(7):
        for layer in range(2):
            names = {"channel": f"upload/{layer}", "relation": relation}
            terms = Terms(**names, releases=each, round=number)
            ledger.record(GaussianRelease(terms=terms, clip=0.3, sigma=0.9))
    cost, spent = uploads.cost(0.9), ledger.spent().epsilon()
    for unit in UNITS:
        assert getattr(cost, unit) == pytest.approx(spent[unit], rel=1e-9)


@quick
@given(
    epsilon=st.floats(0.05, 500),
    unit=st.sampled_from(UNITS),
    rounds=st.integers(1, 600),
    slots=st.integers(1, 500),
)
def test_sigma_for_an_epsilon_is_the_smallest(epsilon, unit, rounds, slots):
    uploads = Uploads(rounds=rounds, slots=slots)
    sigma = uploads.sigma_for(epsilon, unit)
    assert getattr(uploads.cost(sigma), unit) == pytest.approx(epsilon, rel=1e-7)
    assert getattr(uploads.cost(0.99 * sigma), unit) > epsilon


def test_dp_accounting_says_the_same():
    pytest.importorskip("dp_accounting")
    uploads = Uploads(rounds=3, layers=1, slots=4)
    found = uploads.checked(0.4, "person")
    exact = uploads.cost(0.4).person
    assert found["pld"] == pytest.approx(exact, rel=1e-3)
    assert exact <= found["rdp"] == reference_epsilon(4.0, 12, method="rdp")
