from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.attacks import upload_attacks
from epifalcon.attacks.claims import localisation_error, name_best
from epifalcon.attacks.upload_attacks import ATTACKS, claims_of
from epifalcon.attacks.upload_recorder import UploadStatisticsView
from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.mobility.clock import Clock
from tests.attacks.curious import recorded, terms_of
from tests.federation.small_world import city, plan_of, settings_of

SIGMAS = (0.05, 0.10, 0.15, 0.20)
WIDTH, ROUNDS, CLIP = 21, 500, 0.1


def exact_error(sigma, rounds, width=WIDTH, pseudo=9):
    """Of naming the largest energy: chi-squares, that of the true place off centre."""
    degrees, away = rounds * width, rounds * (CLIP / sigma) ** 2
    energy = stats.ncx2.ppf((np.arange(4000) + 0.5) / 4000, degrees, away)
    return 1 - np.mean(stats.chi2.cdf(energy, degrees) ** pseudo)


def wide_statistics(sigma, people=1, windows=168, rounds=ROUNDS, seed=0):
    sizes = {"regions": 10, "windows": windows, "copies": 9, "width": WIDTH}
    noise = {"upload_clip": CLIP, "upload_sigma": sigma}
    terms = terms_of(**sizes, **noise, rounds=rounds)
    view, who = recorded(terms, people, seed)
    return view.statistics(), who.true.ravel()


def evaluate(score, statistics, true):
    slots = statistics.terms.windows * statistics.terms.window_slots
    claims = claims_of(statistics, Clock(days=slots, slot_hours=24))
    return localisation_error(name_best(claims, score), claims, true)


def error_of(name, statistics, true):
    return evaluate(ATTACKS[name](statistics), statistics, true).error


def true_claims(statistics, whole):
    """Of the notes' claims, by what the devices themselves know."""
    claims = whole.claims
    known = {
        (int(claims.people[row]), int(place))
        for row, place, true in zip(claims.row, claims.place, claims.true, strict=True)
        if true
    }
    person = statistics.people[statistics.person].tolist()
    listed = zip(person, statistics.key.tolist(), strict=True)
    return np.array([claim in known for claim in listed])


@pytest.mark.parametrize("sigma", [0.10, 0.20])
def test_all_rounds_break_what_one_round_hides(sigma):
    statistics, true = wide_statistics(sigma)
    # 168 windows: three standard errors of a share.
    for name, wanted in (("energy", exact_error(sigma, ROUNDS)), ("consistency", 0.0)):
        error = 3 * np.sqrt(max(wanted * (1 - wanted), 0.003) / 168)
        assert error_of(name, statistics, true) == pytest.approx(wanted, abs=error)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_round_is_as_the_formula_says(sigma):
    statistics, true = wide_statistics(sigma, people=12, rounds=1)
    windows, wanted = 12 * 168, exact_error(sigma, 1)
    error = 3 * np.sqrt(wanted * (1 - wanted) / windows)
    for name in ("norm", "energy"):
        assert error_of(name, statistics, true) == pytest.approx(wanted, abs=error)
    # The same row at all true places tells more, already in one round.
    assert error_of("consistency", statistics, true) < wanted - 0.1 * (0.05 / sigma)


@pytest.fixture(scope="module", params=[1, 3], ids=["slots", "windows"])
def trained(request):
    """Falcon trained without noise, and everybody's true places."""
    settings = settings_of(window_slots=request.param)
    whole = city(30, 2, 3, request.param)
    privacy = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.1}
    plan = plan_of(settings, 2, **privacy)
    view = UploadStatisticsView.of(whole, settings, plan, np.array([0, 3, 4, 7, 20]))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=view), 3)
    return view.statistics(), whole


def test_on_falcon_without_noise_every_attack_is_always_right(trained):
    statistics, whole = trained
    true = true_claims(statistics, whole)
    for name in ("norm", "energy", "consistency", "uploads and counts"):
        assert error_of(name, statistics, true) == 0
    if statistics.terms.single:
        found = evaluate(upload_attacks.counts(statistics), statistics, true)
        assert found.error < found.random


def test_claims_stand_in_the_order_of_the_notes(trained):
    statistics, whole = trained
    slots = whole.incidence.windows * statistics.terms.window_slots
    claims = claims_of(statistics, Clock(days=slots, slot_hours=24))
    assert np.array_equal(claims.key, statistics.key)
    assert np.array_equal(claims.row // claims.windows, statistics.person)


def small_statistics():
    return recorded(terms_of(rounds=1, windows=3), 2)[0].statistics()


def test_counts_name_the_place_where_everybody_who_claims_is():
    statistics = small_statistics()
    counts, claimed = np.tile([0.0, 1, 2, 3], 6), np.tile([4, 4, 4, 3], 6)
    changed = replace(statistics, counts=counts, claimed=claimed)
    score = upload_attacks.counts(changed).reshape(6, 4)
    assert np.allclose(score[:, 1:3], np.log([1 / 3, 1]))
    assert (np.diff(score, axis=1) > 0).all()
    noisy = replace(changed, terms=replace(changed.terms, presence_sigma=100.0))
    assert np.ptp(upload_attacks.counts(noisy)) < 1e-3


def test_what_a_device_says_of_its_own_places_is_read_exactly():
    rng = np.random.default_rng(0)
    terms = terms_of(rounds=1, windows=60, presence_sigma=1.5)
    view, who = recorded(terms, 40)
    statistics, true = view.statistics(), who.true.ravel()
    said = true + 1.5 * rng.standard_normal(len(true))
    changed = replace(statistics, presence=said, counts=np.zeros(len(true)))
    exact = stats.norm.logpdf(said, 1, 1.5) - stats.norm.logpdf(said, 0, 1.5)
    np.testing.assert_allclose(upload_attacks.counts(changed), exact, rtol=1e-12)
    wanted = changed.evidence + exact
    np.testing.assert_allclose(upload_attacks.combined(changed), wanted, rtol=1e-12)
    found = evaluate(upload_attacks.counts(changed), changed, true)
    assert found.error < found.random - 0.1


def test_for_sets_exact_totals_count_once_and_noise_adds_up():
    statistics = small_statistics()
    slots = np.repeat([3, 1], 12)
    counts, claimed = np.tile([0.5, 1, 2, 3], 6), np.full(24, 4)
    changed = replace(statistics, counts=counts, claimed=claimed)
    rows, totals = changed.evidence, upload_attacks.counts(changed)
    got = upload_attacks.combined(changed, slots)
    np.testing.assert_allclose(got, rows + totals / slots)
    said = replace(changed, presence=np.ones(24))
    got = upload_attacks.combined(said, slots)
    np.testing.assert_allclose(got, rows + upload_attacks.counts(said))
