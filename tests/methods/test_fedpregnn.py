from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from epifalcon.errors import DataError
from epifalcon.methods.fedpregnn import (
    Federation,
    FedPreGnn,
    FedPreGnnSettings,
    Layout,
    LocalGraphs,
    Visits,
    cross_calibrated,
    gradients,
    log_odds,
    server_sum,
    visits_of,
)
from epifalcon.methods.fedpregnn_privacy import (
    Noise,
    Partners,
    Upload,
    privacy_spent,
)
from epifalcon.streams import Streams
from tests.faults import Killed
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
    "by region": replace(QUICK, item="region"),
    "not private": EXACT,
    "no partners": replace(QUICK, partners=0),
}


def fitted(settings=QUICK, **scene):
    return tiny.fitted(FedPreGnn, settings, **scene)


def federation(settings=QUICK):
    known = town.known()
    people = np.flatnonzero(known.tested)[:6].astype(np.int32)
    made = Federation(
        town.traces(), known, settings, Streams(3), people, known.status[people] == 1
    )
    made.restart(0, 1.0)
    return made


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("number", [1, 6, 9])
def test_a_fit_that_was_stopped_ends_in_the_same_bits(name, number, tmp_path):
    def stop(_name, done, _total, _told=""):
        if done == number:
            raise Killed

    with pytest.raises(Killed):
        fitted(MODES[name], folder=tmp_path, checkpoint_seconds=0.0, progress=stop)
    again, whole = (fitted(MODES[name], folder=one).scores for one in (tmp_path, None))
    assert (again.risk == whole.risk).all()
    # A resume forgets no upload that was made.
    assert (again.diagnostics, again.steps) == (whole.diagnostics, whole.steps)


@pytest.mark.parametrize(
    "kind", [EXACT, replace(QUICK, noise=Noise(clip=9, scale=1e-6))]
)
def test_a_round_is_a_step_down_the_mean_loss(kind):
    """And with next to no noise and a wide clip, privacy changes next to nothing."""
    kind = replace(kind, pseudo_items=0, weight_decay=0.01, clients_per_round=99)
    made = federation(kind)
    before = {name: one.clone() for name, one in made.parameters().items()}
    made.step(0)
    who = torch.from_numpy(made.clients)
    graphs = made._graphs(made.clients)
    shared = {name: before[name].requires_grad_() for name in ("model", "items")}
    weights = made.layout.views(shared["model"].expand(len(who), -1))
    odds = log_odds(weights, shared["items"][graphs.item], before["own"][who], graphs)
    share = np.mean(town.known().status[made.clients] == 1)
    loss = functional.binary_cross_entropy_with_logits(
        odds + float(np.log(share / (1 - share))), made._infected[who]
    )
    loss.backward()
    for name, one in shared.items():
        wanted = one.detach() * (1 - 0.01) - one.grad
        assert torch.allclose(made.parameters()[name], wanted, atol=1e-5)


