"""Attack errors as plain figures, by the names that tables use."""

from types import SimpleNamespace

import pytest

from epifalcon.progress import silent
from epifalcon.studies import attack_errors
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.paper.noise import ATTACKS
from epifalcon.studies.paper.pseudo_tradeoff import PLACES
from tests.studies.finished_runs import make_run


def test_places_are_attacked_without_notes(opened):
    found = attack_errors.place_errors(opened("paper"), silent)
    assert set(found) == {*PLACES, "random"}
    assert all(0 <= one <= 1 for one in found.values())
    # Two pseudo places to a true one.
    assert found["random"] == pytest.approx(2 / 3, abs=0.05)


def test_attacks_are_told_by_their_names(monkeypatch):
    attacks = [SimpleNamespace(name=name, error=0.2, random=0.9) for name in ATTACKS]
    monkeypatch.setattr(attack_errors, "read_notes", lambda _place: None)
    monkeypatch.setattr(attack_errors, "attacks_on", lambda *_words: attacks)
    found = attack_errors.audit_errors(SimpleNamespace(place=None), silent)
    assert found == {**dict.fromkeys(ATTACKS, 0.2), "random": 0.9}


@pytest.mark.slow
def test_every_attack_of_the_tables_is_tried(tmp_path):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=4")
    run = make_run(tmp_path / "run", *words, "view.people=20")
    found = attack_errors.audit_errors(FinishedRun.open(run.folder), silent)
    assert set(ATTACKS) <= set(found)
