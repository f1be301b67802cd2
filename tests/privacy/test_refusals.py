"""Values that settings, mechanisms and receipts must refuse, in one table."""

import math
from functools import partial

import pytest

from epifalcon.attacks.audit.releases import AuditSettings
from epifalcon.errors import SettingsError
from epifalcon.evaluation.metrics import MetricSettings, evaluate
from epifalcon.privacy.accounting import (
    Uploads,
    epsilon_of,
    gaussian_mu,
    log_delta_of,
    mu_for,
    paper_sigma,
    reference_epsilon,
    sigma_for,
)
from epifalcon.privacy.events import ONE_VECTOR, GaussianRelease, Releases, Terms
from epifalcon.privacy.gaussian import GaussianMechanism
from epifalcon.privacy.ledger import Budget
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings


def uploads(**given):
    return Uploads(**given).sensitivity


TABLE = {
    MetricSettings: {"budget": [0, 1.5], "bins": [0]},
    partial(evaluate, [0.5, 0.1], [1, 0]): {"extinction_recall": [-0.1, math.nan]},
    DomainSettings: {"count": [0, 2.5], "gamma": [-1.0], "least_regions": [0]},
    PseudoSettings: {
        "method": ["plausibel"],
        "pseudo_copies": [-1, 1.5, 20],
        "people_share": [0.0, -0.5, 1.01, math.nan],
    },
    AuditSettings: {
        "canaries": [1],
        "rounds": [0],
        "confidence": [1.0],
        "strengths": [(), ("run", "run"), ("whole",)],
        "guess_share": [0.0],
    },
    Budget: {"person": [-1.0], "day": [math.nan], "delta": [0.0, 1.0]},
    uploads: {
        "clip": [0.0],
        "rounds": [0],
        "slots": [0],
        "slots_per_day": [0],
        "delta": [1.0],
        "paper_delta": [0.0],
        "relation": ["add-remove", "none"],
    },
    partial(GaussianMechanism, sigma=1.0): {"clip": [0.0, math.inf]},
    partial(GaussianMechanism, 1.0): {"sigma": [-1.0]},
    partial(mu_for, 1.0): {"delta": [0.0, 1.0]},
    mu_for: {"epsilon": [-1.0]},
    epsilon_of: {"mu": [-1.0, math.nan]},
    partial(epsilon_of, 1.0): {"delta": [2.0]},
    partial(log_delta_of, mu=1.0): {"epsilon": [-1.0]},
    partial(gaussian_mu, 0.1, 0.1): {"releases": [-1]},
    partial(sigma_for, 8, 1e-6, 0.1): {"releases": [0]},
    partial(paper_sigma, delta=1e-6, clip=0.1, rounds=1): {"epsilon": [0]},
    partial(reference_epsilon, 1.0, 1): {"method": ["guess"]},
    partial(Releases, day=1, person=1): {"visit": [0]},
    partial(Releases, visit=1, person=12): {"day": [13]},
    partial(Terms, releases=ONE_VECTOR): {"channel": [" "]},
    partial(Terms, channel="x", releases=ONE_VECTOR): {
        "round": [-1],
        "relation": ["similar"],
        "adversary": ["nobody"],
    },
    partial(GaussianRelease, terms=Terms(channel="x", releases=ONE_VECTOR), clip=1.0): {
        "sigma": [-1.0, math.nan, math.inf]
    },
    ONE_VECTOR.of: {"unit": ["week"]},
}
CASES = [
    pytest.param(make, name, value, id=f"{name}={value}")
    for make, wrong in TABLE.items()
    for name, values in wrong.items()
    for value in values
]


@pytest.mark.parametrize(("make", "name", "value"), CASES)
def test_refused_by_name(make, name, value):
    with pytest.raises(SettingsError, match=name.removesuffix("s")):
        make(**{name: value})
