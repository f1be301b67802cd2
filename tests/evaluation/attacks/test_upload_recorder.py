import numpy as np
import pytest
import torch

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks.upload_notes import Notes
from epifalcon.evaluation.attacks.upload_recorder import (
    NoteSettings,
    NoteTaker,
    draw_sample,
    planned_bytes,
)
from epifalcon.federation.messages import Broadcast, LocationUpload, PresenceUpload
from epifalcon.federation.view import SERVER, Crowd
from tests.evaluation.attacks.curious import (
    People,
    gradient,
    taken,
    taken_of_statuses,
    terms_of,
)

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
    taker = NoteTaker([0, 2], terms, NoteSettings(norm_rounds=2))
    raw = {}
    for number in range(5):
        for cohort, message in who.round(number):
            taker.saw(cohort, message)
            if isinstance(message, LocationUpload):
                raw[cohort, message.channel, number] = message.rows.double().numpy()
    notes = taker.notes()
    assert (notes.rounds, notes.people.tolist()) == (5, [0, 2])
    window = who.keys // terms.regions
    for place, person in enumerate(notes.people.tolist()):
        mine = notes.person == place
        assert np.array_equal(notes.key[mine], who.keys)
        for layer, channel in enumerate(TWO):
            rows = np.stack([raw[person, channel, number] for number in range(5)])
            square = (rows**2).sum(axis=2)
            assert np.allclose(notes.energy[layer, mine], square.sum(axis=0))
            assert np.allclose(notes.norms[layer][:, mine], np.sqrt(square[:2]))
            for claim in range(len(who.keys)):
                rest = rows[:, window != window[claim]].mean(axis=1)
                expected = (rest * rows[:, claim]).sum()
                found = notes.correlation[layer, mine][claim]
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
    # Gradients were (person, 1) in every round.
    assert notes.gradients["head.bias"].tolist() == [[0, 5], [10, 5]]
    assert notes.gradient_energy.tolist() == [5, 25]


def test_rows_come_out_unbiased_and_with_the_noise_they_are_said_to_have():
    terms = terms_of(windows=40, rounds=300, upload_sigma=0.05, width=8)
    who, taker = People(terms, 1), NoteTaker([0], terms)
    row = who.row()
    who.row = lambda: row
    for number in range(terms.rounds):
        taker.saw(0, who.upload(0, number, "upload/0"))
        taker.saw(0, gradient(number))
    notes = taker.notes()
    scaled = (notes.rows[0, :, 0] - row) * np.sqrt(notes.certainty[0, :, 0])[:, None]
    late = scaled[20:] / terms.upload_sigma
    assert abs(late.mean()) < 4 / np.sqrt(late.size)
    assert late.std() == pytest.approx(1, abs=0.06)
    assert notes.certainty[0, -1, 0] == pytest.approx(40, abs=0.5)
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
    chance, true = np.concatenate(chance), np.concatenate(true)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        some = (chance >= low) & (chance < low + 0.2)
        error = 4 * np.sqrt(0.25 / some.sum())
        assert true[some].mean() == pytest.approx(chance[some].mean(), abs=error)


def test_taking_notes_again_from_kept_ones_gives_the_same_bits():
    terms = terms_of(channels=TWO, rounds=6)
    whole, _ = taken(terms, 3)
    who = People(terms, 3)
    taker = NoteTaker(np.arange(3), terms)
    for number in range(6):
        messages = who.round(number)
        if number == 3:
            taker.saw(SERVER, Broadcast(3, {"head.bias": torch.ones(2)}))
            arrays = taker.notes().arrays()
            taker = NoteTaker.resume(Notes.of(arrays, taker.notes().meta()))
        for cohort, message in messages:
            taker.saw(cohort, message)
    resumed = taker.notes()
    assert resumed.parameters["head.bias"].tolist() == [1, 1]
    resumed.parameters.clear()
    assert same(resumed, whole.notes())
    with pytest.raises(SettingsError, match="other settings"):
        NoteTaker.resume(resumed, NoteSettings(norm_rounds=2))


def test_rows_of_a_long_run_are_kept_at_even_distances():
    terms = terms_of(rounds=7)
    taker, _ = taken(terms, 2, settings=NoteSettings(row_rounds=3))
    whole, _ = taken(terms, 2)
    notes, every = taker.notes(), whole.notes()
    assert notes.row_every == 3
    assert np.array_equal(notes.rows, every.rows[:, ::3])
    assert (notes.certainty > 0).all()


