"""FedPerGNN on the devices: each one's own small graph, and its own gradient.

A device's graph holds the person, the items it visited and, around each item, the
anonymous embeddings that the helper returned. Per item v, with E_v its embedding
and e_j those of the partners (constants: no gradient crosses between devices)::

    a_j = softmax_j leaky(b . e_j + c . E_v)        m_v = sum_j a_j e_j
    h_v = tanh(W_item E_v + W_partner m_v + d)
    g_v = softmax_v (leaky(p . h_v + q . u) + log slots_v)
    log odds = o . tanh(W_graph sum_v g_v h_v + W_own u + f) + o_0

where u is the person's own embedding, which never leaves as a gradient. Devices
are computed together, but each on a copy of the weights of its own, as in life:
so the gradient of every device is had exactly, not only the sum.

Adapted from the paper's GAT: it predicts a rating of an item, here a person's
risk, so the target item is gone; time spent weighs items; the authors' program
adds partners up without the softmax.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from epifalcon.baselines.fedpregnn_helper import Letters, Partners, tokens_of
from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Reals = NDArray[Any]
"""float32 in training; tests use doubles."""
ItemKind = Literal["region", "region-day"]
Weights = dict[str, Tensor]

_SLOPE = 0.2


@dataclass(frozen=True, eq=False)
class Visits:
    """Each person's items in ascending order, person by person."""

    items: int
    """How many the city has, visited or not."""
    start: Ids
    """(people + 1,)"""
    item: Ids
    """(visits,)"""
    log_slots: Rows
    """(visits,) logarithm of the slots spent there."""

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.start) - 1

    @property
    def count(self) -> Ids:
        """How many items each person has: (people,)."""
        return np.diff(self.start)


