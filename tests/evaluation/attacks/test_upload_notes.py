import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.attacks import upload_notes as notes_module
from epifalcon.evaluation.attacks.upload_notes import Notes, PublicTerms
from epifalcon.store import Origin
from tests.evaluation.attacks.curious import taken, terms_of
from tests.evaluation.attacks.test_upload_recorder import same
from tests.federation.small_world import city, plan_of, settings_of


def some_notes() -> Notes:
    return taken(terms_of(channels=("upload/0", "upload/1")), 3)[0].notes()


def test_notes_come_back_from_disk_bit_by_bit(tmp_path):
    notes = some_notes()
    notes.save(tmp_path / "notes", Origin(seed=3))
    assert same(Notes.load(tmp_path / "notes"), notes)


@pytest.mark.parametrize("schema", [1, 99])
def test_notes_of_another_version_or_none_are_refused(tmp_path, monkeypatch, schema):
    with pytest.raises(DataError, match="no such folder"):
        Notes.load(tmp_path / "notes")
    monkeypatch.setattr(notes_module, "_SCHEMA", schema)
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


def test_notes_that_were_changed_are_refused(tmp_path):
    some_notes().save(tmp_path / "notes", Origin())
    path = tmp_path / "notes" / "evidence.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CorruptFileError, match=r"evidence\.npy"):
        Notes.load(tmp_path / "notes")


def test_claims_are_grouped_by_person_and_window():
    notes = some_notes()
    assert np.diff(notes.start).tolist() == [4] * (3 * 6)
    for first, last in pairwise(notes.start.tolist()):
        assert len(set(notes.person[first:last])) == 1
        assert len(set(notes.window[first:last])) == 1
        assert notes.region[first:last].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("energy", lambda one: one[:, 1:]),
        ("rows", lambda one: one[:, :, :, 1:]),
        ("key", lambda one: one[::-1].copy()),
        ("person", lambda one: one + 1),
        ("strength", lambda one: one[:1]),
        ("presence", lambda one: one[1:]),
        ("status", lambda one: one[:1]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, change):
    notes = some_notes()
    with pytest.raises(DataError):
        replace(notes, **{name: change(getattr(notes, name))})


def test_terms_are_those_of_the_plan():
    settings = settings_of(gradient_path="exchanged", window_slots=3)
    whole = city(10, 2, 3, window_slots=3)
    wish = {"mode": "paper", "upload_sigma": 0.2, "gradient_sigma": 0.3}
    terms = PublicTerms.of(whole, settings, plan_of(settings, 2, **wish))
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
    terms = PublicTerms.of(whole, shown, plan_of(shown, 2, **wish))
    assert (terms.mask_share, terms.input_dropout, terms.statuses) == (0.3, 0.1, 3)
    off = PublicTerms.of(whole, settings, plan_of(settings, mode="off"))
    assert (off.upload_clip, off.upload_sigma, off.copies) == (None, 0.0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"regions": 0},
        {"upload_sigma": -1.0},
        {"upload_clip": 0.0},
        {"mask_share": 1.5},
        {"input_dropout": -0.1},
    ],
)
def test_impossible_terms_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        terms_of(**wrong)
