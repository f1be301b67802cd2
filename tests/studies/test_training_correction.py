import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError, WriteError
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.correction import Correction
from epifalcon.studies import training_correction
from epifalcon.studies.correction_worlds import LAWS, draw_world, lessons_of
from epifalcon.studies.training_correction import LessonPlan, learn, train_correction

TINY = LessonPlan(worlds=9, seed=4, people=(200, 260), epochs=2, width=4)


def test_a_training_ends_in_the_same_bytes_stopped_or_not(tmp_path, monkeypatch):
    one, other = (tmp_path / name for name in ("a.safetensors", "b.safetensors"))
    made = train_correction(TINY, one, "epifalcon train-correction")
    seen = []
    monkeypatch.setattr(
        training_correction,
        "lessons_of",
        lambda number, *more: seen.append(number) or lessons_of(number, *more),
    )

    def stop(_name, done, _total, _told=""):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_correction(TINY, other, "epifalcon train-correction", stop)
    assert not other.exists()
    train_correction(TINY, other, "epifalcon train-correction")
    assert seen == list(range(9))
    for suffix in (".safetensors", ".json"):
        first, second = (path.with_suffix(suffix) for path in (one, other))
        assert first.read_bytes() == second.read_bytes()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        *(".json", ".json", ".safetensors", ".safetensors")
    ]
    assert Correction.load(one).made == made.made


def test_worlds_are_drawn_within_their_priors_and_differ():
    worlds = [draw_world(np.random.default_rng(k), (300, 3000)) for k in range(12)]
    assert all(300 <= one.city.people <= 3000 for one in worlds)
    assert len({one.beliefs.beta_factor for one in worlds}) > 3
    assert {one.outbreak.regional_sigma == 0 for one in worlds} == {True, False}


def test_a_lesson_is_of_hidden_people_under_each_law():
    first, again = (
        next(found for k in range(9) if (found := list(lessons_of(k, 4, (200, 260)))))
        for _ in range(2)
    )
    assert len(first) == len(LAWS)
    for one, other in zip(first, again, strict=True):
        assert one.numbers.shape == (len(one.odds), len(NUMBERS))
        np.testing.assert_array_equal(one.numbers, other.numbers)


def test_what_is_wrong_in_all_worlds_is_learnt():
    """Infection follows one of the numbers, which the field's odds leave out."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(4000, len(NUMBERS)))
    odds = rng.normal(-1, 0.5, 4000)
    chance = 1 / (1 + np.exp(-odds - numbers[:, 3]))
    infected = rng.random(4000) < chance
    tables = {
        "odds": torch.from_numpy(odds),
        "numbers": torch.from_numpy(numbers),
        "infected": torch.from_numpy(infected.astype(np.float64)),
        "world": torch.arange(4000, dtype=torch.float64) // 40,
    }
    made = learn(tables, LessonPlan(epochs=40, learning_rate=0.02))
    told = made.made["held_out_log_loss"]
    assert told["after"] < told["before"] - 0.05
    risk = 1 / (1 + np.exp(-odds))
    gap = np.abs(made(risk, numbers) - chance).mean()
    assert gap < 0.5 * np.abs(risk - chance).mean()


def test_plans_and_places_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="worlds=4"):
        LessonPlan(worlds=4)
    with pytest.raises(SettingsError, match="900 to 300"):
        LessonPlan(people=(900, 300))
    with pytest.raises(SettingsError, match="must end in"):
        training_correction.require_new(tmp_path / "a.bin")
    there = tmp_path / "a.safetensors"
    there.touch()
    with pytest.raises(WriteError, match="exists"):
        training_correction.require_new(there)
    training_correction.require_new(there, overwrite=True)