def visits_of(traces: Traces, kind: ItemKind = "region-day") -> Visits:
    """The items of each person; a gap is no visit."""
    windows = traces.clock.days if kind == "region-day" else 1
    items = len(traces.regions) * windows
    parts = []
    for window, slots in enumerate(np.split(traces.by_slot, windows)):
        slot, person = np.nonzero(slots != UNKNOWN)
        item = slots[slot, person].astype(np.int64) * windows + window
        parts.append(np.unique(person * items + item, return_counts=True))
    keys, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(keys)
    person, item = np.divmod(keys[order], items)
    start = np.zeros(traces.people + 1, np.int64)
    np.cumsum(np.bincount(person, minlength=traces.people), out=start[1:])
    return Visits(items, start, item, np.log(counts[order]).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Post:
    """What the devices send the helper, and how each finds its own answers again."""

    letters: Letters
    number: Ids
    """(visits,) the letter of each visit; known to its device alone."""
    box: Ids
    """(people,) each device's letter box; known to it alone."""


def post_of(visits: Visits, rng: np.random.Generator) -> Post:
    """Letters of all devices under one fresh key, in an order that tells nothing."""
    tokens = tokens_of(visits.items, rng.bytes(32))
    box = rng.permutation(visits.people)
    order = rng.permutation(len(visits.item))
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    sender = np.repeat(box, visits.count)
    return Post(Letters(sender[order], tokens[visits.item[order]]), number, box)


class Layout:
    """Where each weight stands in the one vector that devices and server share."""

    def __init__(self, width: int, sent_width: int) -> None:
        self.width = width
        self.shapes: dict[str, tuple[int, ...]] = {
            "partner_score": (sent_width,),
            "item_score": (width,),
            "partner_weight": (width, sent_width),
            "item_weight": (width, width),
            "state_bias": (width,),
            "state_score": (width,),
            "own_score": (width,),
            "graph_weight": (width, width),
            "own_weight": (width, width),
            "hidden_bias": (width,),
            "out": (width,),
            "out_bias": (1,),
        }
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self._sizes)

    def views(self, copies: Tensor) -> Weights:
        """Weights by name, (devices, ...) each, of vectors (devices, size)."""
        parts = torch.split(copies, self._sizes, dim=1)
        return {
            name: part.reshape(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def first(self, generator: torch.Generator) -> Tensor:
        """The vector that training begins with: (size,)."""
        vector = torch.zeros(1, self.size)
        for name, view in self.views(vector).items():
            if not name.endswith("bias"):
                drawn = torch.randn(view.shape, generator=generator)
                view.copy_(drawn / math.sqrt(view.shape[-1]))
        return vector[0]


@dataclass(frozen=True, eq=False)
class LocalGraphs:
    """The graphs of some devices, side by side; ``most`` is the largest's items."""

    item: Tensor
    """(devices, most) int64, 0 where there is none."""
    present: Tensor
    """(devices, most) bool"""
    log_slots: Tensor
    """(devices, most)"""
    partners: Partners
    """For each of the devices x most places in turn, none where no item is."""


def local_graphs(visits: Visits, people: Ids, heard: Partners) -> LocalGraphs:
    """The graphs of ``people``; ``heard`` are the answers for their visits in turn."""
    count = visits.count[people]
    most = max(int(count.max(initial=0)), 1)
    present = np.arange(most) < count[:, None]
    places = visits_at(visits, people)
    item = np.zeros(present.shape, np.int64)
    item[present] = visits.item[places]
    log_slots = np.zeros(present.shape, np.float32)
    log_slots[present] = visits.log_slots[places]
    length = np.zeros(present.shape, np.int64)
    length[present] = np.diff(heard.start)
    start = np.zeros(present.size + 1, np.int64)
    np.cumsum(length.ravel(), out=start[1:])
    return LocalGraphs(
        torch.from_numpy(item),
        torch.from_numpy(present),
        torch.from_numpy(log_slots),
        Partners(start, heard.embedding),
    )


def visits_at(visits: Visits, people: Ids) -> Ids:
    """The places in ``visits`` of all visits of ``people``, person by person."""
    count = visits.count[people]
    ends = np.cumsum(count)
    return np.arange(count.sum()) + np.repeat(
        visits.start[people] - ends + count, count
    )


def log_odds(
    weights: Weights, embedding: Tensor, own: Tensor, graphs: LocalGraphs
) -> Tensor:
    """Each device's log odds, (devices,), of weights from ``Layout.views``.

    ``embedding`` (devices, most, width) of the items, ``own`` (devices, width).
    """
    met = _met(weights, embedding, graphs.partners)
    state = torch.tanh(
        torch.baddbmm(
            weights["state_bias"][:, None], embedding, weights["item_weight"].mT
        )
        + met @ weights["partner_weight"].mT
    )
    score = torch.bmm(state, weights["state_score"][:, :, None]).squeeze(2)
    score = score + (own * weights["own_score"]).sum(1, keepdim=True)
    score = functional.leaky_relu(score, _SLOPE) + graphs.log_slots
    share = _softmax(score, graphs.present)
    graph = torch.bmm(share[:, None], state)
    hidden = torch.tanh(
        graph @ weights["graph_weight"].mT
        + own[:, None] @ weights["own_weight"].mT
        + weights["hidden_bias"][:, None]
    )
    odds = (hidden.squeeze(1) * weights["out"]).sum(1)
    return odds + weights["out_bias"].squeeze(1)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Of each device's own loss, with respect to its own copy of everything."""

    model: Tensor
    """(devices, size)"""
    item: Tensor
    """(devices, most, width), 0 where there is no item."""
    own: Tensor
    """(devices, width)"""


def gradients(
    layout: Layout,
    model: Tensor,
    parts: tuple[Tensor, Tensor, LocalGraphs],
    infected: Tensor,
    base: float,
) -> Gradients:
    """The exact gradient of every device: no sum or mean over devices is taken.

    ``model`` (size,); ``parts`` as ``log_odds`` takes them after the weights;
    ``infected`` (devices,) float32; ``base`` is added to the log odds.
    """
    embedding, own, graphs = parts
    copies = model.detach().expand(len(own), -1).clone().requires_grad_()
    embedding = embedding.detach().clone().requires_grad_()
    own = own.detach().clone().requires_grad_()
    odds = log_odds(layout.views(copies), embedding, own, graphs) + base
    loss = functional.binary_cross_entropy_with_logits(odds, infected, reduction="sum")
    found = torch.autograd.grad(loss, (copies, embedding, own))
    return Gradients(*found)


def _met(weights: Weights, embedding: Tensor, partners: Partners) -> Tensor:
    """The partners around each item, by attention: (devices, most, sent width)."""
    devices, most, _ = embedding.shape
    query = weights["partner_score"][:, None].expand(-1, most, -1)
    shift = torch.bmm(embedding, weights["item_score"][:, :, None]).flatten()
    met: Tensor = _Attention.apply(query.flatten(0, 1), shift, partners)  # type: ignore[no-untyped-call]
    return met.reshape(devices, most, -1)


def _softmax(score: Tensor, present: Tensor) -> Tensor:
    """Over the last axis where ``present``; all 0 where nothing is."""
    score = torch.where(present, score, -math.inf)
    top = score.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(score.dtype).min)
    mass = torch.exp(score - top)
    # A row with anything present sums to at least 1.
    return mass / mass.sum(-1, keepdim=True).clamp(min=0.5)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, shift, partners):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        given = query.detach().contiguous().numpy(), shift.detach().numpy()
        kept = partners.start, partners.embedding.astype(given[0].dtype, copy=False)
        share = np.zeros(len(kept[1]), given[0].dtype)
        met = np.zeros_like(given[0])
        _attend(given, kept, (share, met))
        ctx.kept = given, kept, share, met
        return torch.from_numpy(met)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        given, kept, share, met = ctx.kept
        to_query, to_shift = np.zeros_like(given[0]), np.zeros_like(given[1])
        passed = grad.contiguous().numpy()
        _attend_back(given, kept, (share, met, passed), (to_query, to_shift))
        return torch.from_numpy(to_query), torch.from_numpy(to_shift), None


