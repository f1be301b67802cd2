"""Attacks on places put together: what is rehearsed, and what is chosen by it."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from epifalcon.attacks.claims import true_claims
from epifalcon.attacks.recurrence import by_sets, combined
from epifalcon.attacks.upload_recorder import UploadStatistics, UploadStatisticsView
from epifalcon.experiments.experiment import Experiment
from epifalcon.studies import privacy_audit
from epifalcon.studies.privacy_audit import ClaimedPlaces, learn_attacks, rehearse
from tests.attacks import claims
from tests.attacks.curious import People, gradient, terms_of

WORDS = ["city.people=120", "city.regions=100", "city.days=7"]
COPIES = 3


@cache
def experiment(method):
    return Experiment.load("hamlet", [*WORDS, f"pseudo.method={method}"])


@cache
def places(method):
    """A town attacked with what was learnt in others."""
    attacked = rehearse(experiment(method), COPIES, 2)
    made = ClaimedPlaces(
        claims=attacked.candidates,
        model=attacked.model,
        parameters=learn_attacks(experiment(method), COPIES, 1),
        claimed=attacked.claimed,
    )
    return made, true_claims(attacked.candidates, attacked.traces)


def errors(method):
    made, truth = places(method)
    return {one.name: one.error for one in made.attacks(truth, 0)}


@pytest.mark.parametrize("method", ["recurring", "walk", "uniform"])
def test_the_better_rehearsed_attack_is_chosen(method):
    made, _ = places(method)
    parameters, found = made.parameters, errors(method)
    model = made.model
    assert parameters.by_sets == (method == "recurring")
    if parameters.by_sets:
        assert found["moves by sets"] < found["moves and recurrence"]
        wanted = by_sets(made.claims, model, parameters.sets, made.claimed)
    else:
        assert found["moves and recurrence"] < found["moves by sets"]
        wanted = combined(made.claims, model, parameters.passes)
    np.testing.assert_array_equal(made.likely(), wanted)


def test_counts_of_claims_show_true_places():
    assert errors("recurring")["claimants"] < 0.7


def noted(made, truth, sigma, presence):
    """Notes of uploads with much noise, and of presences if wanted."""
    claims_ = made.claims
    terms = terms_of(
        regions=claims_.regions,
        windows=claims_.windows,
        copies=COPIES,
        rounds=2,
        upload_sigma=sigma,
        presence_sigma=presence,
    )
    who = People(terms, 1)
    person, key = claims.flat(claims_)
    view = UploadStatisticsView(
        UploadStatistics.empty(terms, np.arange(claims_.people), person, key)
    )
    for number in range(terms.rounds):
        for one in range(claims_.people):
            mine = person == one
            who.keys, who.true = key[mine], {one: truth[mine]}
            view.record(one, who.upload(one, number, "upload/0"))
            view.record(one, gradient(number))
    statistics = view.statistics()
    said = truth + presence * who.rng.standard_normal(len(truth))
    return replace(statistics, presence=said)


@pytest.mark.parametrize("method", ["recurring", "walk"])
def test_everything_is_stronger_than_its_parts(method):
    made, truth = places(method)
    alone = errors(method)
    statistics = noted(made, truth, 0.2, 3.0)
    found = {one.name: one.error for one in made.attacks(truth, 0, statistics)}
    assert found["everything"] < min(alone.values())


def test_a_rehearsal_samples_the_same_share_of_people():
    words = [*WORDS, "pseudo.method=walk", "pseudo.people_share=0.25"]
    found = rehearse(Experiment.load("hamlet", words), 1, 5)
    # Everybody is drawn by itself: 30 of 120 on average.
    assert 15 <= found.model.people <= 45


def test_a_large_city_is_rehearsed_in_part(monkeypatch):
    whole = rehearse(experiment("walk"), 1, 5)
    assert whole.model.people == 120
    person, key = (one.tolist() for one in claims.flat(whole.candidates))
    everybody = Counter(place for _, place in set(zip(person, key, strict=True)))
    assert whole.claimed.tolist() == [everybody[place] for place in key]
    monkeypatch.setattr(privacy_audit, "_REHEARSED", 30)
    some = rehearse(experiment("walk"), 1, 5)
    assert (whole.traces.people, some.traces.people) == (120, 30)
    count = some.candidates.claims
    np.testing.assert_array_equal(
        some.candidates.region, whole.candidates.region[:count]
    )
    np.testing.assert_array_equal(some.claimed, whole.claimed[:count])
    assert (some.model.joint != whole.model.joint).nnz == 0
