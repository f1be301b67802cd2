"""FedPreGNN: graph network trained by devices that exchange gradients and tokens.

The table of the paper calls it FedPreGNN; it is FedPerGNN of Wu et al., "A federated
graph neural network framework for privacy-preserving personalization" (Nature
Communications 2022). Every person is a client with a local graph: the person, the
visited items and, for each item, the anonymous embeddings returned by the helper. For
each item v, with E_v its embedding and e_j those of the partners (constants, since no
gradients pass between devices)::

    a_j = softmax_j leaky(b . e_j + c . E_v)        m_v = sum_j a_j e_j
    h_v = tanh(W_item E_v + W_partner m_v + d)
    g_v = softmax_v (leaky(p . h_v + q . u) + log slots_v)
    log odds = o . tanh(W_graph sum_v g_v h_v + W_own u + f) + o_0

where u is the person's own embedding, which stays on the device.

*Graph expansion*: devices share a key that neither the helper nor the server has. A
device sends one embedding and a token per item, the keyed hash of the item; the helper
returns the embeddings of others with an equal token, without names. The helper sees the
embeddings, and with the key (from a device) it could test every item.

*Model update*: pseudo items, which the person never visited, get random gradients with
the distribution of the true ones; the whole upload is clipped and gets Laplace noise.
The authors claim epsilon = 2 clip / scale. This holds only for one upload, and only if
``clip`` bounds the L1 norm: see ``privacy_spent``.

Adapted: an item is a region on a day; the target is a person's infection,
and items are weighted by the time spent. With ``input="exposure"`` a device sends its
test result to the helper, and the learnt vector stays on the device: no input depends
on the person's own result, even indirectly. ``input="embedding"`` is the published
method: the learnt vector is sent, and results are used in the loss only. Log odds are
recalibrated on the validation people, because clipping reduces the weight of the rarer
result. Reduced: 200 pseudo items instead of 1,000, drawn once per client instead of
once per upload; width 32; no dropout.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor
from torch.nn import functional

from epifalcon.checks import Checked, Count, CountOrZero, NonNegative, Positive
from epifalcon.epidemic.test_results import TestResults, exclude_people
from epifalcon.errors import DataError
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.hypergraph.edge_attention import segment_softmax
from epifalcon.logistic import LogisticCurve, fit_logistic, log_losses
from epifalcon.methods.base import Method, Scores
from epifalcon.methods.training import (
    Checkpointer,
    LearnerSettings,
    LearningRates,
    train,
    validation_people,
)
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.accounting import DELTA
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, Floats, Mask, PersonIds, Probabilities

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Weights = dict[str, Tensor]
_SLOPE = 0.2
_PEOPLE_AT_ONCE = 512
_ORDERS = 1 + np.concatenate([np.geomspace(1e-3, 1, 60), np.geomspace(1, 1e6, 240)])
_UNPROTECTED = (
    "the items that an upload names: true among pseudo",
    "the embedding, which reveals the test result, to the helper and to partners",
    "whether two people have an item in common: seen by the helper",
    "the log odds and the result of each validation person",
    "the share of positive results among clients, where every model starts",
)


@dataclass(frozen=True, kw_only=True)
class UploadNoise(Checked):
    """Clipping and noise of an upload."""

    clip: Positive = 0.1
    """Upper bound of the maximum norm of the whole upload; the authors' program bounds
    the L2 norm."""
    scale: Positive = 0.2
    """Scale of the Laplace noise on every value."""


@dataclass(frozen=True, kw_only=True)
class FedPreGnnSettings(LearnerSettings):
    """Settings of FedPreGNN; the authors' values are given where they differ.

    ``input`` is the data sent to the helper: the person's test result, or the learnt
    vector. The width is 64 in the authors' program.
    """

    partners: CountOrZero = 100
    """Maximum number of embeddings that the helper returns per item."""
    expand_every: Count = 20
    """Rounds between graph expansions; the authors expand once, after two epochs."""
    private: bool = True
    """Use pseudo items, clipping and noise; False measures their cost."""
    noise: UploadNoise = field(default_factory=UploadNoise)
    pseudo_items: CountOrZero = 200
    """Number of pseudo items per client, about five per true item; 1,000 in the
    authors' program."""
    clients_per_round: Count = 256
    """Number of clients per round; 128 in the authors' program."""
    learning_rates: LearningRates = (1.0, 0.3)
    """Candidate learning rates of the server's SGD; each candidate costs uploads. 0.01
    in the authors' program, where a client has many ratings."""
    own_rate: NonNegative = 0.01
    """Learning rate of the vector that stays on the device."""
    rounds: Count = 400
    """Maximum number of rounds per learning rate; the authors train three epochs."""
    check_every: Count = 10


