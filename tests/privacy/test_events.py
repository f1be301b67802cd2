import doctest
import importlib
import math

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.privacy.events import (
    ONE_VECTOR,
    GaussianRelease,
    PseudoTraceRelease,
    Releases,
    Terms,
    UnprotectedRelease,
    unprotected,
)
from epifalcon.settings import as_plain, build

FORTNIGHT = Releases(visit=1, day=12, person=168)


def gaussian(sigma=0.2, relation="zero-out", adversary="each-upload"):
    terms = Terms(
        channel="upload", releases=FORTNIGHT, relation=relation, adversary=adversary
    )
    return GaussianRelease(terms=terms, clip=0.1, sigma=sigma)


def test_squared_mu_counts_the_vectors_of_a_unit():
    assert gaussian().squared_mu("visit") == pytest.approx(0.25)
    assert gaussian().squared_mu("day") == pytest.approx(3.0)
    assert gaussian().squared_mu("person") == pytest.approx(42.0)


def test_replacing_a_row_moves_it_twice_as_far():
    assert gaussian(relation="replace").sensitivity == pytest.approx(0.2)
    assert gaussian(relation="replace").squared_mu("visit") == pytest.approx(1.0)


def test_no_noise_is_marked_and_costs_everything():
    bare = gaussian(sigma=0.0)
    assert not bare.protected
    assert bare.squared_mu("visit") == math.inf
    assert "without noise" in unprotected(bare)
    assert unprotected(gaussian()) is None


def test_places_in_clear_and_counts_are_unprotected():
    terms = Terms(channel="places", releases=FORTNIGHT)
    assert "2 pseudo" in unprotected(PseudoTraceRelease(terms=terms, copies=2))
    told = UnprotectedRelease(terms=terms, what="true counts N(r, t)")
    assert unprotected(told) == "true counts N(r, t)"


def test_silence_cannot_be_hidden_from_who_sees_each_upload():
    with pytest.raises(SettingsError, match="add-remove"):
        gaussian(relation="add-remove")
    assert gaussian(relation="add-remove", adversary="sums").sensitivity == 0.1


def test_a_receipt_survives_plain_values_whatever_numbers_made_it():
    terms = Terms(channel="x", releases=ONE_VECTOR, round=np.int64(3))
    odd = GaussianRelease(terms=terms, clip=1, sigma=np.float64(2))
    again = build(GaussianRelease, as_plain(odd))
    assert again == odd
    assert type(odd.clip) is float
    assert type(odd.terms.round) is int


@pytest.mark.parametrize(
    "name",
    [
        "privacy.events",
        "privacy.accounting",
        "evaluation.metrics",
        "evaluation.audit.bounds",
        "logistic",
    ],
)
def test_the_examples_in_the_docstrings_hold(name):
    module = importlib.import_module(f"epifalcon.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed
