from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.attacks import label_inference
from epifalcon.attacks.label_inference import (
    LabelScores,
    evaluate,
    expected_direction,
    fit_mixture,
    from_statuses,
    read_head_gradients,
)
from epifalcon.attacks.upload_recorder import UploadStatisticsView
from epifalcon.errors import DataError
from epifalcon.federation.engine import VectorisedEngine, train
from tests.attacks.curious import StatusPeople, recorded, recorded_statuses, terms_of
from tests.federation.small_world import city, plan_of, settings_of


@pytest.fixture(scope="module")
def trained():
    """A run with little noise and small steps, and who was tested with which result."""
    settings = settings_of(rounds=60, learning_rate=0.005, dropout=0.0)
    whole = city(30, 1)
    privacy = {"mode": "paper", "upload_sigma": 0.002, "gradient_sigma": 0.002}
    plan = plan_of(settings, 1, **privacy)
    view = UploadStatisticsView.of(whole, settings, plan, np.arange(30))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=view))
    return view.statistics(), whole.status


def test_gradients_tell_everybodys_result_where_noise_is_small(trained):
    statistics, status = trained
    found = label_inference.from_gradients(statistics)
    result = evaluate(found, status)
    assert result.positive.estimate == 1
    assert result.tested.estimate == 1
    assert (found.positive[status == 1] > 0).all()
    assert (found.positive[status == 0] < 0).all()


def test_rows_drift_towards_the_result(trained):
    statistics, status = trained
    result = evaluate(label_inference.from_rows(statistics), status)
    assert result.positive.estimate > 0.8
    assert result.tested.estimate > 0.8


def made_notes(people, rng, sigma):
    """Sums of 100 rounds of (p - y) [h || 1], h of one sign, and noise."""
    statistics = recorded(terms_of(rounds=1), people)[0].statistics()
    status = rng.choice([-1, 0, 1], people, p=[0.5, 0.3, 0.2])
    slope = np.choose(status + 1, [np.zeros(people), 0.02, -0.05])
    hidden = 1 + 0.3 * rng.random((people, 5))
    along = 100 * slope[:, None] * np.concatenate([hidden, np.ones((people, 1))], 1)
    noise = 10 * sigma * rng.standard_normal((2, people, 6))
    both = np.stack([-along, along], axis=1) + noise.swapaxes(0, 1)
    gradients = {"head.weight": both[:, :, :5], "head.bias": both[:, :, 5]}
    return replace(statistics, gradients=gradients), status


def test_energy_tells_tests_whose_gradients_cancel():
    """Rounds up and rounds down, as with a result that the model comes to know."""
    rng = np.random.default_rng(0)
    statistics = recorded(terms_of(rounds=1, gradient_sigma=0.01), 300)[0].statistics()
    status = rng.choice([-1, 0, 1], 300, p=[0.5, 0.3, 0.2])
    count, noise = 60 * statistics.terms.parameters, 0.01**2
    energy = noise * rng.chisquare(count, 300) + (status >= 0) * 60 * 0.006**2
    sums = {"head.weight": (300, 2, 5), "head.bias": (300, 2)}
    changed = replace(
        statistics,
        rounds=60,
        gradient_energy=energy,
        gradients={
            name: 0.01 * np.sqrt(60) * rng.standard_normal(shape)
            for name, shape in sums.items()
        },
    )
    result = evaluate(label_inference.from_gradients(changed), status)
    exact = evaluate(LabelScores("energy", energy, energy), status)
    assert exact.tested.estimate > 0.8
    assert result.tested.estimate > exact.tested.estimate - 0.08
    alike = replace(changed, gradient_energy=noise * rng.chisquare(count, 300))
    chance = evaluate(label_inference.from_gradients(alike), status)
    assert abs(chance.tested.estimate - 0.5) < 0.1


