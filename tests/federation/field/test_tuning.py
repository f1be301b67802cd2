import math

import numpy as np
import pytest
import torch

from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.field.settings import (
    TUNING,
    FieldPrivacySettings,
    FieldWishes,
    TuningSettings,
)
from epifalcon.federation.field.task import FieldOrder, FieldTask
from epifalcon.federation.field.tuning import Tuner, TuningPlan, tapes
from epifalcon.federation.settings import SiteRules
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.correction import (
    MOST_BEND,
    MOST_ODDS,
    MOST_SHIFT,
    Correction,
    standardised,
)
from epifalcon.models.field.lessons import Lessons, slopes_of
from epifalcon.models.field.settings import FieldSettings
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.dpsgd import clipped_sum
from epifalcon.privacy.ledger import Ledger

RIGHT, WRONG = TestErrors(), TestErrors(false_positive=0.03, false_negative=0.2)
SHIPPED = Correction.shipped()
NAMES = [f"{kind}{layer}" for layer in range(3) for kind in ("weight", "bias")]


def lessons(people=40, seed=0):
    """People within the worlds of the training, and some far outside."""
    rng = np.random.default_rng(seed)
    away = rng.normal(0, 1.5, (people, len(NUMBERS)))
    numbers = SHIPPED.arrays["mean"] + SHIPPED.arrays["spread"] * away
    risk = rng.beta(1, 3, people)
    risk[:2] = 0, 1
    return Lessons(risk, numbers.astype(np.float32), rng.random(people) < 0.3)


def nobody_to_learn_from(people=200):
    """People of another world: their gradients are as good as 0."""
    far = np.full((people, len(NUMBERS)), 1e6, np.float32)
    return Lessons(np.full(people, 0.3), far, np.zeros(people, np.bool_))


def loss_by_hand(weights, one, errors):
    """A person's log loss as the equations have it, on autograd's tape."""
    seen, fade = standardised(one.numbers, SHIPPED.arrays)
    out = torch.from_numpy(seen[0])
    for layer in range(3):
        out = weights[f"weight{layer}"] @ out + weights[f"bias{layer}"]
        out = torch.tanh(out)
    risk = np.clip(one.risk[0], 1e-6, 1 - 1e-6)
    odds = math.log(risk / (1 - risk))
    cut = min(max(odds, -MOST_ODDS), MOST_ODDS)
    moved = MOST_BEND * out[0] * cut + MOST_SHIFT * out[1]
    told = torch.sigmoid(odds + fade[0] * moved)
    wrong = errors.false_positive
    chance = wrong + (1 - wrong - errors.false_negative) * told
    return -torch.log(chance if one.positive[0] else 1 - chance)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("errors", [RIGHT, WRONG])
@pytest.mark.parametrize("clip", [0.05, 0.7, 50.0])
def test_the_clipped_sum_is_that_of_a_loop_with_autograd(layers, errors, clip):
    given, names = lessons(), NAMES[-2 * layers :]
    weights = {
        name: torch.from_numpy(one.copy()).requires_grad_()
        for name, one in SHIPPED.arrays.items()
        if name in NAMES
    }
    total = {name: torch.zeros_like(weights[name]) for name in names}
    for person in range(len(given)):
        own = given.of(np.arange(len(given)) == person)
        lost = loss_by_hand(weights, own, errors)
        found = torch.autograd.grad(lost, [weights[name] for name in names])
        norm = math.sqrt(sum(float((one**2).sum()) for one in found))
        for name, one in zip(names, found, strict=True):
            total[name] += one * min(1.0, clip / norm)
    slopes = slopes_of(SHIPPED.arrays, given, errors)[-layers:]
    made = clipped_sum(tapes(slopes), clip).gradients
    assert set(made) == set(names)
    for name in names:
        torch.testing.assert_close(made[name], total[name], rtol=1e-6, atol=1e-7)


def tuner_of(seed=7, **wish):
    plan = TuningPlan(settings=TuningSettings(**wish))
    return Tuner(plan, Ledger(plan.budget), seed)


def test_without_steps_it_is_the_correction_that_was_given():
    tuner, given = tuner_of(steps=0), lessons()
    tuner.begin()
    found = tuner.tune(SHIPPED, given, RIGHT)
    for name, one in SHIPPED.arrays.items():
        np.testing.assert_array_equal(found.correction.arrays[name], one)
    np.testing.assert_array_equal(found.told, SHIPPED(given.risk, given.numbers))
    assert tuner.as_plain()["epsilon"] == 0


