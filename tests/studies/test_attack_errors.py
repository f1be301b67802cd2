"""Attack errors as plain figures, by the names that tables use."""

from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon.evaluation.attacks.sets import SetBelief
from epifalcon.progress import silent
from epifalcon.studies import attack_errors, auditing
from epifalcon.studies.features import public_mobility
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.one_follow_up import MEASURES
from epifalcon.studies.paper.noise import ATTACKS
from epifalcon.studies.paper.pseudo_tradeoff import PLACES
from epifalcon.studies.place_attacks import Learnt, Places
from tests.studies.finished_runs import make_run


def test_places_are_attacked_without_notes(opened):
    found = attack_errors.place_errors(opened("paper"), silent)
    assert set(found) == {*PLACES, "random"}
    assert all(0 <= one <= 1 for one in found.values())
    # Two pseudo places to a true one.
    assert found["random"] == pytest.approx(2 / 3, abs=0.05)


def test_attacks_are_told_by_their_names(monkeypatch):
    attacks = [SimpleNamespace(name=name, error=0.2, random=0.9) for name in ATTACKS]
    attacks[1].error = 0.1
    attacks[2].error = None
    attacks.append(SimpleNamespace(name="result", error=0.0, random=0.5))
    monkeypatch.setattr(attack_errors, "read_notes", lambda _place: None)
    monkeypatch.setattr(attack_errors, "attacks_on", lambda *_words: attacks)
    found = attack_errors.audit_errors(SimpleNamespace(place=None), silent)
    expected = {one.name: one.error for one in attacks}
    assert found == {**expected, "strongest": 0.1, "random": 0.9}


@pytest.mark.parametrize("kind", ["places", "audit"])
def test_attackers_have_the_public_mobility_model_of_the_run(
    kind, tmp_path, monkeypatch
):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=2")
    begun = make_run(
        tmp_path / "run", *words, "view.people=10", "pseudo.people_share=0.4"
    )
    used = []

    class Spy(Places):
        def __init__(self, **parts):
            used.append(parts["model"])
            super().__init__(**parts)

    learnt = Learnt(passes=(), sets=SetBelief(), by_sets=False)
    for module in (attack_errors, auditing):
        monkeypatch.setattr(module, "Places", Spy)
        monkeypatch.setattr(module, "learn_attacks", lambda *_words: learnt)
    run = FinishedRun.open(begun.folder)
    MEASURES[kind](run, silent)
    public = public_mobility(run.traces, run.settings.pseudo, run.seed)
    assert [one.people for one in used] == [public.people] == [60]
    assert (used[0].joint != public.joint).nnz == 0
    np.testing.assert_array_equal(used[0].visits, public.visits)


@pytest.mark.slow
def test_every_attack_of_the_tables_is_tried(tmp_path):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=4")
    run = make_run(tmp_path / "run", *words, "view.people=20")
    found = attack_errors.audit_errors(FinishedRun.open(run.folder), silent)
    assert set(ATTACKS) <= set(found)
