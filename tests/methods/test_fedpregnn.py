"""FedPreGNN: gradients, protection and accounting, each by another route."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import integrate, stats
from torch.nn import functional

from epifalcon.errors import DataError
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.methods import fedpregnn
from epifalcon.methods.fedpregnn import (
    AnonymousNeighbours,
    Federation,
    FedPreGnn,
    FedPreGnnSettings,
    LocalGraphs,
    PseudoItems,
    TokenHelper,
    Upload,
    UploadNoise,
    WeightLayout,
    clip,
    cover_of,
    cross_calibrated,
    gradients,
    log_odds,
    privacy_spent,
    pseudo_rows,
    release,
    visits_of,
)
from tests.faults import Killed, stop_at
from tests.methods import tiny
from tests.oracles.cities import cities
from tests.studies import town

CASES = settings(deadline=None, derandomize=True, max_examples=25)
QUICK = FedPreGnnSettings(
    width=4,
    rounds=6,
    check_every=2,
    expand_every=2,
    clients_per_round=12,
    pseudo_items=5,
    partners=4,
)
EXACT = replace(QUICK, private=False)
MODES = {
    "exposure": QUICK,
    "embedding": replace(QUICK, input="embedding", own_rate=0.5),
    "not private": EXACT,
    "no partners": replace(QUICK, partners=0),
}


def fitted(settings=QUICK, **scene):
    return tiny.fitted(FedPreGnn, settings, **scene)


def federation(settings=QUICK):
    known = town.known()
    people = np.flatnonzero(known.tested)[:6].astype(np.int32)
    results, seeds = known.status[people] == 1, RunSeeds(3)
    made = Federation(town.traces(), known, settings, seeds, people, results)
    made.restart(0, 1.0)
    return made


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("number", [1, 9])
def test_a_fit_that_was_stopped_ends_in_the_same_bits(name, number, tmp_path):
    stopped = {"checkpoint_seconds": 0.0, "progress": stop_at(number)}
    with pytest.raises(Killed):
        fitted(MODES[name], folder=tmp_path, **stopped)
    again, whole = (fitted(MODES[name], folder=one).scores for one in (tmp_path, None))
    assert (again.risk == whole.risk).all()
    # A resume forgets no upload that was made.
    assert (again.diagnostics, again.steps) == (whole.diagnostics, whole.steps)


@pytest.mark.parametrize(
    "kind", [EXACT, replace(QUICK, noise=UploadNoise(clip=9, scale=1e-6))]
)
def test_a_round_is_a_step_down_the_mean_loss(kind):
    """And with next to no noise and a wide clip, privacy changes next to nothing."""
    kind = replace(kind, pseudo_items=0, weight_decay=0.01, clients_per_round=99)
    made = federation(kind)
    before = {name: one.clone() for name, one in made.parameters().items()}
    made.step(0)
    who = torch.from_numpy(made.clients)
    graphs = made._graphs(made.clients)
    shared = {name: before[name].requires_grad_() for name in ("model", "items", "own")}
    weights = made.layout.views(shared["model"].expand(len(who), -1))
    odds = log_odds(weights, shared["items"][graphs.item], before["own"][who], graphs)
    share = np.mean(town.known().status[made.clients] == 1)
    loss = functional.binary_cross_entropy_with_logits(
        odds + float(np.log(share / (1 - share))), made._infected[who]
    )
    loss.backward()
    own = shared.pop("own")
    # The loss is a mean over devices, each of which descends on its own loss.
    wanted = own.detach() - kind.own_rate * len(who) * own.grad
    assert torch.allclose(made.parameters()["own"], wanted, atol=1e-6)
    assert own.grad.any()
    for name, one in shared.items():
        wanted = one.detach() * (1 - 0.01) - one.grad
        assert torch.allclose(made.parameters()[name], wanted, atol=1e-5)


def test_uploads_are_counted_over_all_learning_rates():
    found = fitted(replace(QUICK, patience=99))
    clients = int(town.known().tested.sum()) - len(found.scores.masked)
    # Each client has its turn once in a pass.
    uploads = 2 * -(-6 // -(-clients // 12))
    result = found.scores.diagnostics
    assert result["uploads"] == uploads
    assert found.scores.steps == 2 * 6
    spent = privacy_spent(QUICK.noise, result["numbers_per_upload"], uploads)
    assert spent.items() <= result.items()
    assert result["epsilon_claimed"] == 1.0
    assert result["epsilon_total_naive"] > 100
    assert len(result["unprotected"]) == 5
    assert any("share of positive" in one for one in result["unprotected"])
    assert fitted(EXACT).scores.diagnostics["epsilon_total"] == np.inf


def test_nobody_receives_its_own_result():
    """Flip one result: nothing that its own device receives of others changes."""
    known, made = town.known(), federation(replace(EXACT, partners=100))
    own, person = torch.zeros(80, 4), int(known.person[0])
    received = []
    for tests in (known, town.flipped(known, [person])):
        made._receive(made._embeddings(own, tests), "flip")
        received.append(made._graphs(np.array([person])).partner)
    assert torch.equal(*received)
    sent = made._embeddings(own, known)
    assert (sent[known.status == 1] == [1, 0]).all()
    assert (sent[known.status == 0] == [0, 1]).all()
    assert (sent[known.status == -1] == 0).all()


def test_a_persons_own_result_never_calibrates_its_risk():
    rng = np.random.default_rng(1)
    odds, infected = rng.normal(size=30), np.arange(30) % 3 == 0
    before = cross_calibrated(odds, infected)
    # The first and the third of a kind are in one half: neither scales the other.
    one, two = np.flatnonzero(infected)[[0, 2]]
    odds[one] += 5
    after = cross_calibrated(odds, infected)
    assert after[two] == before[two]
    assert after[one] > before[one]


def test_a_training_that_diverges_is_an_error():
    wild = replace(EXACT, learning_rates=(1e30,), weight_decay=0.0)
    with pytest.raises(DataError, match="smaller learning_rates"):
        fitted(wild)


class World:
    """A city's devices with random weights and partners, in double precision."""

    def __init__(self, city, most=3, sent_width=3, width=4):
        rng = np.random.default_rng(0)
        self.visits = visits_of(city)
        self.partners = [
            rng.normal(size=(rng.integers(most + 1), sent_width))
            for _ in range(self.visits.nnz)
        ]
        self.layout = WeightLayout(width, sent_width)
        generator = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.model = draw(self.layout.size)
        self.items = draw(self.visits.shape[1], width)
        self.own = draw(city.people, width)
        self.infected = (draw(city.people) > 0).double()

    def places(self, person):
        return range(*self.visits.indptr[person : person + 2])

    def graphs(self, people):
        parts = [self.partners[at] for person in people for at in self.places(person)]
        ends = np.cumsum([0, *(len(part) for part in parts)])
        answers = AnonymousNeighbours(ends, np.concatenate([np.zeros((0, 3)), *parts]))
        return LocalGraphs.of(self.visits[people], answers)

    def odds(self, model, rows, own, person):
        """The log odds of one person as the formulas say, place by place."""
        weights = {name: one[0] for name, one in self.layout.views(model[None]).items()}
        states, scores = [], []
        for item, place in zip(rows, self.places(person), strict=True):
            partners = self.partners[place]
            met = torch.zeros(len(weights["partner_score"]), dtype=torch.float64)
            if len(partners):
                partners = torch.from_numpy(partners)
                score = partners @ weights["partner_score"]
                score = score + weights["item_score"] @ item
                met = functional.leaky_relu(score, 0.2).softmax(0) @ partners
            state = weights["item_weight"] @ item + weights["partner_weight"] @ met
            states.append(torch.tanh(state + weights["state_bias"]))
            score = weights["state_score"] @ states[-1] + weights["own_score"] @ own
            log_slots = float(np.log(self.visits.data[place]))
            scores.append(functional.leaky_relu(score, 0.2) + log_slots)
        graph = torch.zeros_like(own)
        if states:
            graph = torch.stack(scores).softmax(0) @ torch.stack(states)
        hidden = weights["graph_weight"] @ graph + weights["own_weight"] @ own
        hidden = torch.tanh(hidden + weights["hidden_bias"])
        return weights["out"] @ hidden + weights["out_bias"][0]


