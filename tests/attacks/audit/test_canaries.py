"""Canary visits: what the auditor reads is what was put in, held by the clip."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.attacks.audit.canaries import BLANKS, CanaryPeople, CanaryVisits
from epifalcon.errors import DataError
from epifalcon.models.person_model import initial_parameters
from epifalcon.privacy.gaussian import GaussianMechanism
from tests.attacks.audit.plans import MODEL, paper, plan_of


def visits(plan, seed=1, count=300):
    return CanaryVisits(plan, MODEL, seed, count)


@pytest.mark.parametrize("way", ["uploads", "fast"])
@pytest.mark.parametrize(("relation", "out"), [("zero-out", 0.0), ("replace", -1.0)])
@pytest.mark.parametrize("kind", ["upload", "return", "scoring"])
def test_without_noise_a_canary_scores_one_clip_or_nothing(way, relation, out, kind):
    made = visits(paper(0.0, relation=relation))
    seen = getattr(made, way)(kind, 0, range(3))
    assert seen.scores.shape == (3, len(seen.included))
    expected = np.where(seen.included, 1.0, out)
    assert np.allclose(seen.scores, expected, atol=1e-5)
    assert seen.middle == (1 + out) / 2
    assert not seen.blank["rows"].any()
    assert np.allclose(seen.lengths, np.abs(expected), atol=1e-5)
    assert (seen.unit, seen.channel) == ("visit", f"{kind}/0")


@pytest.mark.parametrize("way", ["uploads", "fast"])
def test_with_noise_scores_spread_as_claimed(way):
    seen = getattr(visits(paper(0.2), count=2000), way)("upload", 0, range(4))
    rest = seen.scores - seen.included
    error = 2 / np.sqrt(2 * rest.size)
    assert abs(rest.std() - 2) < 5 * error
    assert abs(rest.mean()) < 5 * 2 / np.sqrt(rest.size)
    # Fresh in every round: the sum over rounds spreads by the root of their number.
    assert abs(rest.sum(axis=0).std() - 4) < 5 * 4 / np.sqrt(2 * rest.shape[1])
    blank = seen.blank["rows"]
    assert abs(blank.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * blank.size)


def test_counts_are_ones_and_zeros_with_noise():
    plan = plan_of(mode="local")
    quiet = replace(plan, presence=GaussianMechanism(1.0, 1e-9))
    seen = visits(quiet).counts()
    assert np.allclose(seen.scores[0], seen.included, atol=1e-6)
    assert np.allclose(seen.blank["presence"], 0, atol=1e-6)
    opposed = replace(quiet, relation="replace")
    assert np.array_equal(visits(opposed).counts().included, seen.included)
    loud = visits(plan).counts().blank["presence"]
    sigma = plan.presence.sigma
    assert abs(loud.std() - sigma) < 5 * sigma / np.sqrt(2 * loud.size)


def test_nothing_is_promised_nothing_is_audited():
    with pytest.raises(DataError, match="has no guarantee"):
        visits(plan_of(mode="off")).uploads("upload", 0, [0])


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(("relation", "out"), [("zero-out", 0.0), ("replace", -1.0)])
def test_without_noise_a_person_scores_one_clip_or_nothing(relation, out, together):
    people = CanaryPeople(paper(0.0, relation=relation), MODEL, 1, 40, together)
    seen = people.gradients([0, 7])
    expected = np.where(seen.included, 1.0, out)
    assert np.allclose(seen.scores, expected, atol=1e-5)
    assert np.allclose(seen.lengths, np.abs(expected), atol=1e-5)
    assert (seen.middle, seen.rounds) == ((1 + out) / 2, (0, 7))
    assert (seen.unit, seen.channel) == ("person", "gradient")
    assert not any(one.any() for one in seen.blank.values())


@pytest.mark.parametrize("kind", ["embedding", "status"])
def test_every_parameter_of_the_model_is_sent(kind):
    model = replace(MODEL, input=kind, layers=3)
    seen = CanaryPeople(paper(0.1, model), model, 1, 2).gradients([0])
    made = initial_parameters(model, 0, np.random.default_rng(0))
    assert set(seen.blank) == set(made)
    shapes = {name: (1, BLANKS, 1, one.numel()) for name, one in made.items()}
    assert {name: one.shape for name, one in seen.blank.items()} == shapes
    assert seen.size == sum(one.numel() for one in made.values())


@pytest.mark.parametrize("together", [1, 4])
def test_with_noise_gradients_spread_as_claimed(together):
    seen = CanaryPeople(paper(0.2), MODEL, 1, 200, together).gradients(range(2))
    rest, sigma = seen.scores - seen.included, 2 * np.sqrt(together)
    assert abs(rest.std() - sigma) < 5 * sigma / np.sqrt(2 * rest.size)
    for blank in seen.blank.values():
        assert abs(blank.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * blank.size)
