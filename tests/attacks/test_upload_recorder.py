"""The notes of a curious server: sums, evidence by the formulas in full, storage."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import special, stats

from epifalcon.attacks import upload_recorder
from epifalcon.attacks.upload_recorder import (
    VIEW,
    KnownRows,
    PublicTerms,
    RoundUploads,
    UploadRecorder,
    UploadStatistics,
    UploadStatisticsView,
    draw_sample,
    own_status,
    posterior,
    read_statistics,
    require_room,
    shown_chances,
)
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.client import Client
from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.federation.messages import Broadcast, LocationUpload, PresenceUpload
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.server_view import SERVER, PlaceTotals
from epifalcon.federation.settings import ViewSettings
from epifalcon.federation.training import TrainingTask, fit
from epifalcon.models.person_model import dropout_mask
from epifalcon.privacy.clipping import clip_rows
from epifalcon.store import Origin
from tests.attacks.curious import (
    People,
    StatusPeople,
    assert_honest,
    gradient,
    recorded,
    recorded_statuses,
    show_round,
    terms_of,
)
from tests.federation.small_world import city, plan_of, settings_of
from tests.oracles.recorded_view import RecordedView
from tests.studies import town

TWO = ("upload/0", "upload/1")


def same(one: UploadStatistics, other: UploadStatistics) -> bool:
    mine, theirs = one.arrays(), other.arrays()
    assert one.meta() == other.meta()
    assert set(mine) == set(theirs)
    return all(
        mine[name].dtype == theirs[name].dtype
        and np.array_equal(mine[name], theirs[name], equal_nan=True)
        for name in mine
    )


def resumed(statistics):
    return UploadStatisticsView(
        UploadStatistics.of(statistics.arrays(), statistics.meta())
    )


def test_sums_over_rounds_are_those_of_the_raw_uploads():
    terms = terms_of(channels=TWO, rounds=5)
    who = People(terms, 3)
    view = who.view([0, 2])
    raw = {}
    for number in range(5):
        for cohort, message in show_round(view, who, number):
            if isinstance(message, LocationUpload):
                raw[cohort, message.channel, number] = message.rows.double().numpy()
    statistics = view.statistics()
    assert (statistics.rounds, statistics.people.tolist()) == (5, [0, 2])
    for place, person in enumerate(statistics.people.tolist()):
        mine = statistics.person == place
        assert np.array_equal(statistics.key[mine], who.keys)
        for layer, channel in enumerate(TWO):
            rows = np.stack([raw[person, channel, number] for number in range(5)])
            square = (rows**2).sum(axis=2)
            assert np.allclose(statistics.energy[layer, mine], square.sum(axis=0))
            if layer == 0:
                assert np.allclose(statistics.norm[mine], np.sqrt(square[0]))
    # Gradients were (person, 1) in every round.
    assert statistics.gradients["head.bias"].tolist() == [[0, 5], [10, 5]]
    assert statistics.gradient_energy.tolist() == [5, 25]


def test_rows_come_out_unbiased_and_with_the_noise_they_are_said_to_have():
    terms = terms_of(windows=40, rounds=300, upload_sigma=0.05, width=8)
    who = People(terms, 1)
    view, row = who.view(), who.row()
    who.row = lambda: row
    for number in range(terms.rounds):
        view.record(0, who.upload(0, number, "upload/0"))
        view.record(0, gradient(number))
    statistics = view.statistics()
    scaled = (statistics.rows[0] - row) * np.sqrt(statistics.certainty[0])[:, None]
    late = scaled[20:] / terms.upload_sigma
    assert abs(late.mean()) < 4 / np.sqrt(late.size)
    assert late.std() == pytest.approx(1, abs=0.06)
    assert statistics.certainty[0, -1] == pytest.approx(40, abs=0.5)
    norm = np.sqrt(statistics.strength[0, 0, 0] / statistics.strength[0, 0, 1])
    assert norm == pytest.approx(0.1, rel=0.02)


def test_evidence_is_honest_about_odds():
    """Of the claims given 60 to 80 %, about 70 % are true."""
    terms = terms_of(windows=60, rounds=12, upload_sigma=0.1)
    chance, true = [], []
    for seed in range(4):
        view, who = recorded(terms, 10, seed)
        odds = np.exp(view.statistics().evidence.reshape(-1, terms.regions))
        chance.append((odds / odds.sum(axis=1, keepdims=True)).ravel())
        true.append(who.true.ravel())
    assert_honest(chance, true)


@pytest.mark.parametrize("mask", [None, 0.5])
def test_resumed_notes_are_the_same_bits(mask):
    terms = terms_of(channels=TWO, rounds=6, mask_share=mask)
    made = recorded if mask is None else recorded_statuses
    whole, _ = made(terms, 3)
    who = (People if mask is None else StatusPeople)(terms, 3)
    view = who.view()
    for number in range(6):
        if number == 3:
            before = view.statistics()
            view = resumed(before)
        show_round(view, who, number)
    assert same(view.statistics(), whole.statistics())


def test_rows_of_a_long_run_are_stored_at_even_distances(monkeypatch):
    terms = terms_of(rounds=7)
    every = recorded(terms, 2)[0].statistics()
    monkeypatch.setattr(upload_recorder, "_ROW_ROUNDS", 3)
    statistics = recorded(terms, 2)[0].statistics()
    assert np.array_equal(statistics.rows, every.rows[:, ::3])
    assert (statistics.certainty > 0).all()


@pytest.mark.parametrize("mask", [None, 0.5])
def test_memory_is_known_before(mask):
    terms = terms_of(rounds=50, mask_share=mask)
    planned = terms.planned_bytes(10)
    made = recorded if mask is None else recorded_statuses
    arrays = made(terms, 10)[0].statistics().arrays()
    held = [one.nbytes for name, one in arrays.items() if "parameter." not in name]
    assert 0.7 * planned < sum(held) <= planned


def test_counts_stand_beside_the_claims():
    terms = terms_of(rounds=1)
    view, who = recorded(terms, 2)
    assert np.isnan(view.statistics().counts).all()
    assert np.isnan(view.statistics().presence).all()
    view.record(SERVER, PlaceTotals(who.keys, who.keys + 0.5, who.keys * 2))
    statistics = view.statistics()
    assert np.array_equal(statistics.counts, statistics.key + 0.5)
    assert np.array_equal(statistics.claimed, statistics.key * 2)


def test_presence_sent_by_devices_is_stored_and_resumed():
    terms = terms_of(rounds=2, presence_sigma=2.0)
    who = People(terms, 3)
    view = who.view([0, 2])
    changed = [PresenceUpload(who.keys, who.keys + 0.25 * one) for one in range(3)]
    for cohort, message in enumerate(changed):
        view.record(cohort, message)
    show_round(view, who, 0)
    statistics = view.statistics()
    assert np.array_equal(statistics.presence, np.append(who.keys, who.keys + 0.5))
    view = resumed(statistics)
    assert np.array_equal(view.statistics().presence, statistics.presence)
    with pytest.raises(DataError, match="other places"):
        view.record(0, PresenceUpload(who.keys[1:], changed[0].counts[1:]))


def test_uploads_for_other_places_are_refused():
    who = People(terms_of(), 1)
    view = who.view()
    first = who.upload(0, 0, "upload/0")
    view.record(0, first)
    view.record(0, gradient(0))
    rest = first.keys[1:], first.rows[1:], first.person[1:]
    fewer = LocationUpload(1, "upload/0", *rest)
    with pytest.raises(DataError, match="claims other places"):
        view.record(0, fewer)
    assert view.statistics().rounds == 1


def test_scoring_and_strangers_are_ignored():
    who = People(terms_of(), 2)
    view = who.view([0])
    view.record(0, who.upload(0, 7, "scoring/0"))
    view.record(1, who.upload(1, 7, "upload/0"))
    view.record(1, gradient(7))
    assert view.statistics().rounds == 0
    assert not view.statistics().energy.any()


def test_a_sample_is_drawn_from_the_seed():
    drawn = draw_sample(1000, 50, 3)
    assert len(set(drawn.tolist())) == 50
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, draw_sample(1000, 50, 3))
    assert not np.array_equal(drawn, draw_sample(1000, 50, 4))
    assert draw_sample(7, 50, 3).tolist() == list(range(7))


def test_statistics_are_read_as_written_and_only_in_their_own_version(
    tmp_path, monkeypatch
):
    terms = terms_of(channels=TWO, mask_share=0.5)
    statistics = recorded_statuses(terms, 3)[0].statistics()
    with pytest.raises(DataError, match="--record-view"):
        read_statistics(tmp_path)
    statistics.save(tmp_path, Origin(seed=3))
    assert same(read_statistics(tmp_path), statistics)
    monkeypatch.setattr(upload_recorder, "_SCHEMA", 99)
    with pytest.raises(DataError, match="of 'upload-statistics'"):
        read_statistics(tmp_path)


def test_notes_out_of_an_older_checkpoint_are_refused():
    """Checkpoints have no schema of their own for what rides in them."""
    statistics = recorded(terms_of(), 3)[0].statistics()
    older = statistics.arrays()
    del older["matched"]
    with pytest.raises(CorruptFileError, match=r"another version.*matched"):
        UploadStatistics.of(older, statistics.meta())


def terms_for(cohort, settings, plan):
    view = UploadStatisticsView.of(cohort, settings, plan, np.array([0]))
    return view.statistics().terms


def test_terms_are_those_of_the_plan():
    settings = settings_of(gradient_path="exchanged", window_slots=3)
    whole = city(10, 2, 3, window_slots=3)
    privacy = {"mode": "paper", "upload_sigma": 0.2, "gradient_sigma": 0.3}
    terms = terms_for(whole, settings, plan_of(settings, 2, **privacy))
    assert terms.channels == ("upload/0", "upload/1", "return/1", "return/0")
    assert (terms.copies, terms.window_slots, terms.single) == (2, 3, False)
    assert (terms.upload_clip, terms.upload_sigma) == (0.1, 0.2)
    assert (terms.gradient_clip, terms.gradient_sigma) == (0.1, 0.3)
    # Two layers of 6 x 9 and 6, and a head of 2 x 6 and 2.
    assert terms.parameters == 2 * 60 + 14
    assert terms.most_claims == 6 * 7
    assert PublicTerms(**json.loads(json.dumps(vars(terms)))) == terms
    assert (terms.mask_share, terms.statuses) == (None, 0)
    shown = settings_of(input="status", mask_share=0.3, input_dropout=0.1)
    terms = terms_for(whole, shown, plan_of(shown, 2, **privacy))
    assert (terms.mask_share, terms.input_dropout, terms.statuses) == (0.3, 0.1, 3)
    off = terms_for(whole, settings, plan_of(settings, mode="off"))
    assert (off.upload_clip, off.upload_sigma, off.copies) == (None, 0.0, 0)


HALF = {"mask_share": 0.5}


def some_uploads(size):
    rng = np.random.default_rng(len(size))
    start = np.concatenate([[0], np.cumsum(size)])
    rows = rng.normal(0.02, 0.1, (start[-1], 4))
    window = np.repeat(np.arange(len(size)), size)
    return rng, start, window, rows, rng.random(start[-1])


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


@pytest.mark.parametrize(
    "size", [[3, 1, 4], [5], [1, 1], [2, 3, 1, 1, 6]], ids=lambda size: f"{len(size)}"
)
def test_a_round_is_noted_as_the_formulas_say(size):
    _, start, window, rows, weight = some_uploads(size)
    seen = RoundUploads(rows, start, weight, 0.01)
    found = np.stack([seen.square, seen.evidence(0.002)])
    expected = dense_notes(rows, window, weight, 0.01, 0.002)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_one_claim_of_a_narrow_window_is_true_and_any_of_a_wide_one():
    evidence = np.array([0.5, -0.2, 900.0, 1.0, -1e9, 7.0])
    start = np.array([0, 2, 5, 6])
    weight = posterior(evidence, start, 2, single=True)
    for first, last in pairwise(start.tolist()):
        wanted = special.softmax(evidence[first:last])
        assert np.allclose(weight[first:last], wanted, atol=1e-300)
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
                changed = stats.multivariate_normal(certain * one, around)
                chance[status] += changed.logpdf(total)
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
    rng, start, window, rows, weight = some_uploads(size)
    column = rng.normal(0, 0.1, (3, 4))
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
        sent = [one for _, one in view.messages if isinstance(one, Broadcast)]
        known = KnownRows.of(sent[number].parameters, terms)
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
    factors = dropout_mask(np.arange(4000), 64, 0.3, 7)
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
    changed = own_status(fits, 0.4)
    expected = [np.log(0.6 * np.exp(one) + 0.4 * np.exp(0.5)) for one in fits[:2]]
    assert np.allclose(changed, [*expected, 0.5])
    assert own_status(fits, 1.0).tolist() == [0.5, 0.5, 0.5]


def test_where_places_are_known_the_likelihood_is_exact():
    """Without pseudo places every upload is the row and noise."""
    terms = terms_of(regions=1, copies=0, windows=3, rounds=4, mask_share=0.3)
    who = StatusPeople(terms, 2)
    view = who.view()
    expected = np.zeros((2, 3))
    for number in range(terms.rounds):
        messages = show_round(view, who, number)
        for person in range(2):
            rows = messages[1 + person][1].rows.double().numpy()
            around = [stats.norm(one, terms.upload_sigma) for one in who.column]
            fits = [one.logpdf(rows).sum() for one in around]
            for status in range(3):
                both = np.array([fits[status], fits[2]])
                weights = [0.7, 0.3] if status < 2 else [1.0, 0.0]
                expected[person, status] += special.logsumexp(both, b=weights)
    found = view.statistics().status
    differ = (found - found[:, 2:]) - (expected - expected[:, 2:])
    assert np.abs(differ).max() < 1e-5
    assert np.ptp(found, axis=1).min() > 0.1


def test_beliefs_are_honest_about_places_and_about_the_status():
    """Of what is given 60 to 80 %, about 70 % is true."""
    terms = terms_of(windows=25, rounds=12, upload_sigma=0.15, **HALF)
    chance, true = {"place": [], "status": []}, {"place": [], "status": []}
    for seed in range(3):
        view, who = recorded_statuses(terms, 80, seed)
        statistics = view.statistics()
        places = statistics.evidence.reshape(-1, terms.regions)
        chance["place"].append(special.softmax(places, axis=1).ravel())
        true["place"].append(who.true.ravel())
        chance["status"].append(special.softmax(statistics.status, axis=1).ravel())
        true["status"].append((np.eye(3)[who.status] == 1).ravel())
    for name in chance:
        assert_honest(chance[name], true[name])


def test_known_rows_tell_places_better_than_rows_that_must_be_found():
    terms = terms_of(windows=12, rounds=20, upload_sigma=0.2, **HALF)
    errors = {}
    for mask in (0.5, None):
        changed = terms_of(**{**vars(terms), "mask_share": mask})
        wrong = []
        for seed in range(3):
            who = StatusPeople(terms, 30, seed)
            view = who.view(terms=changed)
            for number in range(terms.rounds):
                show_round(view, who, number)
            best = view.statistics().evidence.reshape(-1, terms.regions).argmax(axis=1)
            wrong.append(1 - who.true.reshape(len(best), -1)[range(len(best)), best])
        errors[mask] = np.mean(wrong)
    assert errors[0.5] < errors[None] - 0.05


def test_what_is_summed_for_later_is_the_products_of_all_rounds():
    terms = terms_of(rounds=5, mask_share=0.25)
    who = StatusPeople(terms, 2)
    view = who.view()
    matched, gram = np.zeros((3, 2 * len(who.keys))), np.zeros((3, 3, 3))
    for number in range(terms.rounds):
        messages = show_round(view, who, number)
        rows = np.concatenate([messages[1][1].rows, messages[2][1].rows])
        matched += who.column @ rows.T
        gram[0] += who.column @ who.column.T
        for status in (0, 1):
            apart = (who.column[status] - who.column[2]) @ who.column.T
            gram[1 + status] += 0.25 * 0.75 * np.outer(apart, apart)
    statistics = view.statistics()
    assert np.allclose(statistics.matched, matched, atol=1e-6)
    assert np.allclose(statistics.gram, gram, atol=1e-6)


def test_uploads_need_the_parameters_of_their_round():
    terms = terms_of(**HALF)
    who = StatusPeople(terms, 1)
    view = who.view()
    who.broadcast(0)
    with pytest.raises(DataError, match="precede the parameters"):
        view.record(0, who.upload(0, 0, "upload/0"))


RECORDED = replace(town.with_mode("paper"), view=ViewSettings(people=9))


def trained(settings, folder):
    folder.mkdir()
    task = TrainingTask(town.traces(), town.known(), settings, town.SEED)
    return fit(task, folder=folder, recorder=UploadRecorder.of(settings))


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_recording_changes_no_bit_of_a_training(mode, tmp_path):
    plain = town.with_mode(mode)
    seen = replace(plain, view=ViewSettings(people=9))
    one, other = trained(plain, tmp_path / "a"), trained(seen, tmp_path / "b")
    assert np.array_equal(one.probability, other.probability)
    assert one.spent == other.spent
    assert not (tmp_path / "a" / VIEW).exists()


def test_notes_are_of_all_rounds_and_of_as_many_people_as_wished(tmp_path):
    trained(RECORDED, tmp_path / "run")
    statistics = read_statistics(tmp_path / "run")
    assert len(statistics.people) == 9
    assert statistics.rounds == RECORDED.model.rounds
    assert statistics.terms.upload_sigma > 0


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_room_is_that_of_the_run_and_asked_for_before(mode, tmp_path, monkeypatch):
    seen = town.with_mode(mode)
    asked, real = [], upload_recorder.PublicTerms.planned_bytes

    def spy(terms, people):
        asked.append((terms, people))
        return real(terms, people)

    monkeypatch.setattr(upload_recorder.PublicTerms, "planned_bytes", spy)
    require_room(seen, town.traces())
    assert not asked
    watched = replace(seen, view=ViewSettings(people=9))
    require_room(watched, town.traces())
    trained(watched, tmp_path / "run")
    assert asked == [(read_statistics(tmp_path / "run").terms, 9)]
    huge = replace(seen, view=ViewSettings(people=80, most_mb=1))
    huge = replace(huge, model=replace(seen.model, rounds=10**6, width=64))
    message = r"view\.most_mb=1: statistics of 80 people"
    with pytest.raises(SettingsError, match=message):
        require_room(huge, town.traces())