@compiled
def _attend(
    given: tuple[Reals, Reals],
    partners: tuple[Ids, Reals],
    found: tuple[Reals, Reals],
) -> None:
    """Set each partner's share and the mean of each place's partners."""
    query, shift = given
    start, embedding = partners
    share, met = found
    width = embedding.shape[1]
    for place in range(len(shift)):
        begin, end = start[place], start[place + 1]
        top = -np.inf
        for one in range(begin, end):
            score = shift[place]
            for d in range(width):
                score += query[place, d] * embedding[one, d]
            share[one] = score if score > 0 else _SLOPE * score
            top = max(top, share[one])
        total = 0.0
        for one in range(begin, end):
            share[one] = np.exp(share[one] - top)
            total += share[one]
        for one in range(begin, end):
            share[one] /= total
            for d in range(width):
                met[place, d] += share[one] * embedding[one, d]


@compiled
def _attend_back(
    given: tuple[Reals, Reals],
    partners: tuple[Ids, Reals],
    passed: tuple[Reals, Reals, Reals],
    found: tuple[Reals, Reals],
) -> None:
    """Set the gradients of query and shift from that of the mean."""
    query, shift = given
    start, embedding = partners
    share, met, grad = passed
    to_query, to_shift = found
    width = embedding.shape[1]
    for place in range(len(shift)):
        mean = 0.0
        for d in range(width):
            mean += grad[place, d] * met[place, d]
        for one in range(start[place], start[place + 1]):
            score, gain = shift[place], -mean
            for d in range(width):
                score += query[place, d] * embedding[one, d]
                gain += grad[place, d] * embedding[one, d]
            gain *= share[one] if score > 0 else _SLOPE * share[one]
            to_shift[place] += gain
            for d in range(width):
                to_query[place, d] += gain * embedding[one, d]
