from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks import recurrence as attack
from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import (
    Rehearsal,
    combined,
    features,
    learn,
    recurrence,
)
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings
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
    guess = name_best(found, recurrence(found).same_hour)
    ours = localisation_error(guess, found, truth).error
    luck = [recurrence_error(made, np.random.default_rng(n)) for n in range(40)]
    assert ours == pytest.approx(np.mean(luck), abs=4 * np.std(luck) / np.sqrt(40))
    assert 0 < ours < 0.7


def test_the_evidence_weighs_counts_their_logs_and_visits():
    found, _ = attacked(1)
    counted = recurrence(found)
    profile = Profile.of(claims.model_of(claims.town(np.random.default_rng(1))))
    visits = profile.log_visits(found)
    wanted = 2 * counted.same_hour + 3 * counted.any_hour + 0.5 * visits
    wanted += 4 * np.log(0.01 + counted.same_hour) - np.log(0.01 + counted.any_hour)
    got = features(counted, visits) @ [2.0, 4.0, 3.0, -1.0, 0.5]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_is_refused():
    found, _ = attacked(0)
    with pytest.raises(DataError, match="between 0 and 1"):
        recurrence(found, np.full(found.claims, 2.0))
    with pytest.raises(SettingsError, match="must divide the day"):
        recurrence(attacked(0, 8)[0])


@cache
def place(seed, method="walk"):
    """A town with two pseudo walks a person: the claims, the traces, the model."""
    traces = town.traces(seed)
    model = claims.model_of(traces, 1e-8)
    cases = np.ones((len(traces.regions), traces.clock.days))
    domains = DomainSettings(count=2, least_regions=4)
    wish = PseudoSettings(method=method, domains=domains)
    made = generate(traces, model, cases, wish, np.random.default_rng(seed))
    return Rehearsal(Candidates.of_pseudo(made), traces, model)


@cache
def learnt(method="walk"):
    return learn(place(1, method))


def error(attacked, likely):
    found = attacked.candidates
    truth = true_claims(found, attacked.traces)
    return localisation_error(name_best(found, likely), found, truth).error


def test_together_is_better_than_either_alone_on_a_town_not_rehearsed():
    attacked = place(2)
    found, profile = attacked.candidates, Profile.of(attacked.model)
    truth = true_claims(found, attacked.traces)
    moves = error(attacked, forward_backward(found, profile))
    guess = name_best(found, recurrence(found).same_hour, profile.log_visits(found))
    alone = localisation_error(guess, found, truth).error
    both = error(attacked, combined(found, profile, learnt()))
    assert both < min(moves, alone) - 0.02


def test_believing_what_the_pass_before_found_lowers_the_error():
    first, second, *_ = learnt()
    assert second.error < first.error - 0.003


def test_on_the_rehearsal_the_attack_errs_as_it_was_told():
    own = place(1)
    passes = learnt()
    got = combined(own.candidates, Profile.of(own.model), passes)
    assert error(own, got) == pytest.approx(passes[-1].error, abs=1e-12)
    errors = [one.error for one in passes]
    assert errors == sorted(errors, reverse=True)


def test_without_passes_it_is_the_moves_alone_and_evidence_enters_both():
    own = place(2)
    found, profile = own.candidates, Profile.of(own.model)
    told = np.random.default_rng(0).normal(size=found.claims)
    np.testing.assert_array_equal(
        combined(found, profile, (), told), forward_backward(found, profile, told)
    )
    sure = np.where(true_claims(found, own.traces), 0.0, -500.0)
    assert error(own, combined(found, profile, learnt(), sure)) == 0


def test_the_weights_are_where_the_likelihood_is_flat():
    own = place(1)
    rng = np.random.default_rng(0)
    truth = true_claims(own.candidates, own.traces)
    shift = [1, 0, -2, 0, 0]
    table = rng.normal(size=(own.candidates.claims, 5)) + np.outer(truth, shift)
    got = attack._conditional_logit(own.candidates, table, truth)
    # Normal with unit spread: the log-likelihood ratio is the shift itself.
    np.testing.assert_allclose(got, shift, atol=0.15)