def test_gradients_add_to_other_evidence_what_they_know():
    """Much, little, and hardly anything."""
    rng = np.random.default_rng(2)
    gained = []
    for sigma in (0.5, 3.0, 100.0):
        statistics, status = made_notes(600, rng, sigma)
        terms = replace(statistics.terms, gradient_sigma=sigma)
        changed = replace(statistics, terms=terms, rounds=100)
        found = label_inference.from_gradients(changed)
        rows = np.zeros((600, 3))
        rows[np.arange(600), np.take([2, 0, 1], status + 1)] = 1.0
        alone = LabelScores.of("rows", rows + rng.standard_normal(rows.shape))
        both = evaluate(label_inference.both(alone, found), status)
        before = evaluate(alone, status).positive.estimate
        gained.append(both.positive.estimate - before)
    assert gained[0] > 0.1
    assert min(gained[1:]) > -0.005


def test_people_held_back_for_validation_are_judged_apart():
    status = np.array([1, 1, 0, 0, -1, -1, 1, 0], np.int8)
    held_back = np.array([False] * 6 + [True] * 2)
    # Their devices send what those of untested people do.
    sent = np.where(held_back, -1, status)
    changed = LabelScores("attack", sent.astype(float), (sent >= 0).astype(float))
    mixed = evaluate(changed, status)
    apart = evaluate(changed, status, held_back)
    assert (mixed.tested.estimate, mixed.held_back) == (pytest.approx(5 / 6), 0)
    assert mixed.positive.estimate < 1
    assert (apart.tested.estimate, apart.positive.estimate) == (1, 1)
    assert apart.held_back == 2


def test_the_direction_is_that_of_the_linear_model():
    statistics = recorded(terms_of(rounds=1, width=3), 1)[0].statistics()
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
    found = label_inference.logit_direction(replace(statistics, parameters=single))

    def logit(row):
        for layer in (0, 1):
            row = parameters[f"layer{layer}.weight"][:, :3] @ row
        return np.diff(parameters["head.weight"] @ row)[0]

    slope = np.array([logit(one) for one in np.eye(3)])
    assert np.allclose(found, slope / np.linalg.norm(slope), atol=1e-6)


def test_rows_of_few_rounds_show_no_drift():
    statistics = recorded(terms_of(rounds=2), 2)[0].statistics()
    with pytest.raises(DataError, match="at least 3"):
        label_inference.from_rows(statistics)


def test_a_perfect_ranking_of_few_people_proves_little():
    status = np.array([1, 1, 0, 0, 0, -1], np.int8)
    changed = LabelScores("attack", status.astype(float), (status >= 0).astype(float))
    found = evaluate(changed, status)
    assert (found.positive.estimate, found.positive.high) == (1.0, 1.0)
    # As wide as two right calls in two allow.
    assert found.positive.low == pytest.approx(0.025 ** (1 / 2))
    assert found.tested.low == pytest.approx(0.025)


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


def last_layer(statistics):
    return [statistics.parameters[f"layer1.{part}"] for part in ("weight", "bias")]


def attacked(rng, people, signal, **terms):
    """Notes whose gradients are (p - y) [h || 1], clipped, of what people receive."""
    plain = {"width": WIDTH, "rounds": 1, "gradient_sigma": 0.4, "upload_sigma": 0.3}
    statistics = recorded(terms_of(**{**plain, **terms}), people)[0].statistics()
    changed = replace(
        statistics,
        parameters=parameters(rng),
        counts=np.full(len(statistics.key), 2.0),
        claimed=np.full(len(statistics.key), 6),
        rounds=ROUNDS,
    )
    spread = label_inference._received_spread(changed)
    weight, bias = last_layer(changed)
    status = rng.choice([-1, 0, 1], people)
    slope = np.choose(status + 1, [0.0, 1.0, -1.0]) * signal
    sums = np.zeros((people, 2, WIDTH + 1))
    for _ in range(ROUNDS):
        received = rng.normal(0, spread, (people, WIDTH))
        hidden = np.maximum(received @ weight.T + bias, 0.0)
        whole = np.column_stack([hidden, np.ones(people)])
        size = np.linalg.norm(whole, axis=1, keepdims=True) * np.sqrt(2)
        one = 0.1 * slope[:, None] * whole / size
        sums += np.stack([-one, one], axis=1)
    sums += 0.4 * np.sqrt(ROUNDS) * rng.standard_normal(sums.shape)
    gradients = {"head.weight": sums[..., :WIDTH], "head.bias": sums[..., WIDTH]}
    return replace(changed, gradients=gradients), status