def test_memory_is_known_before_and_refused():
    terms = terms_of(rounds=50, parameters=2)
    settings = NoteSettings()
    planned = planned_bytes(10, terms, settings)
    taker, _ = taken(terms, 10)
    held = sum(one.nbytes for one in taker.notes().arrays().values())
    assert 0.7 * planned < held <= planned
    shown = terms_of(rounds=50, mask_share=0.5)
    known = taken_of_statuses(shown, 10)[0].notes()
    held = sum(
        one.nbytes
        for name, one in known.arrays().items()
        if not name.startswith("parameter.")
    )
    assert 0.7 * planned_bytes(10, shown, settings) < held
    assert held <= planned_bytes(10, shown, settings)
    with pytest.raises(SettingsError, match=r"notes of 10 people take up to .* bytes"):
        NoteTaker(np.arange(10), terms, NoteSettings(most_bytes=planned - 1))
    NoteTaker(np.arange(10), terms, NoteSettings(most_bytes=planned))


def test_notes_do_not_grow_with_rounds_but_for_the_rows():
    sizes = [
        planned_bytes(500, terms_of(rounds=rounds), NoteSettings(row_rounds=10))
        for rounds in (10, 10_000)
    ]
    assert sizes[0] == sizes[1]


def test_counts_stand_beside_the_claims():
    terms = terms_of(rounds=1)
    taker, who = taken(terms, 2)
    assert np.isnan(taker.notes().counts).all()
    assert np.isnan(taker.notes().presence).all()
    taker.saw(SERVER, Crowd(who.keys, who.keys + 0.5, who.keys * 2))
    notes = taker.notes()
    assert np.array_equal(notes.counts, notes.key + 0.5)
    assert np.array_equal(notes.claimed, notes.key * 2)


def test_what_devices_say_of_their_own_places_is_kept_and_gone_on_with():
    terms = terms_of(rounds=2, presence_sigma=2.0)
    who, taker = People(terms, 3), NoteTaker([0, 2], terms)
    told = [PresenceUpload(who.keys, who.keys + 0.25 * one) for one in range(3)]
    for cohort, message in enumerate(told):
        taker.saw(cohort, message)
    assert len(taker.notes().presence) == 0
    for cohort, message in who.round(0):
        taker.saw(cohort, message)
    notes = taker.notes()
    assert np.array_equal(notes.presence, np.append(who.keys, who.keys + 0.5))
    taker = NoteTaker.resume(Notes.of(notes.arrays(), notes.meta()))
    assert np.array_equal(taker.notes().presence, notes.presence)
    taker.saw(0, PresenceUpload(who.keys[1:], told[0].counts[1:]))
    with pytest.raises(DataError, match="other places"):
        taker.notes()


def test_a_message_of_several_people_is_taken_apart():
    terms = terms_of(rounds=2)
    who = People(terms, 3)
    one, other = (NoteTaker([0, 2], terms) for _ in range(2))
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
    who, taker = People(terms, 1), NoteTaker([0], terms)
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


def test_sums_of_cohorts_and_odd_samples_are_refused():
    terms = terms_of()
    taker = NoteTaker([0], terms)
    sums = LocationUpload(0, "upload/0", np.arange(3), torch.ones(3, 5))
    with pytest.raises(DataError, match="one by one"):
        taker.saw(0, sums)
    for sample in ([], [2, 1], [1, 1]):
        with pytest.raises(SettingsError, match="ascending"):
            NoteTaker(sample, terms)
    many = LocationUpload(
        0, "upload/0", np.arange(25), torch.ones(25, 5), np.zeros(25, np.int64)
    )
    with pytest.raises(DataError, match="at most 24"):
        taker.saw(0, many)


def test_scoring_and_strangers_are_let_go():
    taker = NoteTaker([0], terms_of())
    who = People(terms_of(), 2)
    taker.saw(0, who.upload(0, 7, "scoring/0"))
    taker.saw(1, who.upload(1, 7, "upload/0"))
    taker.saw(1, gradient(7))
    assert len(taker.notes().key) == 0


def test_a_sample_is_drawn_from_the_seed():
    drawn = draw_sample(1000, 50, 3)
    assert len(set(drawn.tolist())) == 50
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, draw_sample(1000, 50, 3))
    assert not np.array_equal(drawn, draw_sample(1000, 50, 4))
    assert draw_sample(7, 50, 3).tolist() == list(range(7))
