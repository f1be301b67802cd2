"""The notes of a curious server: sums, evidence of places and of statuses, storage."""

import json

import numpy as np
import pytest
import torch

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.evaluation.attacks import upload_recorder
from epifalcon.evaluation.attacks.upload_recorder import (
    Notes,
    NoteTaker,
    PublicTerms,
    draw_sample,
)
from epifalcon.federation.messages import LocationUpload, PresenceUpload
from epifalcon.federation.view import SERVER, Crowd
from epifalcon.store import Origin
from tests.evaluation.attacks.curious import (
    People,
    StatusPeople,
    assert_honest,
    gradient,
    noted_by,
    taken,
    taken_of_statuses,
    terms_of,
)
from tests.federation.small_world import city, plan_of, settings_of

TWO = ("upload/0", "upload/1")


def same(one: Notes, other: Notes) -> bool:
    mine, theirs = one.arrays(), other.arrays()
    assert one.meta() == other.meta()
    assert set(mine) == set(theirs)
    return all(
        mine[name].dtype == theirs[name].dtype
        and np.array_equal(mine[name], theirs[name], equal_nan=True)
        for name in mine
    )


def test_sums_over_rounds_are_those_of_the_raw_uploads():
    terms = terms_of(channels=TWO, rounds=5)
    who = People(terms, 3)
    taker = who.taker([0, 2])
    raw = {}
    for number in range(5):
        for cohort, message in who.round(number):
            taker.saw(cohort, message)
            if isinstance(message, LocationUpload):
                raw[cohort, message.channel, number] = message.rows.double().numpy()
    notes = taker.notes()
    assert (notes.rounds, notes.people.tolist()) == (5, [0, 2])
    for place, person in enumerate(notes.people.tolist()):
        mine = notes.person == place
        assert np.array_equal(notes.key[mine], who.keys)
        for layer, channel in enumerate(TWO):
            rows = np.stack([raw[person, channel, number] for number in range(5)])
            square = (rows**2).sum(axis=2)
            assert np.allclose(notes.energy[layer, mine], square.sum(axis=0))
            if layer == 0:
                assert np.allclose(notes.norm[mine], np.sqrt(square[0]))
    # Gradients were (person, 1) in every round.
    assert notes.gradients["head.bias"].tolist() == [[0, 5], [10, 5]]
    assert notes.gradient_energy.tolist() == [5, 25]


def test_rows_come_out_unbiased_and_with_the_noise_they_are_said_to_have():
    terms = terms_of(windows=40, rounds=300, upload_sigma=0.05, width=8)
    who = People(terms, 1)
    taker, row = who.taker(), who.row()
    who.row = lambda: row
    for number in range(terms.rounds):
        taker.saw(0, who.upload(0, number, "upload/0"))
        taker.saw(0, gradient(number))
    notes = taker.notes()
    scaled = (notes.rows[0] - row) * np.sqrt(notes.certainty[0])[:, None]
    late = scaled[20:] / terms.upload_sigma
    assert abs(late.mean()) < 4 / np.sqrt(late.size)
    assert late.std() == pytest.approx(1, abs=0.06)
    assert notes.certainty[0, -1] == pytest.approx(40, abs=0.5)
    norm = np.sqrt(notes.strength[0, 0, 0] / notes.strength[0, 0, 1])
    assert norm == pytest.approx(0.1, rel=0.02)


def test_evidence_is_honest_about_odds():
    """Of the claims given 60 to 80 %, about 70 % are true."""
    terms = terms_of(windows=60, rounds=12, upload_sigma=0.1)
    chance, true = [], []
    for seed in range(4):
        taker, who = taken(terms, 10, seed)
        odds = np.exp(taker.notes().evidence.reshape(-1, terms.regions))
        chance.append((odds / odds.sum(axis=1, keepdims=True)).ravel())
        true.append(who.true.ravel())
    assert_honest(chance, true)


@pytest.mark.parametrize("mask", [None, 0.5])
def test_resumed_notes_are_the_same_bits(mask):
    terms = terms_of(channels=TWO, rounds=6, mask_share=mask)
    made = taken if mask is None else taken_of_statuses
    whole, _ = made(terms, 3)
    who = (People if mask is None else StatusPeople)(terms, 3)
    taker = who.taker()
    for number in range(6):
        if number == 3:
            before = taker.notes()
            taker = NoteTaker(Notes.of(before.arrays(), before.meta()))
        noted_by(taker, who, number)
    assert same(taker.notes(), whole.notes())


def test_rows_of_a_long_run_are_stored_at_even_distances(monkeypatch):
    terms = terms_of(rounds=7)
    every = taken(terms, 2)[0].notes()
    monkeypatch.setattr(upload_recorder, "_ROW_ROUNDS", 3)
    notes = taken(terms, 2)[0].notes()
    assert np.array_equal(notes.rows, every.rows[:, ::3])
    assert (notes.certainty > 0).all()


@pytest.mark.parametrize("mask", [None, 0.5])
def test_memory_is_known_before(mask):
    terms = terms_of(rounds=50, mask_share=mask)
    planned = terms.planned_bytes(10)
    made = taken if mask is None else taken_of_statuses
    arrays = made(terms, 10)[0].notes().arrays()
    held = [one.nbytes for name, one in arrays.items() if "parameter." not in name]
    assert 0.7 * planned < sum(held) <= planned


def test_counts_stand_beside_the_claims():
    terms = terms_of(rounds=1)
    taker, who = taken(terms, 2)
    assert np.isnan(taker.notes().counts).all()
    assert np.isnan(taker.notes().presence).all()
    taker.saw(SERVER, Crowd(who.keys, who.keys + 0.5, who.keys * 2))
    notes = taker.notes()
    assert np.array_equal(notes.counts, notes.key + 0.5)
    assert np.array_equal(notes.claimed, notes.key * 2)