def test_uploads_are_counted_over_all_learning_rates():
    found = fitted(replace(QUICK, patience=99))
    clients = int(town.known().tested.sum()) - len(found.scores.masked)
    # Each client has its turn once in a pass.
    uploads = 2 * -(-6 // -(-clients // 12))
    told = found.scores.diagnostics
    assert told["uploads"] == uploads
    assert found.cost.steps == 2 * 6
    spent = privacy_spent(QUICK.noise, told["numbers_per_upload"], uploads)
    assert spent.items() <= told.items()
    assert told["epsilon_claimed"] == 1.0
    assert told["epsilon_total_naive"] > 100
    assert len(told["unprotected"]) == 4
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


def test_the_server_adds_up_what_devices_send():
    rng = np.random.default_rng(0)
    uploads = [
        Upload(
            rng.random(3, np.float32),
            np.sort(rng.choice(9, 4, replace=False)),
            rng.random((4, 2), np.float32),
        )
        for _ in range(5)
    ]
    total = server_sum(iter(uploads), torch.zeros(9, 2))
    rows = np.zeros((9, 2), np.float32)
    for upload in uploads:
        np.add.at(rows, upload.item, upload.row)
    assert np.allclose(total["items"], rows)
    assert np.allclose(total["model"], sum(upload.model for upload in uploads))


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
        self.visits = Visits.of(city)
        count = rng.integers(0, most + 1, len(self.visits.item))
        self.start = np.append(0, np.cumsum(count))
        self.embedding = rng.normal(size=(self.start[-1], sent_width))
        self.layout = Layout(width, sent_width)
        generator = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.model = draw(self.layout.size)
        self.items = draw(self.visits.items, width)
        self.own = draw(city.people, width)
        self.infected = (draw(city.people) > 0).double()

    def graphs(self, people):
        places = visits_of(self.visits, people)
        parts = [
            self.embedding[self.start[one] : self.start[one + 1]] for one in places
        ]
        ends = np.cumsum([0, *(len(part) for part in parts)])
        answers = Partners(ends, np.concatenate([self.embedding[:0], *parts]))
        return LocalGraphs.of(self.visits, people, answers)

    def odds(self, model, rows, own, person):
        """The log odds of one person as the formulas say, place by place."""
        weights = {name: one[0] for name, one in self.layout.views(model[None]).items()}
        states, scores = [], []
        for item, place in zip(
            rows, visits_of(self.visits, np.array([person])), strict=True
        ):
            partners = self.embedding[self.start[place] : self.start[place + 1]]
            met = torch.zeros(len(weights["partner_score"]), dtype=torch.float64)
            if len(partners):
                partners = torch.from_numpy(partners)
                score = partners @ weights["partner_score"]
                score = score + weights["item_score"] @ item
                met = functional.leaky_relu(score, 0.2).softmax(0) @ partners
            state = weights["item_weight"] @ item + weights["partner_weight"] @ met
            states.append(torch.tanh(state + weights["state_bias"]))
            score = weights["state_score"] @ states[-1] + weights["own_score"] @ own
            log_slots = float(self.visits.log_slots[place])
            scores.append(functional.leaky_relu(score, 0.2) + log_slots)
        graph = torch.zeros_like(own)
        if states:
            graph = torch.stack(scores).softmax(0) @ torch.stack(states)
        hidden = weights["graph_weight"] @ graph + weights["own_weight"] @ own
        hidden = torch.tanh(hidden + weights["hidden_bias"])
        return weights["out"] @ hidden + weights["out_bias"][0]


@CASES
@given(cities(), st.sampled_from(["region", "region-day"]))
def test_visits_are_where_people_were(city, kind):
    visits = Visits.of(city, kind)
    days = city.clock.days if kind == "region-day" else 1
    assert visits.items == len(city.regions) * days
    for person in range(city.people):
        slots: dict[int, int] = {}
        for slot, region in enumerate(city.by_person[person]):
            day = city.clock.day_of_slot(slot) if kind == "region-day" else 0
            if region >= 0:
                slots[region * days + day] = slots.get(region * days + day, 0) + 1
        mine = visits.of_person(person)
        assert visits.item[mine].tolist() == sorted(slots)
        assert np.allclose(
            np.exp(visits.log_slots[mine]), [slots[item] for item in sorted(slots)]
        )


@CASES
@given(cities(), st.integers(0, 4))
def test_every_gradient_is_that_of_the_device_alone(city, most):
    world = World(city, most=most)
    people = np.random.default_rng(3).permutation(city.people)
    who, graphs = torch.from_numpy(people), world.graphs(people)
    items, own = world.items[graphs.item], world.own[who]
    weights = world.layout.views(world.model.expand(len(people), -1))
    odds = log_odds(weights, items, own, graphs)
    found = gradients(
        world.layout, world.model, items, own, graphs, world.infected[who], base=-0.7
    )
    for place, person in enumerate(people):
        mine = world.visits.item[world.visits.of_person(person)]
        model = world.model.clone().requires_grad_()
        rows = world.items[mine].requires_grad_()
        vector = world.own[person].clone().requires_grad_()
        alone = world.odds(model, rows, vector, person)
        assert float(odds[place]) == pytest.approx(float(alone.detach()))
        loss = functional.binary_cross_entropy_with_logits(
            alone - 0.7, world.infected[person]
        )
        wanted = torch.autograd.grad(
            loss, (model, rows, vector), materialize_grads=True
        )
        assert torch.allclose(found.model[place], wanted[0], atol=1e-9)
        assert torch.allclose(found.item[place, : len(mine)], wanted[1], atol=1e-9)
        assert (found.item[place, len(mine) :] == 0).all()
        assert torch.allclose(found.own[place], wanted[2], atol=1e-9)