def test_without_noise_the_loss_falls_and_only_the_tuned_layers_move():
    given = lessons(400)
    tuner = tuner_of(steps=30, sigma=0.0, layers=2)
    tuner.begin()
    found = tuner.tune(SHIPPED, given, RIGHT).correction

    def lost(correction):
        told = correction(given.risk, given.numbers)[2:]
        return -np.log(np.where(given.positive[2:], told, 1 - told)).mean()

    assert lost(found) < lost(SHIPPED) - 0.01
    moved = {
        name for name in NAMES if (found.arrays[name] != SHIPPED.arrays[name]).any()
    }
    assert moved == set(NAMES[2:])
    assert tuner.as_plain()["epsilon"] is None


def test_nobody_is_told_by_weights_that_it_has_taught():
    given = lessons(60)
    for person in range(2, 60, 9):
        positive = given.positive.copy()
        positive[person] ^= True
        other = Lessons(given.risk, given.numbers, positive)
        told = []
        for one in (given, other):
            tuner = tuner_of(steps=3)
            tuner.begin()
            told.append(tuner.tune(SHIPPED, one, RIGHT).told)
        assert told[0][person] == told[1][person]
        assert (told[0] != told[1]).any()


@pytest.mark.parametrize("noise", ["sums", "local"])
def test_the_noise_is_that_of_the_receipt(noise):
    people = 200
    wish = {"steps": 1, "noise": noise, "learning_rate": 1.0, "layers": 3}
    moved = []
    for seed in range(5):
        tuner = tuner_of(seed, epsilon=4.0, **wish)
        tuner.begin()
        given = nobody_to_learn_from(people)
        found = tuner.tune(SHIPPED, given, RIGHT).correction.arrays
        moved += [(found[name] - SHIPPED.arrays[name]).ravel() for name in NAMES]
    drawn = np.concatenate(moved)
    receipt = tuner.ledger.releases[-1]
    seen = "sums" if noise == "sums" else "each-upload"
    assert receipt.terms.adversary == seen
    # Each half of the people has a mean with the noise of one, or of each of them.
    noises = 1 if noise == "sums" else people / 2
    expected = receipt.sigma * math.sqrt(noises) / (people / 2) / math.sqrt(2)
    assert drawn.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * len(drawn)))
    assert abs(drawn.mean()) < 4 * expected / math.sqrt(len(drawn))


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("noise", ["sums", "local"])
def test_the_ledger_ends_at_the_epsilon_that_was_promised(steps, noise):
    tuner = tuner_of(steps=steps, epsilon=3.0, delta=1e-5, noise=noise)
    for _ in range(2):
        tuner.begin()
        tuner.tune(SHIPPED, lessons(), RIGHT)
    spent = tuner.ledger.spent().channels[TUNING]
    told = tuner.as_plain()
    mu = math.sqrt(2 * steps) * told["clip"] / told["sigma"]
    for unit in ("visit", "day", "person"):
        assert spent[unit].epsilon == pytest.approx(epsilon_of(mu, 1e-5))
    assert told["epsilon"] == pytest.approx(3.0)
    with pytest.raises(BudgetExceededError, match="nothing was released"):
        tuner.begin()


def test_steps_and_groups_have_noise_of_their_own():
    given = nobody_to_learn_from()
    tuner = tuner_of(steps=1, learning_rate=1.0, sigma=1.0)
    found = []
    for _ in range(2):
        tuner.begin()
        found += [tuner.tune(SHIPPED, given, RIGHT).correction for _ in range(2)]
    assert len({one.arrays["bias2"].tobytes() for one in found}) == 4


@pytest.mark.parametrize("steps", [1, 2])
def test_nothing_is_looked_at_before_its_receipt_is_there(steps):
    with pytest.raises(SettingsError, match="begin"):
        tuner_of(steps=steps).tune(SHIPPED, lessons(), RIGHT)


def test_what_cannot_be_tuned_is_refused():
    tuning = TuningSettings(steps=1)
    with pytest.raises(SettingsError, match="held-out"):
        FieldWishes(tuning=tuning, privacy=FieldPrivacySettings(mode="sums"))
    with pytest.raises(SettingsError, match="correction"):
        FieldWishes(tuning=tuning, field=FieldSettings(correction="none"))
    with pytest.raises(SettingsError, match="folds"):
        FieldWishes(tuning=tuning, field=FieldSettings(folds=2))
    task = FieldTask(wishes=FieldWishes(tuning=tuning))
    with pytest.raises(SettingsError, match="over sites"):
        FieldOrder(settings=task, rules=SiteRules(), seed=1)
    for wrong in ({"layers": 4}, {"layers": 0}, {"sigma": -1.0}, {"delta": 1.0}):
        with pytest.raises(SettingsError):
            TuningSettings(**wrong)