def test_presence_sent_by_devices_is_stored_and_resumed():
    terms = terms_of(rounds=2, presence_sigma=2.0)
    who = People(terms, 3)
    taker = who.taker([0, 2])
    told = [PresenceUpload(who.keys, who.keys + 0.25 * one) for one in range(3)]
    for cohort, message in enumerate(told):
        taker.saw(cohort, message)
    for cohort, message in who.round(0):
        taker.saw(cohort, message)
    notes = taker.notes()
    assert np.array_equal(notes.presence, np.append(who.keys, who.keys + 0.5))
    taker = NoteTaker(Notes.of(notes.arrays(), notes.meta()))
    assert np.array_equal(taker.notes().presence, notes.presence)
    with pytest.raises(DataError, match="other places"):
        taker.saw(0, PresenceUpload(who.keys[1:], told[0].counts[1:]))


def test_a_message_of_several_people_is_taken_apart():
    terms = terms_of(rounds=2)
    who = People(terms, 3)
    one, other = (who.taker([0, 2]) for _ in range(2))
    for number in range(2):
        parts = [who.upload(person, number, "upload/0") for person in range(3)]
        keys = np.concatenate([part.keys for part in parts])
        order = np.argsort(keys, kind="stable")
        rows = torch.cat([part.rows for part in parts])[torch.from_numpy(order)]
        person = np.concatenate([part.person for part in parts])[order]
        other.saw(9, LocationUpload(number, "upload/0", keys[order], rows, person))
        for part in parts:
            one.saw(0, part)
        for taker in (one, other):
            for cohort in range(3):
                taker.saw(cohort, gradient(number))
    assert same(one.notes(), other.notes())


def test_rounds_must_come_whole_and_in_order():
    terms = terms_of()
    who = People(terms, 1)
    taker = who.taker()
    first = who.upload(0, 0, "upload/0")
    taker.saw(0, first)
    with pytest.raises(DataError, match="half noted"):
        taker.notes()
    with pytest.raises(DataError, match="round 0 came, round 1 is due"):
        taker.saw(0, first)
    taker.saw(0, gradient(0))
    with pytest.raises(DataError, match="round 2 came, round 1 is due"):
        taker.saw(0, gradient(2))
    fewer = LocationUpload(
        1, "upload/0", first.keys[1:], first.rows[1:], first.person[1:]
    )
    with pytest.raises(DataError, match="claims other places"):
        taker.saw(0, fewer)
    assert taker.notes().rounds == 1


def test_sums_of_cohorts_are_refused_and_scoring_and_strangers_ignored():
    who = People(terms_of(), 2)
    taker = who.taker([0])
    sums = LocationUpload(0, "upload/0", np.arange(3), torch.ones(3, 5))
    with pytest.raises(DataError, match="one by one"):
        taker.saw(0, sums)
    taker.saw(0, who.upload(0, 7, "scoring/0"))
    taker.saw(1, who.upload(1, 7, "upload/0"))
    taker.saw(1, gradient(7))
    assert taker.notes().rounds == 0
    assert not taker.notes().energy.any()


def test_a_sample_is_drawn_from_the_seed():
    drawn = draw_sample(1000, 50, 3)
    assert len(set(drawn.tolist())) == 50
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, draw_sample(1000, 50, 3))
    assert not np.array_equal(drawn, draw_sample(1000, 50, 4))
    assert draw_sample(7, 50, 3).tolist() == list(range(7))


def some_notes() -> Notes:
    return taken(terms_of(channels=TWO), 3)[0].notes()


def test_notes_come_back_from_disk_bit_by_bit(tmp_path):
    notes = some_notes()
    notes.save(tmp_path / "notes", Origin(seed=3))
    assert same(Notes.load(tmp_path / "notes"), notes)
    path = tmp_path / "notes" / "evidence.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CorruptFileError, match=r"evidence\.npy"):
        Notes.load(tmp_path / "notes")


@pytest.mark.parametrize("schema", [2, 99])
def test_notes_of_another_version_or_none_are_refused(tmp_path, monkeypatch, schema):
    with pytest.raises(DataError, match="no such folder"):
        Notes.load(tmp_path / "notes")
    monkeypatch.setattr(upload_recorder, "_SCHEMA", schema)
    some_notes().save(tmp_path / "notes", Origin())
    monkeypatch.undo()
    with pytest.raises(DataError, match=f"schema {schema} of 'server-notes'"):
        Notes.load(tmp_path / "notes")


def test_notes_out_of_an_older_checkpoint_are_refused():
    """Checkpoints have no schema of their own for what rides in them."""
    notes = some_notes()
    older = {name: one for name, one in notes.arrays().items() if name != "met"}
    with pytest.raises(CorruptFileError, match=r"another version.*met"):
        Notes.of(older, notes.meta())


def terms_for(cohort, settings, plan):
    return NoteTaker.of(cohort, settings, plan, np.array([0])).notes().terms


def test_terms_are_those_of_the_plan():
    settings = settings_of(gradient_path="exchanged", window_slots=3)
    whole = city(10, 2, 3, window_slots=3)
    wish = {"mode": "paper", "upload_sigma": 0.2, "gradient_sigma": 0.3}
    terms = terms_for(whole, settings, plan_of(settings, 2, **wish))
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
    terms = terms_for(whole, shown, plan_of(shown, 2, **wish))
    assert (terms.mask_share, terms.input_dropout, terms.statuses) == (0.3, 0.1, 3)
    off = terms_for(whole, settings, plan_of(settings, mode="off"))
    assert (off.upload_clip, off.upload_sigma, off.copies) == (None, 0.0, 0)
