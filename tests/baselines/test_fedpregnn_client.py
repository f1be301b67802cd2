import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from epifalcon.baselines.fedpregnn_client import (
    Layout,
    gradients,
    local_graphs,
    log_odds,
    post_of,
    visits_at,
    visits_of,
)
from epifalcon.baselines.fedpregnn_helper import Partners, TokenHelper
from tests.oracles.cities import cities

QUICK = settings(deadline=None, derandomize=True, max_examples=25)


class World:
    """A city's devices with random weights, in double precision."""

    def __init__(self, city, sent_width=3, most=3, width=4):
        self.city, rng = city, np.random.default_rng(0)
        self.visits = visits_of(city)
        post = post_of(self.visits, rng)
        helper = TokenHelper(post.letters, most)
        helper.receive(rng.normal(size=(city.people, sent_width)), rng)
        heard = helper.answer(post.number)
        self.heard = Partners(heard.start, heard.embedding.astype(np.float64))
        self.layout = Layout(width, sent_width)
        generator = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.model = draw(self.layout.size)
        self.items = draw(self.visits.items, width)
        self.own = draw(city.people, width)
        self.infected = (draw(city.people) > 0).double()

    def of(self, people):
        """What ``log_odds`` takes after the weights, for ``people``."""
        places = visits_at(self.visits, people)
        start, rows = self.heard.start, self.heard.embedding
        parts = [rows[start[one] : start[one + 1]] for one in places]
        ends = np.cumsum([0, *(len(part) for part in parts)])
        heard = Partners(ends, np.concatenate([rows[:0], *parts]))
        graphs = local_graphs(self.visits, people, heard)
        own = self.own[torch.from_numpy(people)]
        return self.items[graphs.item], own, graphs


def softmax(scores):
    return torch.softmax(torch.stack(scores), 0)


def one_device(world, model, rows, own, person):
    """The log odds of one person as the formulas say, place by place."""
    weights = {name: one[0] for name, one in world.layout.views(model[None]).items()}
    states, scores = [], []
    first = world.visits.start[person]
    for number in range(world.visits.count[person]):
        place, item = first + number, rows[number]
        begin, end = world.heard.start[place], world.heard.start[place + 1]
        met = torch.zeros(len(weights["partner_score"]), dtype=torch.float64)
        if begin < end:
            partners = torch.from_numpy(world.heard.embedding[begin:end])
            shares = softmax(
                [
                    functional.leaky_relu(
                        weights["partner_score"] @ one + weights["item_score"] @ item,
                        0.2,
                    )
                    for one in partners
                ]
            )
            met = shares @ partners
        state = weights["item_weight"] @ item + weights["partner_weight"] @ met
        states.append(torch.tanh(state + weights["state_bias"]))
        score = weights["state_score"] @ states[-1] + weights["own_score"] @ own
        log_slots = float(world.visits.log_slots[place])
        scores.append(functional.leaky_relu(score, 0.2) + log_slots)
    graph = torch.zeros_like(own)
    if states:
        graph = softmax(scores) @ torch.stack(states)
    hidden = weights["graph_weight"] @ graph + weights["own_weight"] @ own
    hidden = torch.tanh(hidden + weights["hidden_bias"])
    return weights["out"] @ hidden + weights["out_bias"][0]


@QUICK
@given(cities(), st.sampled_from(["region", "region-day"]))
def test_visits_are_where_people_were(city, kind):
    visits = visits_of(city, kind)
    days = city.clock.days if kind == "region-day" else 1
    assert visits.items == len(city.regions) * days
    for person in range(city.people):
        slots: dict[int, int] = {}
        for slot, region in enumerate(city.by_person[person]):
            day = city.clock.day_of_slot(slot) if kind == "region-day" else 0
            if region >= 0:
                slots[region * days + day] = slots.get(region * days + day, 0) + 1
        mine = slice(visits.start[person], visits.start[person + 1])
        assert visits.item[mine].tolist() == sorted(slots)
        assert np.allclose(
            np.exp(visits.log_slots[mine]), [slots[item] for item in sorted(slots)]
        )


@QUICK
@given(cities(), st.integers(0, 4))
def test_every_gradient_is_that_of_the_device_alone(city, most):
    world = World(city, most=most)
    people = np.random.default_rng(3).permutation(city.people)
    found = gradients(
        world.layout,
        world.model,
        world.of(people),
        world.infected[torch.from_numpy(people)],
        base=-0.7,
    )
    for place, person in enumerate(people):
        count = world.visits.count[person]
        mine = slice(world.visits.start[person], world.visits.start[person + 1])
        model = world.model.clone().requires_grad_()
        rows = world.items[world.visits.item[mine]].requires_grad_()
        own = world.own[person].clone().requires_grad_()
        odds = one_device(world, model, rows, own, person) - 0.7
        loss = functional.binary_cross_entropy_with_logits(odds, world.infected[person])
        wanted = torch.autograd.grad(loss, (model, rows, own), materialize_grads=True)
        assert torch.allclose(found.model[place], wanted[0], atol=1e-9)
        assert torch.allclose(found.item[place, :count], wanted[1], atol=1e-9)
        assert (found.item[place, count:] == 0).all()
        assert torch.allclose(found.own[place], wanted[2], atol=1e-9)


@QUICK
@given(cities())
def test_log_odds_are_those_of_the_formulas(city):
    world = World(city)
    people = np.arange(city.people)
    weights = world.layout.views(world.model.expand(city.people, -1))
    found = log_odds(weights, *world.of(people))
    for person in people:
        mine = slice(world.visits.start[person], world.visits.start[person + 1])
        rows = world.items[world.visits.item[mine]]
        wanted = one_device(world, world.model, rows, world.own[person], person)
        assert float(found[person]) == pytest.approx(float(wanted))


def test_views_share_the_vector_and_fill_it():
    layout = Layout(5, 2)
    vector = torch.zeros(3, layout.size)
    for view in layout.views(vector).values():
        view += 1
    assert (vector == 1).all()
    first = layout.first(torch.Generator().manual_seed(0))
    assert first.shape == (layout.size,)
    views = layout.views(first[None])
    assert all((one == 0).all() for name, one in views.items() if "bias" in name)
    assert all(one.std() > 0 for name, one in views.items() if "bias" not in name)
