"""Canary visits: what the auditor reads is what was put in, held by the clip."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.canaries import CanaryVisits, cohort_of
from epifalcon.privacy.perturb import UploadMechanism
from tests.evaluation.audit.plans import MODEL, paper, plan_of


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
    quiet = replace(plan, presence=UploadMechanism(1.0, 1e-9))
    seen = visits(quiet).counts()
    assert np.allclose(seen.scores[0], seen.included, atol=1e-6)
    assert np.allclose(seen.blank["presence"], 0, atol=1e-6)
    opposed = replace(quiet, relation="replace")
    assert np.array_equal(visits(opposed).counts().included, seen.included)
    loud = visits(plan).counts().blank["presence"]
    sigma = plan.presence.sigma
    assert abs(loud.std() - sigma) < 5 * sigma / np.sqrt(2 * loud.size)


def test_coins_are_fair_and_of_the_seed():
    first, same, other = (
        visits(paper(0.1), seed, 4000).uploads("upload", 0, [0]) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.scores, same.scores)
    assert not np.array_equal(first.included, other.included)
    assert abs(first.included.mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


def test_nobody_visits_more_than_is_paid_for():
    short = replace(paper(0.1), releases=replace(paper(0.1).releases, day=3, person=3))
    seen = visits(short).uploads("upload", 0, [0])
    assert len(seen.included) == 300


def test_people_may_be_nowhere():
    cohort = cohort_of(np.full((1, 2), -1, np.int32))
    assert len(cohort.claims.row) == 0
    assert cohort_of(np.array([[0, 2]], np.int32)).incidence.regions == 3


def test_nothing_is_promised_nothing_is_audited():
    with pytest.raises(SettingsError, match="promises nothing"):
        visits(plan_of(mode="off"))
