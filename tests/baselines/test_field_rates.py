from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon.baselines import field_rates
from epifalcon.baselines.field_rates import PUBLISHED, TRIED, RunsByTimes, Times
from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.models.field.settings import FieldSettings
from tests.baselines.encounters import known_of
from tests.baselines.test_falcon_field import QUICK, fitted
from tests.baselines.test_hbp import town_scene
from tests.studies import town

PEOPLE = 80
FOLD = np.arange(PEOPLE) % 4
TESTS = known_of(PEOPLE, [(person, 1, person % 3 == 0) for person in range(PEOPLE)])


def by_times(monkeypatch, told, rates="chosen"):
    """Runs that tell everybody by ``told(alpha, mu, infected)``, and who asked."""
    asked = []

    class Scripted:
        def __init__(self, scene, _traces, _wishes):
            self.rates = scene.pathogen.alpha, scene.pathogen.mu

        def shortly(self, tests, law):
            asked.append((self.rates, law))
            # Never those who are asked about: the others' results are theirs.
            assert not tests.tested.all()
            return SimpleNamespace(risk=told(*self.rates, TESTS.status == 1))

    monkeypatch.setattr(field_rates, "Runs", Scripted)
    scene = town_scene()
    scene = replace(scene, pathogen=replace(scene.pathogen, alpha=0.25, mu=0.5))
    wishes = FieldWishes(field=FieldSettings(rates=rates))
    return RunsByTimes(scene, scene.traces, wishes), asked


def sharp_at(mu_wanted):
    def told(_alpha, mu, infected):
        sure = 0.8 if mu == mu_wanted else 0.55
        return np.where(infected, sure, 1 - sure)

    return told


def test_the_times_that_tell_held_out_people_best_are_taken(monkeypatch):
    made, asked = by_times(monkeypatch, sharp_at(1.0))
    assert made.chosen(TESTS, FOLD) == Times(mu=2.0)
    assert len({rates for rates, _ in asked}) == len(TRIED)
    assert {law for _, law in asked} == {"scaled"}


def test_in_doubt_they_are_the_published_ones(monkeypatch):
    made, _ = by_times(monkeypatch, lambda _alpha, _mu, _infected: np.full(PEOPLE, 0.3))
    assert made.chosen(TESTS, FOLD) == PUBLISHED


def test_given_times_are_not_tried(monkeypatch):
    made, asked = by_times(monkeypatch, sharp_at(1.0), rates="given")
    assert made.chosen(TESTS, FOLD) == PUBLISHED
    assert not asked


def test_nobody_s_own_result_moves_its_own_risk_where_times_are_chosen():
    known, wish = town.known(), replace(QUICK, rates="chosen")
    before = fitted(known, field=wish)
    assert {"alpha_factor", "mu_factor"} <= set(before.found.told)
    person = known.person[5]
    after = fitted(town.flipped(known, [person]), field=wish).predict_proba()
    assert after[person] == before.predict_proba()[person]


def test_other_words_are_refused():
    with pytest.raises(SettingsError, match="rates"):
        FieldSettings(rates="guessed")
