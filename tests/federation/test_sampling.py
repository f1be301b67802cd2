"""What a view is shown of a sample: the same on both engines, at no change to a run."""

import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError
from epifalcon.federation.engine import train
from epifalcon.federation.exchange import CohortEngine
from epifalcon.federation.messages import Broadcast, GradientUpload, LocationUpload
from epifalcon.federation.note_taking import NoteTaker
from epifalcon.federation.notes import Notes, PublicTerms
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.federation.view import Crowd, RecordedView
from tests.federation.small_world import city, plan_of, settings_of
from tests.federation.test_note_taking import same

SAMPLE = np.array([0, 3, 4, 7, 20])  # nobody saw person 4
PAPER = {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1}
SILENT = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.0}
LOCAL = {"mode": "local", "epsilon": 20.0}
MODES = {"off": {"mode": "off"}, "silent": SILENT, "paper": PAPER, "local": LOCAL}
each_mode = pytest.mark.parametrize("wish", MODES.values(), ids=MODES)
each_engine = pytest.mark.parametrize("kind", ["vectorised", "cohorts"])


def world(wish, window_slots=1, **changes):
    copies = 0 if wish["mode"] == "off" else 2
    settings = settings_of(precision="double", window_slots=window_slots, **changes)
    whole = city(30, copies, 3, window_slots)
    return whole, settings, plan_of(settings, copies, **wish)


def engine_of(kind, made, view=None, seed=5, parts=4):
    whole, settings, plan = made
    if kind == "vectorised":
        return VectorisedEngine(whole, settings, plan, seed, view=view)
    order = np.random.default_rng(parts).permutation(len(whole.people))
    cohorts = [whole.restrict(np.sort(some)) for some in np.array_split(order, parts)]
    return CohortEngine(cohorts, settings, plan, seed, view=view)


def noted(kind, made, rounds=None, seed=5) -> Notes:
    taker = NoteTaker(SAMPLE, PublicTerms.of(*made))
    train(engine_of(kind, made, taker, seed), rounds)
    return taker.notes()


@each_mode
@each_engine
def test_a_run_is_the_same_bit_by_bit_when_it_is_watched(kind, wish):
    made = world(wish)
    taker = NoteTaker(SAMPLE, PublicTerms.of(*made))
    watched, alone = engine_of(kind, made, taker), engine_of(kind, made)
    for one in (watched, alone):
        train(one)
    mine, theirs = watched.state(), alone.state()
    assert mine.ledger_head == theirs.ledger_head
    assert all(
        torch.equal(mine.tensors[name], theirs.tensors[name]) for name in mine.tensors
    )
    assert taker.notes().rounds == 8


@pytest.mark.parametrize("path", ["local", "exchanged"])
@pytest.mark.parametrize("window_slots", [1, 3])
@pytest.mark.parametrize("mode", ["off", "silent"])
def test_engines_agree_without_noise(mode, window_slots, path):
    made = world(MODES[mode], window_slots, gradient_path=path)
    one, other = (noted(kind, made) for kind in ("vectorised", "cohorts"))
    mine, theirs = one.arrays(), other.arrays()
    assert set(mine) == set(theirs)
    for name, array in mine.items():
        scale = 1e-6 * max(1.0, np.abs(np.nan_to_num(array)).max(initial=0))
        other = theirs[name]
        assert np.allclose(array, other, rtol=0, atol=scale, equal_nan=True), name


@each_engine
def test_noise_has_the_plans_variance_on_every_channel(kind):
    made = world(PAPER, width=16)
    whole, sigma = made[0], 0.1
    rounds, squares, gradients = 3, [], []
    for seed in range(12):
        notes = noted(kind, made, rounds, seed)
        true = np.isin(notes.code, true_codes(whole, notes))
        squares.append(notes.energy[:, ~true] / (16 * rounds))
        # Person 20 was never tested: its gradient is noise alone.
        assert whole.status[20] == -1
        gradients.append(notes.gradient_energy[4])
    squares = np.stack(squares)
    error = 4 * sigma**2 * np.sqrt(2 / (squares.size * 16 * rounds))
    assert abs(squares.mean() - sigma**2) < error
    count = notes.terms.parameters * rounds
    error = 4 * sigma**2 * np.sqrt(2 / (count * len(gradients)))
    assert abs(np.mean(gradients) / count - sigma**2) < error


def true_codes(whole, notes):
    mine = whole.incidence.restrict(notes.people.astype(np.int32))
    places = notes.terms.regions * notes.terms.windows
    return np.repeat(mine.edge_key, mine.size) + mine.by_edge.index * np.int64(places)


@each_engine
@pytest.mark.parametrize("window_slots", [1, 3])
def test_all_claims_and_nothing_else_are_noted(kind, window_slots):
    made = world(PAPER, window_slots)
    whole, notes = made[0], noted(kind, made, 1)
    expected = {
        (int(whole.people[row]), int(key))
        for row, key in zip(whole.claims.row, whole.claims.place, strict=True)
        if whole.people[row] in SAMPLE
    }
    found = list(
        zip(notes.people[notes.person].tolist(), notes.key.tolist(), strict=True)
    )
    assert set(found) == expected
    assert len(found) == len(expected)
    assert 4 not in {person for person, _ in found}


