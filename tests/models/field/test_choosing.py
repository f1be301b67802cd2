import numpy as np
import pytest

from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.settings import ALIKE, TransmissionSettings


def lost(gain, noise, people=400, seed=0):
    rng = np.random.default_rng(seed)
    before = rng.random(people)
    return before, before - gain + noise * rng.normal(size=people)


def test_a_richer_law_must_win_by_more_than_its_error():
    one, better = lost(gain=0.1, noise=0.5)
    assert choose({"one": one, "apart": better}) == "apart"
    one, doubtful = lost(gain=0.001, noise=0.5)
    assert choose({"one": one, "apart": doubtful}) == "one"
    assert choose({"one": one, "scaled": one, "apart": one}) == "one"


def test_of_laws_as_rich_as_each_other_the_better_one_is_taken():
    mild, doubtful = lost(gain=0.0, noise=0.5)
    doubtful += (mild - doubtful).mean() - 0.01
    assert choose({"mild": mild, "apart": doubtful}) == "mild"
    assert choose({"mild": mild, "apart": doubtful}, ALIKE) == "apart"
    assert choose({"scaled": mild, "apart": doubtful}, ALIKE) == "scaled"


def test_a_rate_is_always_estimated_unless_it_is_wished_otherwise():
    assert "one" not in TransmissionSettings().laws
    assert TransmissionSettings(law="one").laws == ("one",)
    assert TransmissionSettings(among=("apart", "one")).laws == ("one", "apart")


def test_the_best_of_several_is_found():
    one, apart = lost(gain=0.1, noise=0.1)
    assert choose({"one": one, "apart": apart, "near": apart - 0.05}) == "near"
    assert choose({"one": one, "apart": apart - 0.05, "near": apart}) == "apart"


def test_nobody_held_out_chooses_the_simplest():
    none = np.empty(0)
    assert choose({"one": none, "near": none}) == "one"


def test_losses_of_certain_answers_are_finite():
    found = losses(np.array([0.0, 1.0, 0.25]), np.array([True, True, False]))
    assert found[1] == 0
    assert found[2] == pytest.approx(-np.log(0.75))
    assert np.isfinite(found).all()
