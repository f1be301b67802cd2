from functools import cache

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.evaluation.attacks import rehearsal
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import (
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import recurrence_guess
from epifalcon.evaluation.attacks.rehearsal import Rehearsal, combined, learn
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.privacy.pseudo.domains import DomainSettings
from epifalcon.privacy.pseudo.record import PseudoSettings
from tests.evaluation.attacks import claims
from tests.studies import town


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
    guess = recurrence_guess(found, profile.log_visits(found))
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


def test_lives_that_all_recur_alike_leave_moves_to_decide():
    own = place(1, "recurring")
    profile = Profile.of(own.model)
    moves = error(own, forward_backward(own.candidates, profile))
    assert learnt("recurring")[-1].error <= moves


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
    table = rng.normal(size=(own.candidates.claims, 3)) + truth[:, None] * [1, 0, -2]
    got = np.array(rehearsal._logit(own.candidates, table, truth))
    # Normal with unit spread: the log-likelihood ratio is the shift itself.
    np.testing.assert_allclose(got, [1, 0, -2], atol=0.15)


def test_learning_is_the_same_every_time():
    assert learn(place(1), passes=1) == learnt()[:1]


def test_at_least_one_pass_is_asked_for():
    with pytest.raises(SettingsError, match="passes=0"):
        learn(place(1), passes=0)