@each_engine
@pytest.mark.parametrize("window_slots", [1, 3])
def test_counts_and_claims_are_those_of_everybody(kind, window_slots):
    made = world(PAPER, window_slots)
    claims, notes = made[0].claims, noted(kind, made, 1)
    for key, count, claimed in zip(notes.key, notes.counts, notes.claimed, strict=True):
        here = claims.place == key
        assert claimed == here.sum()
        assert count == (here & claims.true).sum()
    if window_slots == 1:
        assert (notes.counts == 0).any()


def test_local_counts_carry_noise_of_every_claim():
    made = world(LOCAL)
    sigma = made[2].presence.sigma
    clean = noted("cohorts", world(PAPER), 0).counts
    for kind in ("vectorised", "cohorts"):
        scaled = []
        for seed in range(6):
            notes = noted(kind, made, 1, seed)
            _, first = np.unique(notes.key, return_index=True)
            noise = notes.counts - true_counts(made[0], notes)
            scaled.append((noise / (sigma * np.sqrt(notes.claimed)))[first])
        scaled = np.concatenate(scaled)
        assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * len(scaled))
    assert len(clean) == 0


@each_engine
def test_in_local_mode_each_device_tells_of_its_places_with_noise_of_its_own(kind):
    made = world(LOCAL)
    sigma, scaled = made[2].presence.sigma, []
    for seed in range(6):
        notes = noted(kind, made, 1, seed)
        true = np.isin(notes.code, true_codes(made[0], notes))
        scaled.append((notes.presence - true) / sigma)
    scaled = np.concatenate(scaled)
    assert abs(scaled.mean()) < 4 / np.sqrt(len(scaled))
    assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * len(scaled))
    # Totals only, where a device alone would say what is true.
    for mode in ("off", "paper"):
        assert np.isnan(noted(kind, world(MODES[mode]), 1).presence).all()


def true_counts(whole, notes):
    claims = whole.claims
    return np.array([(claims.true & (claims.place == key)).sum() for key in notes.key])


def test_the_uploads_shown_are_those_in_the_sums_of_the_engine_of_messages():
    made = world(PAPER)
    everybody, few = RecordedView(), RecordedView(sample=SAMPLE)
    for view in (everybody, few):
        engine_of("cohorts", made, view, parts=3).step()
    sent = {
        (person, key): row
        for upload in everybody.uploads("upload/1")
        for person, key, row in zip(
            upload.person.tolist(), upload.keys.tolist(), upload.rows, strict=True
        )
    }
    shown = few.uploads("upload/1")
    assert sum(len(upload.keys) for upload in shown) > 50
    for upload in shown:
        for person, key, row in zip(
            upload.person.tolist(), upload.keys.tolist(), upload.rows, strict=True
        ):
            # One row alone may be multiplied in another order than among others;
            # noise that differed would differ by a tenth.
            assert torch.allclose(sent[person, key], row, rtol=0, atol=1e-14)


@each_engine
def test_a_view_is_told_who_and_in_which_order(kind):
    made, view = world(PAPER), RecordedView(sample=SAMPLE)
    engine_of(kind, made, view, parts=1).step()
    kinds = [type(message) for _, message in view.messages]
    few = len(SAMPLE)
    assert kinds[:2] == [Crowd, Broadcast]
    assert kinds[2:] == [LocationUpload] * 2 * few + [GradientUpload] * few
    assert [cohort for cohort, _ in view.messages] == [-1, -1, *SAMPLE.tolist() * 3]


@each_engine
def test_watching_resumes_bit_by_bit(kind):
    made = world(PAPER)
    whole = noted(kind, made)
    taker = NoteTaker(SAMPLE, PublicTerms.of(*made))
    first = engine_of(kind, made, taker)
    train(first, 3)
    kept, state = taker.notes(), first.state()
    taker = NoteTaker.resume(Notes.of(kept.arrays(), kept.meta()))
    second = engine_of(kind, made, taker)
    second.restore(state)
    train(second)
    assert same(taker.notes(), whole)


def test_threads_change_no_bit(monkeypatch):
    made = world(PAPER)
    alone = noted("vectorised", made)
    monkeypatch.setattr("epifalcon.hypergraph.compiled._WORTH_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = noted("vectorised", made)
    assert same(alone, together)


def test_the_fast_engine_asks_for_a_sample():
    made = world(PAPER)
    with pytest.raises(SettingsError, match="sample"):
        engine_of("vectorised", made, RecordedView())


def test_a_scoring_pass_is_shown_under_its_own_name():
    for kind in ("vectorised", "cohorts"):
        view = RecordedView(sample=SAMPLE)
        engine_of(kind, world(PAPER), view).scores(fresh=True)
        assert len(view.uploads("scoring/0")) == len(SAMPLE)
        assert len(view.uploads("upload/0")) == 0