class FedPreGnn(Method):
    """FedPerGNN of Wu et al. 2022: federated, with its own noise and graph expansion.

    ``scores.diagnostics`` has the privacy cost of one device's uploads, as claimed by
    the authors and as computed here, and lists the data uploaded without protection.
    """

    name = "fedpregnn"
    settings_type = FedPreGnnSettings
    settings: FedPreGnnSettings

    def score(self, traces: Traces, known: TestResults) -> Scores:
        settings = self.settings
        secret = self.noise_secret() if settings.private else None
        seeds = RunSeeds(self.seed, secret)
        held_back = validation_people(self, known)
        results = known.status[held_back] == 1
        training = exclude_people(known, held_back)
        server = Federation(traces, training, settings, seeds, held_back, results)
        checkpointer = Checkpointer.of(self, traces, known)
        best = train(server, checkpointer, settings, settings.rounds, "rounds")
        odds = server.final_odds(best.parameters, training)
        curve = _fit_curve(odds[held_back], results)
        return Scores(
            curve(server.final_odds(best.parameters, known)),
            masked=held_back,
            masked_risk=cross_calibrated(odds[held_back], results),
            steps=best.steps,
            parameters=sum(tensor.numel() for tensor in best.parameters.values()),
            diagnostics={**best.diagnostics, **server.privacy()},
        )


def visits_of(traces: Traces) -> sp.csr_array:
    """Return the slots that each person spent at each item, (people, items)."""
    days = traces.clock.days
    slot, person = np.nonzero(traces.by_slot != UNKNOWN)
    region = traces.by_slot[slot, person].astype(np.int64)
    item = region * days + slot // traces.clock.slots_per_day
    shape = traces.people, len(traces.regions) * days
    visits = sp.csr_array((np.ones(len(item)), (person, item)), shape)
    visits.sort_indices()
    return visits


@dataclass(frozen=True, eq=False)
class AnonymousNeighbours:
    """Anonymous embeddings returned by the helper."""

    start: Ids
    """Index of the first partner of each request, (requests + 1,)."""
    embedding: Rows
    """Embedding of each partner, (partners, width)."""


@dataclass(frozen=True, eq=False)
class LocalGraphs:
    """Local graphs of some devices, padded to the maximum number of items."""

    item: Tensor
    """Item ids, (devices, items), int64; 0 for padding."""
    present: Tensor
    """True except for padding, (devices, items)."""
    log_slots: Tensor
    """Logarithm of the slots spent at each item, (devices, items)."""
    partner: Tensor
    """Embeddings of the partners of all items, (partners, sent width)."""
    partner_place: Tensor
    """Index of each partner's item in the flattened ``item``, (partners,)."""

    @classmethod
    def of(cls, visits: sp.csr_array, answers: AnonymousNeighbours) -> "LocalGraphs":
        """Return local graphs from the devices' ``visits`` and the helper's answers."""
        count = np.diff(visits.indptr)
        present = np.arange(max(int(count.max(initial=0)), 1)) < count[:, None]
        item = np.zeros(present.shape, np.int64)
        item[present] = visits.indices
        log_slots = np.zeros(present.shape, np.float32)
        log_slots[present] = np.log(visits.data)
        place = np.repeat(np.flatnonzero(present), np.diff(answers.start))
        return cls(
            torch.from_numpy(item),
            torch.from_numpy(present),
            torch.from_numpy(log_slots),
            torch.from_numpy(answers.embedding),
            torch.from_numpy(place),
        )


class WeightLayout:
    """Layout of all weights in the vector that devices and server share."""

    def __init__(self, width: int, sent_width: int) -> None:
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
        """Return views of weights by name, (devices, ...) each, on (devices, size)."""
        parts = torch.split(copies, self._sizes, dim=1)
        return {
            name: part.reshape(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def first(self, generator: torch.Generator) -> Tensor:
        """Draw initial weights as one vector, (size,); biases are 0."""
        vector = torch.zeros(1, self.size)
        for name, view in self.views(vector).items():
            if not name.endswith("bias"):
                drawn = torch.randn(view.shape, generator=generator)
                view.copy_(drawn / math.sqrt(view.shape[-1]))
        return vector[0]


def log_odds(
    weights: Weights, embedding: Tensor, own: Tensor, graphs: LocalGraphs
) -> Tensor:
    """Return log odds, (devices,), with weights from ``WeightLayout.views``."""
    most = embedding.shape[1]
    place, partner = graphs.partner_place, graphs.partner.to(embedding.dtype)
    # b . e_j + c . E_v, the softmax over the partners of each item, and their mean.
    towards = (weights["partner_score"][place // most] * partner).sum(1)
    shift = torch.bmm(embedding, weights["item_score"][:, :, None]).flatten()
    score = functional.leaky_relu(towards + shift[place], _SLOPE)
    share = segment_softmax(score, place, len(shift))
    met = partner.new_zeros(len(shift), partner.shape[1])
    met = met.index_add(0, place, share[:, None] * partner)
    state = torch.tanh(
        embedding @ weights["item_weight"].mT
        + met.view(*embedding.shape[:2], -1) @ weights["partner_weight"].mT
        + weights["state_bias"][:, None]
    )
    score = torch.bmm(state, weights["state_score"][:, :, None]).squeeze(2)
    score = score + (own * weights["own_score"]).sum(1, keepdim=True)
    score = functional.leaky_relu(score, _SLOPE) + graphs.log_slots
    # Devices without items have a finite softmax too, which the mask sets to 0.
    share = score.masked_fill(~graphs.present, -1e30).softmax(1) * graphs.present
    hidden = torch.tanh(
        torch.bmm(share[:, None], state) @ weights["graph_weight"].mT
        + own[:, None] @ weights["own_weight"].mT
        + weights["hidden_bias"][:, None]
    )
    odds = (hidden.squeeze(1) * weights["out"]).sum(1)
    return odds + weights["out_bias"].squeeze(1)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of each device's loss."""

    model: Tensor
    """Gradient of the shared weights, (devices, size)."""
    item: Tensor
    """Gradient of the item embeddings, (devices, items, width); 0 for padding."""
    own: Tensor
    """Gradient of the person's own vector, (devices, width)."""


def gradients(
    layout: WeightLayout,
    model: Tensor,
    embedding: Tensor,
    own: Tensor,
    graphs: LocalGraphs,
    infected: Tensor,
    base: float,
) -> Gradients:
    """Return the gradient of each device's loss, as if each had a copy of the weights.

    ``model`` (size,); ``infected`` (devices,) float32; ``base`` is added to log odds.
    """
    copies = model.detach().expand(len(own), -1).clone().requires_grad_()
    embedding = embedding.detach().clone().requires_grad_()
    own = own.detach().clone().requires_grad_()
    odds = log_odds(layout.views(copies), embedding, own, graphs) + base
    loss = functional.binary_cross_entropy_with_logits(odds, infected, reduction="sum")
    return Gradients(*torch.autograd.grad(loss, (copies, embedding, own)))


class Federation:
    """Learner that simulates all devices, the helper and the server."""

    def __init__(
        self,
        traces: Traces,
        training: TestResults,
        settings: FedPreGnnSettings,
        seeds: RunSeeds,
        validation: PersonIds,
        results: Mask,
    ) -> None:
        self._settings, self._seeds = settings, seeds
        self._streams = Streams(seeds.seed)
        self._training, self._validation, self._results = training, validation, results
        self.visits = visits = visits_of(traces)
        people, items = visits.shape
        exposed = settings.input == "exposure"
        self.layout = WeightLayout(settings.width, 2 if exposed else settings.width)
        item, start = visits.indices.astype(np.int64), visits.indptr
        number = np.arange(visits.nnz)
        self._requests = sp.csr_array((number, visits.indices, start), visits.shape)
        sender = np.repeat(np.arange(people), np.diff(start))
        self._helper = TokenHelper(sender, item, settings.partners)
        self.clients = np.flatnonzero(training.tested)
        self._infected = torch.from_numpy((training.status == 1).astype(np.float32))
        rng = seeds.numpy("fedpregnn pseudo items")
        pseudo = settings.pseudo_items if settings.private else 0
        self.covers = {}
        for person in self.clients.tolist():
            mine = visits[[person]].indices.astype(np.int64)
            self.covers[person] = cover_of(mine, items, pseudo, rng)
        share = (training.status == 1).sum() / training.tested.sum()
        self._base = float(logit(np.clip(share, 1e-3, 1 - 1e-3)))
        self._uploads = torch.zeros(people, dtype=torch.int64)

    def restart(self, rate_number: int, learning_rate: float) -> None:
        self._rate_number, self._rate = rate_number, learning_rate
        seed = self._streams.seed_for(f"fedpregnn first {rate_number}")
        generator = torch.Generator().manual_seed(seed)
        (people, items), width = self.visits.shape, self._settings.width
        self._state = {
            "model": self.layout.first(generator),
            "items": 0.1 * torch.randn((items, width), generator=generator),
            "own": torch.zeros(people, width),
        }

    def step(self, number: int) -> None:
        """Run one round: local gradients, own vectors, uploads, server update."""
        settings, state = self._settings, self._state
        if number % settings.expand_every == 0:
            self._expand(self._embeddings(state["own"], self._training), number)
        parts = math.ceil(len(self.clients) / settings.clients_per_round)
        pass_number, turn = divmod(number, parts)
        rng = self._streams.numpy(f"fedpregnn pass {self._rate_number} {pass_number}")
        people = np.array_split(rng.permutation(self.clients), parts)[turn]
        who = torch.from_numpy(people)
        graphs = self._graphs(people)
        result = gradients(
            self.layout,
            state["model"],
            state["items"][graphs.item],
            state["own"][who],
            graphs,
            self._infected[who],
            self._base,
        )
        state["own"][who] -= settings.own_rate * result.own
        rng = self._seeds.numpy(f"fedpregnn noise {self._rate_number} {number}")
        noise = settings.noise if settings.private else None
        model, item = result.model.numpy(), result.item.numpy()
        covers = [self.covers[person] for person in people.tolist()]
        uploads = (
            release(model[place], item[place, : cover.true.sum()], cover, noise, rng)
            for place, cover in enumerate(covers)
        )
        for name, gradient in server_sum(uploads, state["items"]).items():
            state[name] *= 1 - self._rate * settings.weight_decay
            state[name] -= gradient * (self._rate / len(people))
        self._uploads[who] += 1

    def validate(self) -> float:
        odds = self._odds(self._state, self._validation.astype(np.int64))
        if not np.isfinite(odds).all():
            raise DataError("log odds are not finite: choose smaller learning_rates")
        risk = cross_calibrated(odds, self._results)
        return float(log_losses(risk, self._results, clip=1e-12).mean())

    def parameters(self) -> dict[str, Tensor]:
        return self._state

    def state(self) -> dict[str, Tensor]:
        return {
            **self._state,
            "uploads": self._uploads,
            "sent": torch.from_numpy(self._sent),
            "expanded": torch.tensor(self._expanded),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._state = {name: state[name] for name in self._state}
        self._uploads = state["uploads"]
        self._expand(state["sent"].numpy(), int(state["expanded"]))

    def final_odds(self, parameters: dict[str, Tensor], known: TestResults) -> Floats:
        """Return all log odds after a graph expansion with the results ``known``."""
        self._receive(self._embeddings(parameters["own"], known), "at the end")
        return self._odds(parameters, np.arange(self.visits.shape[0]))

    def privacy(self) -> dict[str, Any]:
        """Return the privacy cost of the device with the most uploads."""
        uploads = int(self._uploads.max())
        if not self._settings.private:
            return {"private": False, "uploads": uploads, "epsilon_total": math.inf}
        named = max(len(cover.item) for cover in self.covers.values())
        numbers = self.layout.size + named * self._settings.width
        return {
            "private": True,
            "uploads": uploads,
            "numbers_per_upload": numbers,
            **privacy_spent(self._settings.noise, numbers, uploads),
            "unprotected": list(_UNPROTECTED),
        }

    def _embeddings(self, own: Tensor, known: TestResults) -> Rows:
        """Return the embeddings that devices send to the helper, (people, width)."""
        if self._settings.input == "embedding":
            return own.numpy().copy()
        kinds = np.stack([known.status == 1, known.status == 0], axis=1)
        return kinds.astype(np.float32)

    def _expand(self, sent: Rows, number: int) -> None:
        """Send all embeddings to the helper for the expansion of round ``number``."""
        self._sent, self._expanded = sent, number
        expansion = number // self._settings.expand_every
        self._receive(sent, f"{self._rate_number} {expansion}")

    def _receive(self, sent: Rows, name: str) -> None:
        self._helper.receive(sent, self._streams.numpy(f"fedpregnn partners {name}"))

    def _graphs(self, people: Ids) -> LocalGraphs:
        answers = self._helper.answer(self._requests[people].data)
        return LocalGraphs.of(self.visits[people], answers)

    def _odds(self, parameters: dict[str, Tensor], people: Ids) -> Floats:
        """Return log odds of ``people`` with the partners of the last expansion."""
        result = [np.empty(0)]
        blocks = range(_PEOPLE_AT_ONCE, len(people), _PEOPLE_AT_ONCE)
        for some in np.split(people, blocks):
            graphs = self._graphs(some)
            weights = self.layout.views(parameters["model"].expand(len(some), -1))
            embedding = parameters["items"][graphs.item]
            own = parameters["own"][torch.from_numpy(some)]
            odds = log_odds(weights, embedding, own, graphs) + self._base
            result.append(odds.double().numpy())
        return np.concatenate(result)


class TokenHelper:
    """Simulated helper, which matches tokens and forwards embeddings.

    Request r comes from ``sender[r]`` and is addressed to the others with ``token[r]``.
    The answer has at most ``most`` of them, drawn uniformly: the senders of a token are
    shuffled on a circle, and each gets the next ones. So nobody receives their own
    embedding, and all are forwarded equally often. Only the equality of tokens matters,
    so the simulation uses item and person ids instead of keyed hashes and pseudonyms.
    """

    def __init__(self, sender: Ids, token: Ids, most: int) -> None:
        self._sender, self._group, self._most = sender, token, most
        self._size = np.bincount(token)
        self._first = np.cumsum(self._size) - self._size

    def receive(self, embedding: Rows, rng: np.random.Generator) -> None:
        """Store one embedding per sender, (senders, width), and shuffle the circles."""
        order = np.argsort(self._group + rng.random(len(self._group)))
        self._place = np.argsort(order)
        self._circle = embedding.astype(np.float32)[self._sender[order]]

    def answer(self, requests: Ids) -> AnonymousNeighbours:
        """Return the embeddings of the partners for each of the ``requests``."""
        group = self._group[requests]
        count = np.minimum(self._size[group] - 1, self._most)
        start = np.append(0, np.cumsum(count))
        each = np.repeat(group, count)
        first, size = self._first[each], self._size[each]
        steps = np.arange(start[-1]) - np.repeat(start[:-1], count) + 1
        place = np.repeat(self._place[requests], count) - first + steps
        found = first + place % np.maximum(size, 1)
        return AnonymousNeighbours(start, self._circle[found])


@dataclass(frozen=True, eq=False)
class PseudoItems:
    """True and pseudo items named in a person's uploads.

    Drawn once: with new draws for each upload, only the true items would recur.
    """

    item: Ids
    """Item ids in ascending order, (named,)."""
    true: Mask
    """True for visited items, (named,); known to the device only."""


def cover_of(
    mine: Ids, items: int, pseudo: int, rng: np.random.Generator
) -> PseudoItems:
    """Return the visited items ``mine`` with ``pseudo`` others, drawn uniformly."""
    drawn = rng.choice(items, min(items, len(mine) + pseudo), replace=False)
    named = np.concatenate([mine, drawn[~np.isin(drawn, mine)][:pseudo]])
    order = np.argsort(named)
    return PseudoItems(named[order], order < len(mine))


@dataclass(frozen=True, eq=False)
class Upload:
    """Data that the server receives from one device in one round."""

    model: Rows
    """Gradient of the shared weights, (size,)."""
    item: Ids
    """Item ids in ascending order, (named,)."""
    row: Rows
    """Gradient of each item embedding, (named, width)."""


def release(
    model: Rows,
    true: Rows,
    cover: PseudoItems,
    noise: UploadNoise | None,
    rng: np.random.Generator,
) -> Upload:
    """Return one device's upload: true and pseudo rows, clipped together, with noise.

    ``model`` (size,) and ``true`` (visited, width) are the device's gradients. The
    noise suffices for a simulation, but is not safe against floating-point attacks.
    """
    row = np.empty((len(cover.item), true.shape[1]), np.float32)
    row[cover.true] = true
    row[~cover.true] = pseudo_rows(true, len(row) - len(true), rng)
    if noise is None:
        return Upload(model, cover.item, row)
    clipped = clip(np.concatenate([model, row.ravel()]), noise.clip)
    # The difference of two exponential variables is a Laplace variable.
    one, other = rng.standard_exponential((2, len(clipped)), np.float32)
    sent = clipped + np.float32(noise.scale) * (one - other)
    return Upload(sent[: len(model)], cover.item, sent[len(model) :].reshape(row.shape))


def pseudo_rows(true: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Draw normal rows, (count, width), with mean and covariance of the true rows."""
    if not len(true):
        return np.zeros((count, true.shape[1]), np.float32)
    mean = true.mean(axis=0)
    spread = (true - mean) / np.float32(math.sqrt(len(true)))
    drawn = rng.standard_normal((count, len(true)), np.float32)
    return drawn @ spread + mean


def clip(value: Rows, bound: float) -> Rows:
    """Return ``value`` scaled so that no number exceeds ``bound`` after rounding.

    Raises ``DataError`` if a value is not finite: it would corrupt the sum.
    """
    length = float(np.abs(value).max(initial=0.0))
    if not math.isfinite(length):
        raise DataError("a gradient is not finite: choose smaller learning_rates")
    if length <= bound:
        return value
    # Margin for the rounding error of the product.
    margin = 1 - 4 * float(np.finfo(value.dtype).eps)
    return value * value.dtype.type(margin * bound / length)


def server_sum(uploads: Iterable[Upload], items: Tensor) -> dict[str, Tensor]:
    """Return the sum of all uploads of a round; the server uses nothing else."""
    model: Rows | float = 0.0
    row = np.zeros(items.shape, np.float32)
    for upload in uploads:
        model = model + upload.model
        # No device lists an item twice, so in-place addition is exact.
        row[upload.item] += upload.row
    if not np.isfinite(model).all():
        raise DataError("a gradient is not finite: choose smaller learning_rates")
    total = torch.from_numpy(np.asarray(model, np.float32))
    return {"model": total, "items": torch.from_numpy(row)}


def privacy_spent(
    noise: UploadNoise, numbers: int, uploads: int, delta: float = DELTA
) -> dict[str, float]:
    """Return the local differential privacy of ``uploads`` of ``numbers`` values each.

    The bound compares any two gradients on the same items; leakage through the items
    and the embedding is not bounded. ``epsilon_claimed`` is the value of the paper, for
    any number of uploads. Keys with ``_naive`` give pure epsilon, composed over all
    values; the others give the smaller of that and epsilon at ``delta``.

    Every value changes by at most 2 clip. Pure epsilon is the sum of the distances
    divided by the scale; Renyi divergences of Laplace noise (Mironov 2017, table II)
    are summed, too.
    """
    reach = 2 * noise.clip / noise.scale
    naive, divergence = reach * numbers, _laplace_divergence(reach) * numbers
    return {
        "epsilon_claimed": reach,
        "epsilon_round_naive": naive,
        "epsilon_round": min(naive, _epsilon(divergence, delta)),
        "epsilon_total_naive": uploads * naive,
        "epsilon_total": min(uploads * naive, _epsilon(uploads * divergence, delta)),
        "delta": delta,
    }


def _laplace_divergence(distance: float) -> NDArray[np.float64]:
    """Return the Renyi divergences of unit Laplace noise shifted by ``distance``."""
    order = _ORDERS
    up = np.log(order / (2 * order - 1)) + (order - 1) * distance
    down = np.log((order - 1) / (2 * order - 1)) - order * distance
    return np.logaddexp(up, down) / (order - 1)


def _epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """Return the least epsilon at ``delta`` (Canonne et al. 2020, proposition 12)."""
    order = _ORDERS
    result = divergence + np.log1p(-1 / order)
    result -= (math.log(delta) + np.log(order)) / (order - 1)
    return max(0.0, float(result.min()))


def _fit_curve(odds: Floats, infected: Mask) -> LogisticCurve:
    """Fit Platt scaling with standard normal priors around the identity."""
    prior = {"slope_mean": 1.0, "slope_sd": 1.0, "offset_sd": 1.0}
    return fit_logistic(odds, infected, **prior, least_slope=math.exp(-5))


def cross_calibrated(odds: Floats, infected: Mask) -> Probabilities:
    """Return Platt-scaled risks; each half is scaled by the fit to the other half."""
    half = np.empty(len(odds), np.int64)
    for kind in (True, False):
        some = np.flatnonzero(infected == kind)
        half[some] = np.arange(len(some)) % 2
    risk = np.empty(len(odds))
    for number in (0, 1):
        mine, others = half == number, half != number
        risk[mine] = _fit_curve(odds[others], infected[others])(odds[mine])
    return risk