def auc(found, status):
    one, other = found.along[status == 0], found.along[status == 1]
    return (one[:, None] > other).mean()


def test_the_direction_is_the_mean_of_what_opens():
    rng = np.random.default_rng(0)
    statistics, _ = attacked(rng, 2, 0.0)
    spread = label_inference._received_spread(statistics)
    # Uploads of norm 1 over 24 coordinates; noise of 6 claimants over 2 people.
    noise = (10 * 0.3) ** 2 * 6 / 2**2 / statistics.terms.windows
    assert spread == pytest.approx(np.sqrt(1 / WIDTH + noise))
    weight, bias = last_layer(statistics)
    read_ = rng.normal(0, spread, (40_000, WIDTH))
    mean = np.append(np.maximum(read_ @ weight.T + bias, 0).mean(axis=0), 1.0)
    assert expected_direction(statistics) @ mean / np.linalg.norm(mean) > 0.999


def test_it_tells_results_that_noise_hides_from_the_people_together():
    """Where nothing stands out, the parameters still say where to look."""
    rng = np.random.default_rng(1)
    by_data, by_parameters = [], []
    for _ in range(4):
        statistics, status = attacked(rng, 150, 1.0)
        found = read_head_gradients(statistics)
        assert not found.stands_out
        by_parameters.append(auc(found, status))
        alone = read_head_gradients(replace(statistics, parameters={}))
        by_data.append(auc(alone, status))
        centre = found.along[status == 0].mean()
        assert 0.5 * found.usual < centre < found.most
    assert np.mean(by_parameters) > 0.8
    assert np.mean(by_parameters) > np.mean(by_data) + 0.05


def test_where_people_have_more_in_common_than_noise_they_tell_it_themselves():
    statistics, status = attacked(np.random.default_rng(2), 200, 8.0)
    found = read_head_gradients(statistics)
    assert found.stands_out
    assert auc(found, status) > 0.99
    other = np.random.default_rng(3).standard_normal((WIDTH, WIDTH))
    odd = {**statistics.parameters, "layer1.weight": other.astype(np.float32)}
    again = read_head_gradients(replace(statistics, parameters=odd))
    assert np.array_equal(again.along, found.along)


def test_noise_alone_rarely_stands_out_and_tells_nothing():
    rng = np.random.default_rng(4)
    seen, aucs = 0, []
    for _ in range(60):
        statistics, status = attacked(rng, 60, 0.0)
        found = read_head_gradients(statistics)
        seen += found.stands_out
        aucs.append(auc(found, status))
    assert seen <= 4
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / np.sqrt(60)
    assert found.along.std() == pytest.approx(1, abs=0.35)


def people(rng, count=3000, centres=(0.0, 3.0, -4.0), share=(0.5, 0.3, 0.2)):
    kind = rng.choice(3, count, p=share)
    return np.take(centres, kind) + rng.standard_normal(count), kind


def test_posteriors_are_honest_where_kinds_overlap():
    values, kind = people(np.random.default_rng(1), 20_000, (0.0, 1.5, -2.0))
    found = fit_mixture(values, 3.0, (1.0, -1.0)) + np.log([0.5, 0.3, 0.2])
    chance = np.exp(found - np.logaddexp.reduce(found, axis=1)[:, None])
    for low in (0.1, 0.3, 0.5, 0.7):
        some = (chance[:, 1] >= low) & (chance[:, 1] < low + 0.2)
        right = (kind[some] == 1).mean()
        assert right == pytest.approx(chance[some, 1].mean(), abs=0.08)


NOISY = {"windows": 8, "rounds": 30, "width": 16, "upload_sigma": 0.8}


def truth_of(who):
    """As ``evaluate`` takes it: 1, 0, or -1 for unknown."""
    return np.take([0, 1, -1], who.status).astype(np.int8)


def blind(statistics):
    return np.full(len(statistics.key), 1 / statistics.terms.regions)


@pytest.fixture(scope="module")
def noisy():
    """A thousand people of whom a round tells hardly anything."""
    view, who = recorded_statuses(terms_of(**NOISY, mask_share=0.5), 1000)
    return view.statistics(), who


