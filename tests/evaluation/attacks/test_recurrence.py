import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import localisation_error, true_claims
from epifalcon.evaluation.attacks.localisation import Profile
from epifalcon.evaluation.attacks.recurrence import (
    RecurrenceWeights,
    recurrence,
    recurrence_evidence,
    recurrence_guess,
)
from tests.evaluation.attacks import claims
from tests.oracles import localisation_loop as plain
from tests.oracles.recurrence_attack import recurrence_error
from tests.studies import town


def attacked(seed, width=1, **more):
    rng = np.random.default_rng(seed)
    made = claims.pseudo(claims.town(rng, days=4, **more), rng)
    return Candidates.of_pseudo(made, width), rng


@given(st.integers(0, 2**16), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=20)
def test_counts_are_those_of_the_plain_loop(seed, width, weighted):
    found, rng = attacked(seed, width, gaps=0.4)
    weight = rng.random(found.claims) if weighted else np.ones(found.claims)
    got = recurrence(found, weight if weighted else None)
    hours, anys = [], []
    for person in range(found.people):
        wanted = plain.recurrence_shares(
            plain.claims_of(found, person),
            claims.ragged(found, weight, person),
            found.windows_per_day,
        )
        hours += wanted[0]
        anys += wanted[1]
    np.testing.assert_allclose(got.same_hour, hours, atol=1e-6)
    np.testing.assert_allclose(got.any_hour, anys, atol=1e-6)


def test_the_guess_errs_as_the_plain_attack_does():
    traces = town.traces()
    made = claims.pseudo(traces, np.random.default_rng(0), 3)
    found = Candidates.of_pseudo(made)
    truth = true_claims(found, traces)
    alike = np.zeros(found.claims)
    ours = localisation_error(recurrence_guess(found, alike), found, truth).error
    luck = [recurrence_error(made, np.random.default_rng(n)) for n in range(40)]
    assert ours == pytest.approx(np.mean(luck), abs=4 * np.std(luck) / np.sqrt(40))
    assert 0 < ours < 0.7


def test_the_soft_attack_ranks_as_the_counts_do():
    found, _ = attacked(1)
    counted = recurrence(found)
    profile = Profile.of(claims.model_of(claims.town(np.random.default_rng(1))))
    visits = profile.log_visits(found)
    soft = recurrence_evidence(counted, visits, RecurrenceWeights())
    np.testing.assert_allclose(soft, np.log(0.01 + counted.same_hour), rtol=1e-6)
    weights = RecurrenceWeights(2.0, 0.0, 3.0, -1.0, 0.5)
    wanted = 2 * counted.same_hour + 3 * counted.any_hour + 0.5 * visits
    wanted -= np.log(0.01 + counted.any_hour)
    got = recurrence_evidence(counted, visits, weights)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_one_day_alone_has_nothing_to_come_back_to():
    rng = np.random.default_rng(0)
    found = Candidates.of_pseudo(claims.pseudo(claims.town(rng, days=1), rng))
    got = recurrence(found)
    assert not got.same_hour.any()
    assert not got.any_hour.any()


def test_what_is_refused():
    found, _ = attacked(0)
    with pytest.raises(DataError, match="between 0 and 1"):
        recurrence(found, np.full(found.claims, 2.0))
    with pytest.raises(SettingsError, match="must divide the day"):
        recurrence(attacked(0, 8)[0])