@CASES
@given(cities())
def test_visits_are_where_people_were(city):
    visits, days = visits_of(city), city.clock.days
    expected = np.zeros((city.people, len(city.regions) * days))
    for person in range(city.people):
        for slot, region in enumerate(city.by_person[person]):
            if region >= 0:
                expected[person, region * days + city.clock.day_of_slot(slot)] += 1
    np.testing.assert_array_equal(visits.toarray(), expected)
    assert visits.has_canonical_format


@CASES
@given(cities(), st.integers(0, 4))
def test_every_gradient_is_that_of_the_device_alone(city, most):
    world = World(city, most=most)
    people = np.random.default_rng(3).permutation(city.people)
    who, graphs = torch.from_numpy(people), world.graphs(people)
    items, own = world.items[graphs.item], world.own[who]
    weights = world.layout.views(world.model.expand(len(people), -1))
    odds = log_odds(weights, items, own, graphs)
    model, infected = world.model, world.infected[who]
    found = gradients(world.layout, model, items, own, graphs, infected, base=-0.7)
    for place, person in enumerate(people):
        mine = world.visits[[person]].indices
        model = world.model.clone().requires_grad_()
        rows = world.items[mine].requires_grad_()
        vector = world.own[person].clone().requires_grad_()
        alone = world.odds(model, rows, vector, person)
        assert float(odds[place]) == pytest.approx(float(alone.detach()))
        infected, inputs = world.infected[person], (model, rows, vector)
        loss = functional.binary_cross_entropy_with_logits(alone - 0.7, infected)
        wanted = torch.autograd.grad(loss, inputs, materialize_grads=True)
        assert torch.allclose(found.model[place], wanted[0], atol=1e-9)
        assert torch.allclose(found.item[place, : len(mine)], wanted[1], atol=1e-9)
        assert (found.item[place, len(mine) :] == 0).all()
        assert torch.allclose(found.own[place], wanted[2], atol=1e-9)


