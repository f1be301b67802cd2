from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.attacks import upload_attacks
from epifalcon.attacks.claims import localisation_error, name_best
from epifalcon.attacks.upload_attacks import ATTACKS, claims_of
from epifalcon.attacks.upload_recorder import UploadStatisticsView
from epifalcon.errors import DataError
from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.mobility.clock import Clock
from tests.attacks.curious import taken, terms_of
from tests.federation.small_world import city, plan_of, settings_of

SIGMAS = (0.05, 0.10, 0.15, 0.20)
WIDTH, ROUNDS, CLIP = 21, 500, 0.1


def exact_error(sigma, rounds, width=WIDTH, pseudo=9):
    """Of naming the largest energy: chi-squares, that of the true place off centre."""
    degrees, away = rounds * width, rounds * (CLIP / sigma) ** 2
    energy = stats.ncx2.ppf((np.arange(4000) + 0.5) / 4000, degrees, away)
    return 1 - np.mean(stats.chi2.cdf(energy, degrees) ** pseudo)


def wide_notes(sigma, people=1, windows=168, rounds=ROUNDS, seed=0):
    terms = terms_of(
        regions=10,
        windows=windows,
        copies=9,
        width=WIDTH,
        rounds=rounds,
        upload_clip=CLIP,
        upload_sigma=sigma,
    )
    taker, who = taken(terms, people, seed)
    return taker.notes(), who.true.ravel()


def judge(score, notes, true):
    slots = notes.terms.windows * notes.terms.window_slots
    claims = claims_of(notes, Clock(days=slots, slot_hours=24))
    return localisation_error(name_best(claims, score), claims, true)


def error_of(name, notes, true):
    return judge(ATTACKS[name](notes), notes, true).error


def true_claims(notes, whole):
    """Of the notes' claims, by what the devices themselves know."""
    claims = whole.claims
    known = {
        (int(claims.people[row]), int(place))
        for row, place, true in zip(claims.row, claims.place, claims.true, strict=True)
        if true
    }
    listed = zip(notes.people[notes.person].tolist(), notes.key.tolist(), strict=True)
    return np.array([claim in known for claim in listed])


@pytest.mark.parametrize("sigma", [0.10, 0.20])
def test_all_rounds_break_what_one_round_hides(sigma):
    notes, true = wide_notes(sigma)
    # 168 windows: three standard errors of a share.
    for name, wanted in (("energy", exact_error(sigma, ROUNDS)), ("consistency", 0.0)):
        error = 3 * np.sqrt(max(wanted * (1 - wanted), 0.003) / 168)
        assert error_of(name, notes, true) == pytest.approx(wanted, abs=error)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_round_is_as_the_formula_says(sigma):
    notes, true = wide_notes(sigma, people=12, rounds=1)
    windows, wanted = 12 * 168, exact_error(sigma, 1)
    error = 3 * np.sqrt(wanted * (1 - wanted) / windows)
    for name in ("norm", "energy"):
        assert error_of(name, notes, true) == pytest.approx(wanted, abs=error)
    # The same row at all true places tells more, already in one round.
    assert error_of("consistency", notes, true) < wanted - 0.1 * (0.05 / sigma)


@pytest.fixture(scope="module", params=[1, 3], ids=["slots", "windows"])
def trained(request):
    """Falcon trained without noise, and everybody's true places."""
    settings = settings_of(window_slots=request.param)
    whole = city(30, 2, 3, request.param)
    wish = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.1}
    plan = plan_of(settings, 2, **wish)
    taker = UploadStatisticsView.of(whole, settings, plan, np.array([0, 3, 4, 7, 20]))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=taker), 3)
    return taker.notes(), whole


def test_on_falcon_without_noise_every_attack_is_always_right(trained):
    notes, whole = trained
    true = true_claims(notes, whole)
    for name in ("norm", "energy", "consistency", "uploads and counts"):
        assert error_of(name, notes, true) == 0
    if notes.terms.single:
        found = judge(upload_attacks.counts(notes), notes, true)
        assert found.error < found.random


def test_claims_stand_in_the_order_of_the_notes(trained):
    notes, whole = trained
    slots = whole.incidence.windows * notes.terms.window_slots
    claims = claims_of(notes, Clock(days=slots, slot_hours=24))
    assert np.array_equal(claims.key, notes.key)
    assert np.array_equal(claims.row // claims.windows, notes.person)


def small_notes():
    return taken(terms_of(rounds=1, windows=3), 2)[0].notes()


def test_counts_name_the_place_where_everybody_who_claims_is():
    notes = small_notes()
    counts, claimed = np.tile([0.0, 1, 2, 3], 6), np.tile([4, 4, 4, 3], 6)
    told = replace(notes, counts=counts, claimed=claimed)
    score = upload_attacks.counts(told).reshape(6, 4)
    assert np.allclose(score[:, 1:3], np.log([1 / 3, 1]))
    assert (np.diff(score, axis=1) > 0).all()
    noisy = replace(told, terms=replace(told.terms, presence_sigma=100.0))
    assert np.ptp(upload_attacks.counts(noisy)) < 1e-3
    with pytest.raises(DataError, match="no counts"):
        upload_attacks.counts(notes)


def test_what_a_device_says_of_its_own_places_is_read_exactly():
    rng = np.random.default_rng(0)
    terms = terms_of(rounds=1, windows=60, presence_sigma=1.5)
    taker, who = taken(terms, 40)
    notes, true = taker.notes(), who.true.ravel()
    said = true + 1.5 * rng.standard_normal(len(true))
    told = replace(notes, presence=said, counts=np.zeros(len(true)))
    exact = stats.norm.logpdf(said, 1, 1.5) - stats.norm.logpdf(said, 0, 1.5)
    np.testing.assert_allclose(upload_attacks.counts(told), exact, rtol=1e-12)
    np.testing.assert_allclose(
        upload_attacks.combined(told),
        upload_attacks.consistency(told) + exact,
        rtol=1e-12,
    )
    found = judge(upload_attacks.counts(told), told, true)
    assert found.error < found.random - 0.1


def test_for_sets_exact_totals_count_once_and_noise_adds_up():
    notes = small_notes()
    slots = np.repeat([3, 1], 12)
    told = replace(notes, counts=np.tile([0.5, 1, 2, 3], 6), claimed=np.full(24, 4))
    rows, totals = upload_attacks.consistency(told), upload_attacks.counts(told)
    np.testing.assert_allclose(
        upload_attacks.by_sets(told, slots), rows + totals / slots
    )
    said = replace(told, presence=np.ones(24))
    np.testing.assert_allclose(
        upload_attacks.by_sets(said, slots), rows + upload_attacks.counts(said)
    )