def expected(statistics, certain):
    """AUC of the result from Gaussian sums: distance over spread."""
    gram, mask = statistics.gram, statistics.terms.mask_share
    apart = (1 - mask) * (gram[0, 1] - gram[0, 0])
    around = statistics.terms.upload_sigma**2 / certain * gram[0]
    around = around + (gram[1] + gram[2]) / 2
    distance = np.sqrt(apart @ np.linalg.solve(around, apart))
    return stats.norm.cdf(distance / np.sqrt(2))


def test_with_the_true_places_it_is_as_good_as_theory_allows(noisy):
    statistics, who = noisy
    scores = from_statuses(statistics, who.true.ravel().astype(float))
    found = evaluate(scores, truth_of(who))
    wanted = expected(statistics, statistics.terms.windows)
    assert 0.7 < wanted < 0.95
    assert found.positive.estimate == pytest.approx(wanted, abs=0.04)


def test_the_likelihood_is_that_of_gaussian_sums(noisy):
    """Of the products with the three rows, weighed by the chances of the claims."""
    statistics, _ = noisy
    rng = np.random.default_rng(0)
    likely = rng.random(len(statistics.key))
    # As much by being hidden as by noise.
    hidden = 2e4 * statistics.gram[1:]
    changed = replace(statistics, gram=np.concatenate([statistics.gram[:1], hidden]))
    found = from_statuses(changed, likely).likely
    noise = statistics.terms.upload_sigma**2 * statistics.gram[0]
    for person in range(5):
        mine = statistics.person == person
        certain = (likely[mine] ** 2).sum()
        summed = statistics.matched[:, mine] @ likely[mine]
        wanted = []
        for status, spread in enumerate((*hidden, np.zeros((3, 3)))):
            mean = certain * (statistics.gram[0, status] + statistics.gram[0, 2]) / 2
            around = certain * noise + certain**2 * spread
            wanted.append(stats.multivariate_normal(mean, around).logpdf(summed))
        wanted = np.array(wanted)
        assert np.allclose(found[person] - found[person, 2], wanted - wanted[2])


class Alike(StatusPeople):
    """Whose columns are all the same."""

    def broadcast(self, number):
        message = super().broadcast(number)
        weight = message.parameters["input.weight"]
        weight[:, :2] = weight[:, 2:]
        self.column[:2] = self.column[2]
        return message


@pytest.mark.parametrize(("kind", "mask"), [(Alike, 0.5), (StatusPeople, 1.0)])
@pytest.mark.parametrize("sigma", [0.8, 0.05])
def test_where_nothing_can_be_known_it_is_chance(kind, mask, sigma):
    """Statuses that all look alike, and statuses that are never shown."""
    terms = terms_of(**{**NOISY, "upload_sigma": sigma, "rounds": 10}, mask_share=mask)
    view, who = recorded(terms, 300, kind=kind)
    statistics = view.statistics()
    for likely in (None, blind(statistics), who.true.ravel().astype(float)):
        result = evaluate(from_statuses(statistics, likely), truth_of(who))
        for interval in (result.positive, result.tested):
            assert interval.low - 0.02 <= 0.5 <= interval.high + 0.02


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_on_falcon_with_a_status_input(mode):
    """Without noise, or with little, everybody's status is read off the rows."""
    settings = settings_of(input="status", rounds=25, width=16)
    copies = 0 if mode == "off" else 1
    whole = city(60, copies)
    noise = {
        "off": {},
        "paper": {"upload_sigma": 0.05, "gradient_sigma": 0.05},
        "local": {"epsilon": 2000.0},
    }[mode]
    plan = plan_of(settings, copies, mode=mode, **noise)
    view = UploadStatisticsView.of(whole, settings, plan, np.arange(60))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=view))
    statistics = view.statistics()
    # Who was never seen sends nothing.
    seen = np.bincount(statistics.person, minlength=60) > 0
    rows = from_statuses(statistics)
    result = evaluate(rows, whole.status, ~seen)
    assert result.positive.estimate > 0.97
    assert result.tested.estimate > 0.97
    both = label_inference.both(rows, label_inference.from_gradients(statistics))
    together = evaluate(both, whole.status, ~seen)
    assert together.positive.estimate >= result.positive.estimate - 0.02