# Protection of uploads and requests


def rng(seed=0):
    return np.random.default_rng(seed)


@CASES
@given(st.sets(st.integers(0, 19)), st.integers(0, 30))
def test_pseudo_items_are_added_to_all_true_items(visited, pseudo):
    mine = np.array(sorted(visited), np.int64)
    cover = cover_of(mine, 20, pseudo, rng())
    assert (np.diff(cover.item) > 0).all()
    assert cover.item[cover.true].tolist() == mine.tolist()
    assert not np.isin(cover.item[~cover.true], mine).any()
    assert (~cover.true).sum() == min(pseudo, 20 - len(mine))


def test_every_pseudo_item_is_as_probable():
    draw, drawn = rng(), np.zeros(10)
    for _ in range(2000):
        cover = cover_of(np.array([1, 4, 7]), 10, 2, draw)
        drawn[cover.item[~cover.true]] += 1
    assert (drawn[[1, 4, 7]] == 0).all()
    assert stats.chisquare(np.delete(drawn, [1, 4, 7])).pvalue > 0.01


numbers = hnp.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**60), 2.0**60, width=32)
)


@CASES
@given(numbers, st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_the_direction(value, bound):
    found = clip(value, bound)
    exact, selected = value.astype(float), found.astype(float)
    before, after = (np.abs(one).max(initial=0.0) for one in (exact, selected))
    assert after <= bound
    if before <= bound:
        assert (found == value).all()
    else:
        assert after == pytest.approx(bound, rel=1e-5)
        assert np.allclose(selected, exact * bound / before, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(wrong):
    with pytest.raises(DataError, match="not finite"):
        clip(np.array([1, wrong], np.float32), 1.0)


def test_pseudo_rows_have_the_mean_and_covariance_of_the_true_ones():
    mix = rng(0).normal(size=(3, 3))
    true = (rng(1).normal(size=(7, 3)) @ mix + [1, 2, 3]).astype(np.float32)
    rows = pseudo_rows(true, 200_000, rng(2))
    assert np.allclose(rows.mean(0), true.mean(0), atol=0.03)
    wanted = np.cov(true.T, bias=True)
    assert np.allclose(np.cov(rows.T), wanted, atol=0.03 * wanted.max())
    assert not pseudo_rows(true[:0], 4, rng()).any()


def test_an_upload_is_the_clipped_gradient_under_laplace_noise():
    true = rng(1).normal(size=(3, 3)).astype(np.float32)
    model = rng(2).normal(size=5).astype(np.float32)
    cover = PseudoItems(np.array([2, 5, 9]), np.ones(3, np.bool_))
    noise, draw = UploadNoise(clip=0.5, scale=0.1), rng(3)
    whole = clip(np.concatenate([model, true.ravel()]), 0.5)
    left = []
    for _ in range(8000):
        upload = release(model, true, cover, noise, draw)
        left.append(np.concatenate([upload.model, upload.row.ravel()]) - whole)
    found = np.array(left, np.float64)
    assert stats.kstest(found.ravel(), stats.laplace(scale=0.1).cdf).pvalue > 0.01
    correlation = np.corrcoef(found.T) - np.eye(len(whole))
    assert np.abs(correlation).max() < 0.06


def test_the_form_of_an_upload_does_not_reveal_true_items():
    assert {one.name for one in fields(Upload)} == {"model", "item", "row"}
    draw, items = rng(5), np.arange(40)
    true, pseudo = [], []
    for _ in range(200):
        gradient = draw.normal(size=(20, 4)).astype(np.float32)
        is_true = draw.permutation(items) < 20
        noise, cover = UploadNoise(clip=0.5), PseudoItems(items, is_true)
        upload = release(np.zeros(3, np.float32), gradient, cover, noise, draw)
        assert (upload.item == items).all()
        assert upload.row.dtype == np.float32
        true.append(upload.row[is_true])
        pseudo.append(upload.row[~is_true])
    for measure in (np.ravel, lambda rows: np.linalg.norm(rows, axis=-1).ravel()):
        result = stats.ks_2samp(measure(np.stack(true)), measure(np.stack(pseudo)))
        assert result.pvalue > 0.01


def renyi(order, distance):
    """Renyi divergence of Laplace noise and its shift, by integration."""
    one, two = stats.laplace(), stats.laplace(loc=distance)

    def density(x):
        return np.exp(order * one.logpdf(x) + (1 - order) * two.logpdf(x))

    parts = [-60, 0, distance, 60]
    total = sum(
        integrate.quad(density, low, high, epsabs=0, epsrel=1e-10)[0]
        for low, high in pairwise(parts)
    )
    return np.log(total) / (order - 1)


@pytest.mark.parametrize("distance", [0.1, 1.0, 2.5])
def test_the_divergence_is_that_of_the_integral(distance):
    found = fedpregnn._laplace_divergence(distance)
    for place in (0, 30, 70, 110):
        order = fedpregnn._ORDERS[place]
        assert found[place] == pytest.approx(renyi(order, distance), rel=1e-6)
    assert (np.diff(found) >= -1e-12).all()
    assert found[-1] == pytest.approx(distance, rel=1e-3)


def exact_delta(epsilon, distances):
    """The delta of Laplace noise moved so far in each number, by sampling."""
    noise = rng(9).laplace(size=(60_000, len(distances)))
    loss = (np.abs(noise - distances) - np.abs(noise)).sum(1)
    return np.maximum(0, -np.expm1(epsilon - loss)).mean()


@pytest.mark.parametrize("uploads", [1, 4])
def test_the_bound_holds_and_is_not_far_off(uploads):
    noise = UploadNoise(clip=0.1, scale=0.4)
    result = privacy_spent(noise, numbers=9, uploads=uploads, delta=0.01)
    moved, epsilon = np.full(9 * uploads, 0.5), result["epsilon_total"]
    assert exact_delta(epsilon, moved) <= 0.01
    assert exact_delta(epsilon / 2, moved) > 0.01 or epsilon < 0.6
    assert moved.sum() == pytest.approx(result["epsilon_total_naive"])


def test_the_claim_is_true_of_one_upload_of_one_number():
    cost = privacy_spent(UploadNoise(), 1, 1)
    assert cost["epsilon_claimed"] == cost["epsilon_round_naive"] == 1.0
    assert cost["epsilon_round"] == pytest.approx(1, rel=1e-5)
    assert privacy_spent(UploadNoise(), 10_000, 0)["epsilon_total"] == 0
    # Many small ones compose like their root, not like their sum.
    many = privacy_spent(UploadNoise(scale=2.0), 1, 400)
    assert many["epsilon_total"] < 0.4 * 400 * 0.1


def test_what_the_published_noise_costs_at_larger_size():
    """The figures of docs/explanation-paper.md."""
    cost = privacy_spent(UploadNoise(), 11_939, 27)
    assert vars(UploadNoise()) == {"clip": 0.1, "scale": 0.2}
    assert (cost["epsilon_claimed"], cost["delta"]) == (1.0, 1e-6)
    assert cost["epsilon_round_naive"] == pytest.approx(11_939)
    assert cost["epsilon_round"] == pytest.approx(4_851, abs=1)
    assert cost["epsilon_total"] == pytest.approx(121_000, rel=0.001)


def names(people):
    """Embeddings that identify their senders, so that answers can be read."""
    return np.arange(people, dtype=np.float32)[:, None] * [1, -1]


@CASES
@given(st.lists(st.sets(st.integers(0, 5)), max_size=9), st.integers(0, 12))
def test_answers_are_others_who_share_the_item(visited, most):
    pairs = [(person, item) for person, items in enumerate(visited) for item in items]
    owner, item = np.array(pairs, np.int64).reshape(-1, 2).T
    helper = TokenHelper(owner, item, most)
    helper.receive(names(len(visited)), rng(1))
    requested = rng().permutation(len(pairs))
    answers = helper.answer(requested)
    for place, request in enumerate(requested):
        rows = answers.embedding[answers.start[place] : answers.start[place + 1]]
        assert (rows[:, 1] == -rows[:, 0]).all()
        others = {other for other, there in pairs if there == item[request]}
        others.remove(owner[request])
        found = rows[:, 0].astype(int).tolist()
        assert len(found) == len(set(found)) == min(most, len(others))
        assert set(found) <= others


def test_every_partner_is_as_probable():
    helper, draw = TokenHelper(np.arange(6), np.ones(6, np.int64), 2), rng(4)
    met = np.zeros((6, 6))
    for _ in range(1500):
        helper.receive(names(6), draw)
        partners = helper.answer(np.arange(6)).embedding[:, 0].astype(int)
        np.add.at(met, (np.repeat(np.arange(6), 2), partners), 1)
    assert (met.diagonal() == 0).all()
    # 2 of 5: 600 expected, standard deviation 19.
    assert abs(met[~np.eye(6, dtype=bool)] - 600).max() < 4 * 19
