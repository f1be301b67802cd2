import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.privacy.accounting import Uploads, reference_epsilon
from epifalcon.privacy.events import UNITS, GaussianRelease, Releases, Terms
from epifalcon.privacy.ledger import Ledger

quick = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_cost_is_what_a_ledger_of_such_a_run_says(relation):
    uploads = Uploads(
        clip=0.3, rounds=7, layers=2, slots=30, slots_per_day=6, relation=relation
    )
    ledger = Ledger()
    each = Releases(visit=1, day=6, person=30)
    for number in range(7):
        for layer in range(2):
            terms = Terms(
                channel=f"upload/{layer}",
                releases=each,
                round=number,
                relation=relation,
            )
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
def test_the_sigma_of_a_wish_keeps_it_and_no_more(epsilon, unit, rounds, slots):
    uploads = Uploads(rounds=rounds, slots=slots)
    sigma = uploads.sigma_for(epsilon, unit)
    assert getattr(uploads.cost(sigma), unit) == pytest.approx(epsilon, rel=1e-7)
    assert getattr(uploads.cost(0.99 * sigma), unit) > epsilon


def test_dp_accounting_says_the_same():
    uploads = Uploads(rounds=3, layers=1, slots=4)
    found = uploads.checked(0.4, "person")
    exact = uploads.cost(0.4).person
    assert found["pld"] == pytest.approx(exact, rel=1e-3)
    assert exact <= found["rdp"] == reference_epsilon(4.0, 12, method="rdp")
