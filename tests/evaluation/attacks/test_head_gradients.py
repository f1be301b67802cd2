from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks import head_gradients
from epifalcon.evaluation.attacks.head_gradients import expected_direction, read
from tests.federation.curious import taken, terms_of

WIDTH, ROUNDS = 24, 40


def parameters(rng):
    made = {
        "layer0.weight": rng.standard_normal((WIDTH, WIDTH)),
        "layer0.bias": np.zeros(WIDTH),
        "layer1.weight": rng.gamma(1, 1, (WIDTH, 1)) * rng.normal(size=(WIDTH, WIDTH)),
        "layer1.bias": rng.standard_normal(WIDTH),
        "head.weight": rng.standard_normal((2, WIDTH)),
        "head.bias": np.zeros(2),
    }
    return {name: one.astype(np.float32) for name, one in made.items()}


def attacked(rng, people, signal, **terms):
    """Notes whose gradients are (p - y) [h || 1], clipped, of what people receive."""
    plain = {"width": WIDTH, "rounds": 1, "gradient_sigma": 0.4, "upload_sigma": 0.3}
    notes = taken(terms_of(**{**plain, **terms}), people)[0].notes()
    told = replace(
        notes,
        parameters=parameters(rng),
        counts=np.full(len(notes.key), 2.0),
        claimed=np.full(len(notes.key), 6),
        rounds=ROUNDS,
    )
    spread = head_gradients._received_spread(told)
    weight, bias = told.parameters["layer1.weight"], told.parameters["layer1.bias"]
    status = rng.choice([-1, 0, 1], people)
    slope = np.choose(status + 1, [0.0, 1.0, -1.0]) * signal
    sums = np.zeros((people, 2, WIDTH + 1))
    for _ in range(ROUNDS):
        hidden = np.maximum(
            rng.normal(0, spread, (people, WIDTH)) @ weight.T + bias, 0.0
        )
        whole = np.column_stack([hidden, np.ones(people)])
        size = np.linalg.norm(whole, axis=1, keepdims=True) * np.sqrt(2)
        one = 0.1 * slope[:, None] * whole / size
        sums += np.stack([-one, one], axis=1)
    sums += 0.4 * np.sqrt(ROUNDS) * rng.standard_normal(sums.shape)
    gradients = {"head.weight": sums[..., :WIDTH], "head.bias": sums[..., WIDTH]}
    return replace(told, gradients=gradients), status


def auc(found, status):
    one, other = found.along[status == 0], found.along[status == 1]
    return (one[:, None] > other).mean()


def test_the_direction_is_the_mean_of_what_opens():
    rng = np.random.default_rng(0)
    notes, _ = attacked(rng, 2, 0.0)
    spread = head_gradients._received_spread(notes)
    # Uploads of norm 1 over 24 coordinates; noise of 6 claimants over 2 people.
    noise = (10 * 0.3) ** 2 * 6 / 2**2 / notes.terms.windows
    assert spread == pytest.approx(np.sqrt(1 / WIDTH + noise))
    weight, bias = notes.parameters["layer1.weight"], notes.parameters["layer1.bias"]
    read_ = rng.normal(0, spread, (40_000, WIDTH))
    mean = np.append(np.maximum(read_ @ weight.T + bias, 0).mean(axis=0), 1.0)
    assert expected_direction(notes) @ mean / np.linalg.norm(mean) > 0.999


def test_it_tells_results_that_noise_hides_from_the_people_together():
    """Where nothing stands out, the parameters still say where to look."""
    rng = np.random.default_rng(1)
    by_data, by_parameters = [], []
    for _ in range(4):
        notes, status = attacked(rng, 150, 1.0)
        found = read(notes)
        assert not found.stands_out
        by_parameters.append(auc(found, status))
        by_data.append(auc(read(replace(notes, parameters={})), status))
        centre = found.along[status == 0].mean()
        assert 0.5 * found.usual < centre < found.most
    assert np.mean(by_parameters) > 0.8
    assert np.mean(by_parameters) > np.mean(by_data) + 0.05


def test_where_people_have_more_in_common_than_noise_they_tell_it_themselves():
    notes, status = attacked(np.random.default_rng(2), 200, 8.0)
    found = read(notes)
    assert found.stands_out
    assert auc(found, status) > 0.99
    other = np.random.default_rng(3).standard_normal((WIDTH, WIDTH))
    odd = {**notes.parameters, "layer1.weight": other.astype(np.float32)}
    assert np.array_equal(read(replace(notes, parameters=odd)).along, found.along)


def test_noise_alone_rarely_stands_out_and_tells_nothing():
    rng = np.random.default_rng(4)
    seen, aucs = 0, []
    for _ in range(60):
        notes, status = attacked(rng, 60, 0.0)
        found = read(notes)
        seen += found.stands_out
        aucs.append(auc(found, status))
    assert seen <= 4
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / np.sqrt(60)
    assert found.along.std() == pytest.approx(1, abs=0.35)


def test_the_edge_of_noise_is_passed_as_often_as_it_says():
    rng = np.random.default_rng(5)
    edge = head_gradients._noise_edge((80, 20))
    top = [np.linalg.norm(rng.standard_normal((80, 20)), 2) ** 2 for _ in range(600)]
    above = int(np.sum(np.array(top) > edge))
    assert stats.binomtest(above, 600, 0.01).pvalue > 1e-3


def test_hidden_statuses_are_asked_in_a_share_of_the_rounds():
    notes, _ = attacked(np.random.default_rng(6), 3, 0.0)
    embedded = read(notes)
    terms = replace(notes.terms, mask_share=0.25)
    three = {"status": np.zeros((3, 3)), "gram": np.zeros((3, 3, 3))}
    met = np.zeros((3, len(notes.key)))
    shown = read(replace(notes, terms=terms, met=met, **three))
    assert shown.usual == pytest.approx(embedded.usual / 4)
    assert shown.most == embedded.most == pytest.approx(0.1 * np.sqrt(ROUNDS) / 0.4)


def test_notes_without_gradients_are_refused():
    notes = taken(terms_of(rounds=1), 2)[0].notes()
    with pytest.raises(DataError, match="no gradients"):
        read(notes)
