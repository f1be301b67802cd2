"""The evidence of one round, and rows that a server knows: formulas in full."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import special, stats

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks.upload_recorder import (
    KnownRows,
    RoundUploads,
    own_status,
    posterior,
    shown_chances,
)
from epifalcon.federation.client import Client
from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.federation.messages import Broadcast
from epifalcon.federation.plan import RunSeeds
from epifalcon.models.micro import kept
from epifalcon.privacy.clipping import clip_rows
from tests.evaluation.attacks.curious import (
    StatusPeople,
    assert_honest,
    taken_of_statuses,
    terms_of,
)
from tests.federation.small_world import city, plan_of, settings_of
from tests.oracles.recorded_view import RecordedView

HALF = {"mask_share": 0.5}


def dense_notes(rows, window, weight, noise, spread):
    """Energy and evidence of each claim, by the formulas in full."""
    width = rows.shape[1]
    made = np.zeros((2, len(rows)))
    for claim, row in enumerate(rows):
        others = window != window[claim]
        made[0, claim] = np.linalg.norm(row) ** 2
        # Each upload of weight w tells w times the row, with the noise of one.
        squares = (weight[others] ** 2).sum()
        certain = np.eye(width) * (squares / noise + 1 / spread)
        covariance = np.linalg.inv(certain)
        mean = covariance @ (weight[others] @ rows[others]) / noise
        true = stats.multivariate_normal(mean, covariance + noise * np.eye(width))
        pseudo = stats.multivariate_normal(np.zeros(width), noise * np.eye(width))
        made[1, claim] = true.logpdf(row) - pseudo.logpdf(row)
    return made


def noted(rows, start, weight, noise, spread):
    seen = RoundUploads(rows, start, weight, noise)
    return np.stack([seen.square, seen.evidence(spread)])


@pytest.mark.parametrize(
    "size", [[3, 1, 4], [5], [1, 1], [2, 3, 1, 1, 6]], ids=lambda size: f"{len(size)}"
)
def test_a_round_is_noted_as_the_formulas_say(size):
    rng = np.random.default_rng(len(size))
    start = np.concatenate([[0], np.cumsum(size)])
    window = np.repeat(np.arange(len(size)), size)
    rows = rng.normal(0.02, 0.1, (start[-1], 4))
    weight = rng.random(start[-1])
    found = noted(rows, start, weight, 0.01, 0.002)
    expected = dense_notes(rows, window, weight, 0.01, 0.002)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_one_claim_of_a_narrow_window_is_true_and_any_of_a_wide_one():
    evidence = np.array([0.5, -0.2, 900.0, 1.0, -1e9, 7.0])
    start = np.array([0, 2, 5, 6])
    weight = posterior(evidence, start, 2, single=True)
    for first, last in pairwise(start.tolist()):
        assert np.allclose(
            weight[first:last], special.softmax(evidence[first:last]), atol=1e-300
        )
    weight = posterior(evidence, start, 9, single=False)
    assert np.allclose(weight, special.expit(evidence - np.log(9)))


def dense_known(rows, window, weight, known):
    """Evidence by the formulas in full: which row, by the other windows; then this."""
    noise, column, spread, before = known
    unit, made = np.eye(rows.shape[1]), np.zeros(len(rows))
    for claim, row in enumerate(rows):
        others = window != window[claim]
        certain = (weight[others] ** 2).sum()
        total = weight[others] @ rows[others]
        chance = np.array(before)
        if certain:
            for status, one in enumerate(column):
                around = (noise * certain + certain**2 * spread[status]) * unit
                told = stats.multivariate_normal(certain * one, around)
                chance[status] += told.logpdf(total)
        chance -= special.logsumexp(chance)
        true = [
            stats.multivariate_normal(one, (noise + extra) * unit).logpdf(row)
            for one, extra in zip(column, spread, strict=True)
        ]
        pseudo = stats.multivariate_normal(np.zeros(len(unit)), noise * unit)
        made[claim] = special.logsumexp(chance + true) - pseudo.logpdf(row)
    return made


@pytest.mark.parametrize("extra", [0.0, 0.004])
@pytest.mark.parametrize("size", [[3, 1, 4], [5], [2, 3, 1, 1, 6]], ids=len)
def test_a_round_of_known_rows_is_noted_as_the_formulas_say(size, extra):
    rng = np.random.default_rng(len(size))
    start = np.concatenate([[0], np.cumsum(size)])
    window = np.repeat(np.arange(len(size)), size)
    rows = rng.normal(0.02, 0.1, (start[-1], 4))
    weight, column = rng.random(start[-1]), rng.normal(0, 0.1, (3, 4))
    spread = extra * np.array([1.0, 0.5, 2.0])
    before = np.log([0.2, 0.1, 0.7])
    seen = RoundUploads(rows, start, weight, 0.01)
    found = seen.evidence_of_known(KnownRows(column, spread), before)
    expected = dense_known(rows, window, weight, (0.01, column, spread, before))
    assert np.allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_they_are_what_devices_send(mode):
    settings = settings_of(input="status", mask_share=0.4, precision="double")
    noise = {} if mode == "off" else {"upload_sigma": 0.0, "gradient_sigma": 0.0}
    whole = city(30, 0)
    plan = plan_of(settings, 0, mode=mode, **noise)
    view = RecordedView(rounds=3, sample=np.arange(30))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=view), 3)
    clip = None if mode == "off" else 0.1
    terms = terms_of(width=6, upload_clip=clip, mask_share=0.4)
    seen = 0
    for number in range(3):
        sent = next(
            one
            for _, one in view.messages
            if isinstance(one, Broadcast) and one.round == number
        )
        known = KnownRows.of(sent.parameters, terms)
        client = Client(whole, settings, plan, RunSeeds(5))
        shown, _ = client.masked_status(number)
        for upload in view.uploads("upload/0", number):
            if len(upload.keys):
                row = known.row[shown[upload.person[0]]]
                assert np.allclose(upload.rows.numpy(), row, atol=1e-12)
                seen += 1
    assert seen == 3 * np.count_nonzero(whole.incidence.degree)
    assert not known.spread.any()


@pytest.mark.parametrize("clip", [0.1, None])
def test_dropout_is_told_by_its_mean_and_spread(clip):
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.standard_normal((64, 3)))
    terms = terms_of(width=64, upload_clip=clip, mask_share=0.5, input_dropout=0.3)
    known = KnownRows.of({"input.weight": weight}, terms)
    factors = kept(np.arange(4000), 64, 0.3, 7)
    for status in range(3):
        rows = torch.from_numpy(factors) * weight[:, status]
        rows = (rows if clip is None else clip_rows(rows, clip)).numpy()
        scale = np.linalg.norm(known.row[status])
        away = np.linalg.norm(rows.mean(axis=0) - known.row[status])
        assert away < 0.05 * scale
        assert rows.var(axis=0).mean() == pytest.approx(known.spread[status], rel=0.05)


def test_what_is_shown_follows_from_the_own_status_and_the_mask():
    chance = np.array([0.2, 0.3, 0.5])
    found = np.exp(shown_chances(np.log(chance) + 7, 0.4))
    assert np.allclose(found, [0.12, 0.18, 0.5 + 0.4 * 0.5])
    fits = np.array([-1.0, 2.0, 0.5])
    told = own_status(fits, 0.4)
    expected = [np.log(0.6 * np.exp(one) + 0.4 * np.exp(0.5)) for one in fits[:2]]
    assert np.allclose(told, [*expected, 0.5])
    assert own_status(fits, 1.0).tolist() == [0.5, 0.5, 0.5]


def test_where_places_are_known_the_likelihood_is_exact():
    """Without pseudo places every upload is the row and noise."""
    terms = terms_of(regions=1, copies=0, windows=3, rounds=4, mask_share=0.3)
    who = StatusPeople(terms, 2)
    taker = who.taker()
    expected = np.zeros((2, 3))
    for number in range(terms.rounds):
        messages = who.round(number)
        for cohort, message in messages:
            taker.saw(cohort, message)
        for person in range(2):
            rows = messages[1 + person][1].rows.double().numpy()
            fits = [
                stats.norm(one, terms.upload_sigma).logpdf(rows).sum()
                for one in who.column
            ]
            for status in range(3):
                both = np.array([fits[status], fits[2]])
                weights = [0.7, 0.3] if status < 2 else [1.0, 0.0]
                expected[person, status] += special.logsumexp(both, b=weights)
    found = taker.notes().status
    differ = (found - found[:, 2:]) - (expected - expected[:, 2:])
    assert np.abs(differ).max() < 1e-5
    assert np.ptp(found, axis=1).min() > 0.1


def test_beliefs_are_honest_about_places_and_about_the_status():
    """Of what is given 60 to 80 %, about 70 % is true."""
    terms = terms_of(windows=25, rounds=12, upload_sigma=0.15, **HALF)
    chance, true = {"place": [], "status": []}, {"place": [], "status": []}
    for seed in range(3):
        taker, who = taken_of_statuses(terms, 80, seed)
        notes = taker.notes()
        places = notes.evidence.reshape(-1, terms.regions)
        chance["place"].append(special.softmax(places, axis=1).ravel())
        true["place"].append(who.true.ravel())
        chance["status"].append(special.softmax(notes.status, axis=1).ravel())
        true["status"].append((np.eye(3)[who.status] == 1).ravel())
    for name in chance:
        assert_honest(chance[name], true[name])


def test_known_rows_tell_places_better_than_rows_that_must_be_found():
    terms = terms_of(windows=12, rounds=20, upload_sigma=0.2, **HALF)
    errors = {}
    for mask in (0.5, None):
        told = terms_of(**{**vars(terms), "mask_share": mask})
        wrong = []
        for seed in range(3):
            who = StatusPeople(terms, 30, seed)
            taker = who.taker(terms=told)
            for number in range(terms.rounds):
                for cohort, message in who.round(number):
                    taker.saw(cohort, message)
            best = taker.notes().evidence.reshape(-1, terms.regions).argmax(axis=1)
            wrong.append(1 - who.true.reshape(len(best), -1)[range(len(best)), best])
        errors[mask] = np.mean(wrong)
    assert errors[0.5] < errors[None] - 0.05


def test_what_is_summed_for_later_is_the_products_of_all_rounds():
    terms = terms_of(rounds=5, mask_share=0.25)
    who = StatusPeople(terms, 2)
    taker = who.taker()
    met, gram = np.zeros((3, 2 * len(who.keys))), np.zeros((3, 3, 3))
    for number in range(terms.rounds):
        messages = who.round(number)
        for cohort, message in messages:
            taker.saw(cohort, message)
        rows = np.concatenate([messages[1][1].rows, messages[2][1].rows])
        met += who.column @ rows.T
        gram[0] += who.column @ who.column.T
        for status in (0, 1):
            apart = (who.column[status] - who.column[2]) @ who.column.T
            gram[1 + status] += 0.25 * 0.75 * np.outer(apart, apart)
    notes = taker.notes()
    assert np.allclose(notes.met, met, atol=1e-6)
    assert np.allclose(notes.gram, gram, atol=1e-6)


def test_uploads_need_the_parameters_of_their_round():
    terms = terms_of(**HALF)
    who = StatusPeople(terms, 1)
    taker = who.taker()
    who.broadcast(0)
    with pytest.raises(DataError, match="before the parameters"):
        taker.saw(0, who.upload(0, 0, "upload/0"))
