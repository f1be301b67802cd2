from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks import diagnosis
from epifalcon.evaluation.attacks.diagnosis import Diagnosis, judge
from epifalcon.federation.engine import train
from epifalcon.federation.note_taking import NoteTaker
from epifalcon.federation.notes import PublicTerms
from epifalcon.federation.vectorised import VectorisedEngine
from tests.federation.curious import taken, terms_of
from tests.federation.small_world import city, plan_of, settings_of


@pytest.fixture(scope="module")
def trained():
    """A run with little noise and small steps, and who was tested with which result."""
    settings = settings_of(rounds=60, learning_rate=0.005, dropout=0.0)
    whole = city(30, 1)
    wish = {"mode": "paper", "upload_sigma": 0.002, "gradient_sigma": 0.002}
    plan = plan_of(settings, 1, **wish)
    taker = NoteTaker(np.arange(30), PublicTerms.of(whole, settings, plan))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=taker))
    return taker.notes(), whole.status


def test_gradients_tell_everybodys_result_where_noise_is_small(trained):
    notes, status = trained
    found = diagnosis.from_gradients(notes)
    judged = judge(found, status)
    assert judged.positive.estimate == 1
    assert judged.tested.estimate == 1
    assert (found.positive[status == 1] > 0).all()
    assert (found.positive[status == 0] < 0).all()


def test_rows_drift_towards_the_result(trained):
    notes, status = trained
    judged = judge(diagnosis.from_rows(notes), status)
    assert judged.positive.estimate > 0.8
    assert judged.tested.estimate > 0.8


def test_noise_alone_tells_nothing(trained):
    notes, status = trained
    rng = np.random.default_rng(0)
    drowned = replace(
        notes,
        gradients={
            name: one + 1e3 * rng.standard_normal(one.shape)
            for name, one in notes.gradients.items()
        },
        rows=notes.rows + 1e3 * rng.standard_normal(notes.rows.shape).astype("f4"),
    )
    for attack in (diagnosis.from_gradients, diagnosis.from_rows):
        judged = judge(attack(drowned), status)
        for interval in (judged.positive, judged.tested):
            assert 0.2 < interval.estimate < 0.8


def made_notes(people, rng, sigma):
    """Sums of 100 rounds of (p - y) [h || 1], h of one sign, and noise."""
    notes = taken(terms_of(rounds=1), people)[0].notes()
    status = rng.choice([-1, 0, 1], people, p=[0.5, 0.3, 0.2])
    slope = np.choose(status + 1, [np.zeros(people), 0.02, -0.05])
    hidden = 1 + 0.3 * rng.random((people, 5))
    along = 100 * slope[:, None] * np.concatenate([hidden, np.ones((people, 1))], 1)
    noise = 10 * sigma * rng.standard_normal((2, people, 6))
    both = np.stack([-along, along], axis=1) + noise.swapaxes(0, 1)
    gradients = {"head.weight": both[:, :, :5], "head.bias": both[:, :, 5]}
    return replace(notes, gradients=gradients), status


def test_all_of_the_heads_gradient_tells_more_than_its_bias():
    rng = np.random.default_rng(1)
    gained = []
    for _ in range(5):
        notes, status = made_notes(300, rng, 1.0)
        bias = notes.gradients["head.bias"]
        alone = bias[:, 0] - bias[:, 1]
        whole = judge(diagnosis.from_gradients(notes), status)
        part = judge(Diagnosis("bias", alone, np.abs(alone)), status)
        gained.append(whole.positive.estimate - part.positive.estimate)
        assert whole.positive.estimate > 0.8
    assert np.mean(gained) > 0.03


def test_energy_tells_tests_whose_gradients_cancel():
    """Rounds up and rounds down, as with a result that the model comes to know."""
    rng = np.random.default_rng(0)
    notes = taken(terms_of(rounds=1, gradient_sigma=0.01), 300)[0].notes()
    status = rng.choice([-1, 0, 1], 300, p=[0.5, 0.3, 0.2])
    count, noise = 60 * notes.terms.parameters, 0.01**2
    energy = noise * rng.chisquare(count, 300) + (status >= 0) * 60 * 0.006**2
    sums = {"head.weight": (300, 2, 5), "head.bias": (300, 2)}
    told = replace(
        notes,
        rounds=60,
        gradient_energy=energy,
        gradients={
            name: 0.01 * np.sqrt(60) * rng.standard_normal(shape)
            for name, shape in sums.items()
        },
    )
    judged = judge(diagnosis.from_gradients(told), status)
    exact = judge(Diagnosis("energy", energy, energy), status)
    assert exact.tested.estimate > 0.8
    assert judged.tested.estimate > exact.tested.estimate - 0.08
    alike = replace(told, gradient_energy=noise * rng.chisquare(count, 300))
    assert abs(judge(diagnosis.from_gradients(alike), status).tested.estimate - 0.5) < (
        0.1
    )


