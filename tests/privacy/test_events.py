import doctest
import importlib

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.privacy.events import ONE_VECTOR, GaussianRelease, Releases, Terms
from epifalcon.settings import as_plain, build

FORTNIGHT = Releases(visit=1, day=12, person=168)


def gaussian(sigma=0.2, relation="zero-out", adversary="each-upload"):
    terms = Terms(
        channel="upload", releases=FORTNIGHT, relation=relation, adversary=adversary
    )
    return GaussianRelease(terms=terms, clip=0.1, sigma=sigma)


def test_replacing_a_row_moves_it_twice_as_far():
    assert gaussian(relation="replace").sensitivity == pytest.approx(0.2)
    assert gaussian(relation="replace").squared_mu("visit") == pytest.approx(1.0)


def test_add_remove_is_refused_for_an_adversary_that_sees_each_upload():
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
        "attacks.audit.bounds",
        "logistic",
    ],
)
def test_the_examples_in_the_docstrings_hold(name):
    module = importlib.import_module(f"epifalcon.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed
