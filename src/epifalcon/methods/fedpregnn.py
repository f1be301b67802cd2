"""FedPreGNN: a graph network trained by devices that share gradients and tokens.

The table of the paper calls it FedPreGNN; it is FedPerGNN of Wu et al., "A federated
graph neural network framework for privacy-preserving personalization" (Nature
Communications 2022). Every person is a client with a graph of its own: the person, the
items it visited and, around each item, the anonymous embeddings that the helper
returned (``fedpregnn_privacy``). Per item v, with E_v its embedding and e_j those of
the partners (constants: no gradient crosses between devices)::

    a_j = softmax_j leaky(b . e_j + c . E_v)        m_v = sum_j a_j e_j
    h_v = tanh(W_item E_v + W_partner m_v + d)
    g_v = softmax_v (leaky(p . h_v + q . u) + log slots_v)
    log odds = o . tanh(W_graph sum_v g_v h_v + W_own u + f) + o_0

where u is the person's own embedding, which never leaves the device.

Adapted: there, people rate items; here an item is a region, or a region on a day, and
the target is a person's infection, so the target item is gone and time spent weighs
items; the authors' program adds partners up without the softmax. With
``input="exposure"`` the embedding that a device sends the helper is its test result
(positive, negative, none), and the vector that it learns stays on the device: what a
tested person is shown never contains its own result, not even by way of others; its
vector has learnt from it. ``input="embedding"`` is the published way: the learnt vector
is sent, results enter by the loss alone. Log odds are recalibrated on the validation
people, because clipping each client's gradient gives the rarer result less weight.

Reduced: 200 pseudo items instead of 1,000, five for each true one, drawn once for each
client instead of for every upload; width 32; no dropout.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.special import logit
from torch import Tensor
from torch.nn import functional

from epifalcon.checks import non_negative, one_of, unit_interval, whole
from epifalcon.epidemic.known import Known, hold_back, without
from epifalcon.errors import DataError
from epifalcon.hypergraph.edges import segment_softmax
from epifalcon.logistic import LogisticCurve, fit_logistic, log_losses
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.methods.fedpregnn_privacy import (
    Cover,
    Ids,
    Noise,
    Partners,
    Rows,
    TokenHelper,
    Upload,
    cover_of,
    privacy_spent,
    release,
    tokens_of,
)
from epifalcon.methods.training import Checkpointer, require_learning_rates, train
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, Floats, Mask, PersonIds, Probabilities

ItemKind = Literal["region", "region-day"]
Weights = dict[str, Tensor]
_SLOPE = 0.2
_PEOPLE_AT_ONCE = 512
_UNPROTECTED = (
    "the items that an upload names: true among pseudo",
    "the embedding, which tells the test result, to the helper and to partners",
    "whether two people have an item in common: seen by the helper",
    "the log odds and the result of each validation person",
)


@dataclass(frozen=True, kw_only=True)
class FedPreGnnSettings:
    """Settings of FedPreGNN, with the authors' choice where it differs."""

    input: Literal["exposure", "embedding"] = "exposure"
    """What a device sends the helper: its test result, or the vector it learns."""
    item: ItemKind = "region-day"
    width: int = 32
    """As with all rivals here; 64 in the authors' program."""
    partners: int = 100
    """Maximum number of embeddings that the helper returns for one item."""
    expand_every: int = 20
    """Rounds between graph expansions; there once, after two passes."""
    private: bool = True
    """Off: no pseudo items, no clip, no noise. Shows what privacy costs."""
    noise: Noise = field(default_factory=Noise)
    pseudo_items: int = 200
    """1,000 there; five for each true one here."""
    clients_per_round: int = 256
    """128 there."""
    learning_rates: tuple[float, ...] = (1.0, 0.3)
    """Of the server's plain steps; each is tried, and each costs uploads. 0.01 there,
    where a client has many ratings."""
    own_rate: float = 0.01
    """Of a device for its own vector."""
    weight_decay: float = 0.0005
    rounds: int = 400
    """Maximum for each learning rate; three passes over all clients there."""
    check_every: int = 10
    patience: int = 8
    """Validations without improvement before training stops."""
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        one_of(("exposure", "embedding"), input=self.input)
        one_of(("region", "region-day"), item=self.item)
        whole(0, partners=self.partners, pseudo_items=self.pseudo_items)
        whole(
            1,
            width=self.width,
            expand_every=self.expand_every,
            clients_per_round=self.clients_per_round,
            rounds=self.rounds,
            check_every=self.check_every,
            patience=self.patience,
        )
        require_learning_rates(self.learning_rates)
        non_negative(own_rate=self.own_rate, weight_decay=self.weight_decay)
        unit_interval(validation_share=self.validation_share)


class FedPreGnn(Method):
    """FedPerGNN of Wu et al. 2022: federated, with its own noise and expansion.

    ``scores.diagnostics`` holds the privacy cost of one device's uploads, as claimed by
    the authors and as it is, and what leaves a device without any protection.
    """

    name = "fedpregnn"
    title = "FedPreGNN"
    kind = "paper"
    settings_type: ClassVar[type] = FedPreGnnSettings
    settings: FedPreGnnSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train round by round, choose by the validation people, return the risk."""
        require_both(known)
        settings, streams = self.settings, Streams(self.seed)
        rng = streams.numpy("validation people")
        held_back = hold_back(known, settings.validation_share, rng)
        results = known.status[held_back] == 1
        training = without(known, held_back)
        server = Federation(traces, training, settings, streams, held_back, results)
        best = train(
            server,
            Checkpointer.of(self, traces, known),
            learning_rates=settings.learning_rates,
            steps=settings.rounds,
            check_every=settings.check_every,
            patience=settings.patience,
            unit="rounds",
        )
        odds = server.final_odds(best.parameters, training)
        curve = _fit_curve(odds[held_back], results)
        return Scores(
            curve(server.final_odds(best.parameters, known)),
            masked=held_back,
            masked_risk=cross_calibrated(odds[held_back], results),
            steps=best.steps,
            parameters=sum(one.numel() for one in best.parameters.values()),
            diagnostics={**best.diagnostics, **server.privacy()},
        )


@dataclass(frozen=True, eq=False)
class Visits:
    """Each person's items in ascending order, person by person."""

    items: int
    """Number of items of the city, visited or not."""
    start: Ids
    """(people + 1,)"""
    item: Ids
    """(visits,)"""
    log_slots: Rows
    """(visits,) logarithm of the slots spent there."""

    @classmethod
    def of(cls, traces: Traces, kind: ItemKind = "region-day") -> "Visits":
        """Return the items of each person; a gap is no visit."""
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
        start = np.append(0, np.cumsum(np.bincount(person, minlength=traces.people)))
        return cls(items, start, item, np.log(counts[order]).astype(np.float32))

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.start) - 1

    def of_person(self, person: int) -> slice:
        """Return where the visits of ``person`` are."""
        return slice(self.start[person], self.start[person + 1])


@dataclass(frozen=True, eq=False)
class LocalGraphs:
    """The graphs of some devices, padded to the most items that one has."""

    item: Tensor
    """(devices, most) int64, 0 for padding."""
    present: Tensor
    """(devices, most) bool"""
    log_slots: Tensor
    """(devices, most)"""
    partner: Tensor
    """(partners, sent width) the embeddings around all items."""
    partner_place: Tensor
    """(partners,) the place of its item in ``item``, flattened."""

    @classmethod
    def of(cls, visits: Visits, people: Ids, answers: Partners) -> "LocalGraphs":
        """Return the graphs of ``people``; ``answers`` to their visits in turn."""
        count = np.diff(visits.start)[people]
        present = np.arange(max(int(count.max(initial=0)), 1)) < count[:, None]
        mine = visits_of(visits, people)
        item = np.zeros(present.shape, np.int64)
        item[present] = visits.item[mine]
        log_slots = np.zeros(present.shape, np.float32)
        log_slots[present] = visits.log_slots[mine]
        place = np.repeat(np.flatnonzero(present), np.diff(answers.start))
        return cls(
            torch.from_numpy(item),
            torch.from_numpy(present),
            torch.from_numpy(log_slots),
            torch.from_numpy(answers.embedding),
            torch.from_numpy(place),
        )


def visits_of(visits: Visits, people: Ids) -> Ids:
    """Return the places in ``visits`` of all visits of ``people``, person by person."""
    parts = [np.arange(*visits.start[person : person + 2]) for person in people]
    return np.concatenate([np.empty(0, np.int64), *parts])


class Layout:
    """The places of all weights in the one vector that devices and server share."""

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
        """Return weights by name, (devices, ...) each, of vectors (devices, size)."""
        parts = torch.split(copies, self._sizes, dim=1)
        return {
            name: part.reshape(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def first(self, generator: torch.Generator) -> Tensor:
        """Return the initial vector: (size,)."""
        vector = torch.zeros(1, self.size)
        for name, view in self.views(vector).items():
            if not name.endswith("bias"):
                drawn = torch.randn(view.shape, generator=generator)
                view.copy_(drawn / math.sqrt(view.shape[-1]))
        return vector[0]


def log_odds(
    weights: Weights, embedding: Tensor, own: Tensor, graphs: LocalGraphs
) -> Tensor:
    """Return each device's log odds, (devices,), with weights from ``Layout.views``.

    ``embedding`` (devices, most, width) of the items, ``own`` (devices, width).
    """
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
    """Gradients of each device's own loss."""

    model: Tensor
    """(devices, size)"""
    item: Tensor
    """(devices, most, width), 0 for padding."""
    own: Tensor
    """(devices, width)"""


def gradients(
    layout: Layout,
    model: Tensor,
    embedding: Tensor,
    own: Tensor,
    graphs: LocalGraphs,
    infected: Tensor,
    base: float,
) -> Gradients:
    """Return the exact gradient of every device, each on its own copy of the weights.

    ``model`` (size,); ``infected`` (devices,) float32; ``base`` is added to log odds.
    """
    copies = model.detach().expand(len(own), -1).clone().requires_grad_()
    embedding = embedding.detach().clone().requires_grad_()
    own = own.detach().clone().requires_grad_()
    odds = log_odds(layout.views(copies), embedding, own, graphs) + base
    loss = functional.binary_cross_entropy_with_logits(odds, infected, reduction="sum")
    return Gradients(*torch.autograd.grad(loss, (copies, embedding, own)))


class Federation:
    """All devices with their helper and the server, as the training loop's learner."""

    def __init__(
        self,
        traces: Traces,
        training: Known,
        settings: FedPreGnnSettings,
        streams: Streams,
        validation: PersonIds,
        results: Mask,
    ) -> None:
        self._settings, self._streams = settings, streams
        self._training, self._validation, self._results = training, validation, results
        self.visits = visits = Visits.of(traces, settings.item)
        exposed = settings.input == "exposure"
        self.layout = Layout(settings.width, 2 if exposed else settings.width)
        # All devices send under one fresh key, with random pseudonyms and in random
        # order; ``_request`` and ``_pseudonym`` are known to the device alone.
        rng = streams.numpy("fedpregnn post")
        tokens = tokens_of(visits.items, rng.bytes(32))
        self._pseudonym = rng.permutation(visits.people)
        order = rng.permutation(len(visits.item))
        self._request = np.argsort(order)
        sender = np.repeat(self._pseudonym, np.diff(visits.start))[order]
        self._helper = TokenHelper(
            sender, tokens[visits.item[order]], settings.partners
        )
        self.clients = np.flatnonzero(training.tested)
        self._infected = torch.from_numpy((training.status == 1).astype(np.float32))
        rng = streams.numpy("fedpregnn pseudo items")
        self.covers: dict[int, Cover] = {}
        if settings.private:
            self.covers = {
                person: cover_of(
                    visits.item[visits.of_person(person)],
                    visits.items,
                    settings.pseudo_items,
                    rng,
                )
                for person in self.clients.tolist()
            }
        share = (training.status == 1).sum() / training.tested.sum()
        self._base = float(logit(np.clip(share, 1e-3, 1 - 1e-3)))
        self._uploads = torch.zeros(visits.people, dtype=torch.int64)

    def restart(self, rate_number: int, learning_rate: float) -> None:
        self._rate_number, self._rate = rate_number, learning_rate
        generator = torch.Generator()
        name = f"fedpregnn first {rate_number}"
        generator.manual_seed(self._streams.seed_for(name))
        visits, width = self.visits, self._settings.width
        self._state = {
            "model": self.layout.first(generator),
            "items": 0.1 * torch.randn((visits.items, width), generator=generator),
            "own": torch.zeros(visits.people, width),
        }
        self._sent: Tensor | None = None

    def step(self, number: int) -> None:
        """Make one round: local gradients, own vectors, uploads, the server's step."""
        settings, state = self._settings, self._state
        if number % settings.expand_every == 0:
            self._sent = torch.from_numpy(
                self._embeddings(state["own"], self._training)
            )
            self._expand(number)
        parts = math.ceil(len(self.clients) / settings.clients_per_round)
        pass_number, turn = divmod(number, parts)
        name = f"fedpregnn pass {self._rate_number} {pass_number}"
        rng = self._streams.numpy(name)
        people = np.array_split(rng.permutation(self.clients), parts)[turn]
        who = torch.from_numpy(people)
        graphs = self._graphs(people)
        found = gradients(
            self.layout,
            state["model"],
            state["items"][graphs.item],
            state["own"][who],
            graphs,
            self._infected[who],
            self._base,
        )
        state["own"][who] -= settings.own_rate * found.own
        if settings.private:
            name = f"fedpregnn noise {self._rate_number} {number}"
            rng = self._streams.numpy(name)
            model, item = found.model.numpy(), found.item.numpy()
            uploads = (
                release(
                    model[place],
                    item[place, : np.count_nonzero(self.covers[person].true)],
                    self.covers[person],
                    settings.noise,
                    rng,
                )
                for place, person in enumerate(people.tolist())
            )
            total = server_sum(uploads, state["items"])
        else:
            if not bool(torch.isfinite(found.model).all()):
                raise DataError(
                    "a gradient is not finite: choose smaller learning_rates"
                )
            row = torch.zeros_like(state["items"])
            row.index_add_(0, graphs.item[graphs.present], found.item[graphs.present])
            total = {"model": found.model.sum(0), "items": row}
        for name, gradient in total.items():
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
        state = {**self._state, "uploads": self._uploads}
        if self._sent is not None:
            state |= {"sent": self._sent, "expanded": torch.tensor(self._expanded)}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._state = {name: state[name] for name in self._state}
        self._uploads = state["uploads"]
        if "sent" in state:
            self._sent = state["sent"]
            self._expand(int(state["expanded"]))

    def final_odds(self, parameters: dict[str, Tensor], known: Known) -> Floats:
        """Return everybody's log odds after an expansion with the results ``known``."""
        sent = self._embeddings(parameters["own"], known)
        self._receive(sent, "at the end")
        return self._odds(parameters, np.arange(self.visits.people))

    def privacy(self) -> dict[str, Any]:
        """Return the privacy of the device that sent the most uploads."""
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

    def _embeddings(self, own: Tensor, known: Known) -> Rows:
        """Return what each device sends the helper: (people, sent width)."""
        if self._settings.input == "embedding":
            return own.numpy().copy()
        kinds = np.stack([known.status == 1, known.status == 0], axis=1)
        return kinds.astype(np.float32)

    def _expand(self, number: int) -> None:
        """Send all embeddings to the helper, as in round ``number``."""
        if self._sent is not None:
            self._expanded = number
            expansion = number // self._settings.expand_every
            self._receive(self._sent.numpy(), f"{self._rate_number} {expansion}")

    def _receive(self, sent: Rows, name: str) -> None:
        by_pseudonym = np.empty_like(sent)
        by_pseudonym[self._pseudonym] = sent
        rng = self._streams.numpy(f"fedpregnn partners {name}")
        self._helper.receive(by_pseudonym, rng)

    def _graphs(self, people: Ids) -> LocalGraphs:
        requests = self._request[visits_of(self.visits, people)]
        return LocalGraphs.of(self.visits, people, self._helper.answer(requests))

    def _odds(self, parameters: dict[str, Tensor], people: Ids) -> Floats:
        """Return log odds of ``people`` with the partners of the last expansion."""
        found = [np.empty(0)]
        for some in np.split(
            people, range(_PEOPLE_AT_ONCE, len(people), _PEOPLE_AT_ONCE)
        ):
            graphs = self._graphs(some)
            weights = self.layout.views(parameters["model"].expand(len(some), -1))
            embedding = parameters["items"][graphs.item]
            own = parameters["own"][torch.from_numpy(some)]
            odds = log_odds(weights, embedding, own, graphs) + self._base
            found.append(odds.double().numpy())
        return np.concatenate(found)


def server_sum(uploads: Iterable[Upload], items: Tensor) -> dict[str, Tensor]:
    """Return the sum of what devices sent: all that the server makes of a round.

    ``items`` (items, width) is the table of embeddings, for its shape.
    """
    model: Rows | float = 0.0
    row = np.zeros(items.shape, np.float32)
    for upload in uploads:
        model = model + upload.model
        # No device names an item twice, so adding in place misses nothing.
        row[upload.item] += upload.row
    return {
        "model": torch.from_numpy(np.asarray(model, np.float32)),
        "items": torch.from_numpy(row),
    }


def _fit_curve(odds: Floats, infected: Mask) -> LogisticCurve:
    """Fit Platt scaling with a prior as strong as one person for no change."""
    return fit_logistic(
        odds,
        infected,
        slope_mean=1.0,
        slope_sd=1.0,
        offset_sd=1.0,
        least_slope=math.exp(-5),
    )


def cross_calibrated(odds: Floats, infected: Mask) -> Probabilities:
    """Return the risk of each person by a scaling fitted without that person's result.

    Two halves, each with its share of positives, scale each other.
    """
    half = np.empty(len(odds), np.int64)
    for kind in (True, False):
        some = np.flatnonzero(infected == kind)
        half[some] = np.arange(len(some)) % 2
    risk = np.empty(len(odds))
    for number in (0, 1):
        mine, others = half == number, half != number
        risk[mine] = _fit_curve(odds[others], infected[others])(odds[mine])
    return risk