def test_gradients_add_to_other_evidence_what_they_know():
    """Much, little, and hardly anything."""
    rng = np.random.default_rng(2)
    gained = []
    for sigma in (0.5, 3.0, 100.0):
        notes, status = made_notes(600, rng, sigma)
        terms = replace(notes.terms, gradient_sigma=sigma)
        found = diagnosis.from_gradients(replace(notes, terms=terms, rounds=100))
        rows = np.zeros((600, 3))
        rows[np.arange(600), np.take([2, 0, 1], status + 1)] = 1.0
        alone = Diagnosis.of("rows", rows + rng.standard_normal(rows.shape))
        both = judge(diagnosis.both(alone, found), status)
        gained.append(both.positive.estimate - judge(alone, status).positive.estimate)
        assert both.name == "rows and gradients"
    assert gained[0] > 0.1
    assert min(gained[1:]) > -0.005


def test_people_held_back_for_validation_are_judged_apart():
    status = np.array([1, 1, 0, 0, -1, -1, 1, 0], np.int8)
    held_back = np.array([False] * 6 + [True] * 2)
    # Their devices send what those of untested people do.
    sent = np.where(held_back, -1, status)
    told = Diagnosis("told", sent.astype(float), (sent >= 0).astype(float))
    mixed = judge(told, status)
    apart = judge(told, status, held_back)
    assert (mixed.tested.estimate, mixed.held_back) == (pytest.approx(5 / 6), 0)
    assert mixed.positive.estimate < 1
    assert (apart.tested.estimate, apart.positive.estimate) == (1, 1)
    assert apart.held_back == 2


def test_attacks_without_likelihoods_cannot_be_added():
    told = Diagnosis("told", np.zeros(2), np.zeros(2))
    with pytest.raises(DataError, match="no likelihoods"):
        diagnosis.both(told, Diagnosis.of("rows", np.zeros((2, 3))))


def test_the_direction_is_that_of_the_linear_model():
    notes = taken(terms_of(rounds=1, width=3), 1)[0].notes()
    rng = np.random.default_rng(0)
    parameters = {
        "layer0.weight": rng.standard_normal((3, 5)),
        "layer0.bias": np.zeros(3),
        "layer1.weight": rng.standard_normal((3, 5)),
        "layer1.bias": np.zeros(3),
        "head.weight": rng.standard_normal((2, 3)),
        "head.bias": np.zeros(2),
    }
    single = {name: one.astype(np.float32) for name, one in parameters.items()}
    found = diagnosis.logit_direction(replace(notes, parameters=single))

    def logit(row):
        for layer in (0, 1):
            row = parameters[f"layer{layer}.weight"][:, :3] @ row
        return np.diff(parameters["head.weight"] @ row)[0]

    slope = np.array([logit(one) for one in np.eye(3)])
    assert np.allclose(found, slope / np.linalg.norm(slope), atol=1e-6)


def test_a_sample_of_one_kind_has_no_figure(trained):
    notes, status = trained
    found = judge(diagnosis.from_gradients(notes), np.zeros_like(status))
    assert (found.positive.estimate, found.tested.estimate) == (None, None)
    found = judge(diagnosis.from_gradients(notes), np.full_like(status, -1))
    assert (found.positive.estimate, found.tested.estimate) == (None, None)


def test_what_was_not_kept_cannot_be_used():
    notes = taken(terms_of(rounds=2), 2)[0].notes()
    with pytest.raises(DataError, match="no gradients"):
        diagnosis.from_gradients(notes)
    with pytest.raises(DataError, match="too few"):
        diagnosis.from_rows(notes)
    with pytest.raises(DataError, match="no parameters"):
        diagnosis.logit_direction(notes)
    other = taken(terms_of(rounds=3, channels=("upload/1",)), 2)[0].notes()
    with pytest.raises(DataError, match="upload/0"):
        diagnosis.from_rows(other)


def test_a_perfect_ranking_of_few_people_proves_little():
    status = np.array([1, 1, 0, 0, 0, -1], np.int8)
    told = Diagnosis("told", status.astype(float), (status >= 0).astype(float))
    found = judge(told, status)
    assert (found.positive.estimate, found.positive.high) == (1.0, 1.0)
    # As wide as two right calls in two allow.
    assert found.positive.low == pytest.approx(0.025 ** (1 / 2))
    assert found.tested.low == pytest.approx(0.025)
