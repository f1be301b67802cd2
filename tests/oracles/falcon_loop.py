"""Algorithms 1 and 2 person by person, with dictionaries and autograd; noise off.

Nothing here uses the library's arithmetic: places come from the traces, edges
are dictionaries, gradients are autograd's and steps are torch's Adam, one
optimiser for the server and one in each home.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from epifalcon.mobility.traces import Traces


@dataclass
class Loop:
    """One run; all tensors in double precision."""

    traces: Traces
    status: list[int]
    parameters: dict[str, Tensor]
    embeddings: list[Tensor]
    state: Tensor | None = None
    layers: int = 2
    window_slots: int = 1
    exchanged: bool = False
    upload_clip: float | None = None
    gradient_clip: float | None = None
    learning_rate: float = 0.001
    weight_decay: float = 0.0005

    def __post_init__(self) -> None:
        self.people = range(self.traces.people)
        self.places = [self._places(person) for person in self.people]
        for value in (*self.parameters.values(), *self.embeddings):
            value.requires_grad_()
        rule = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        self.server = torch.optim.Adam(self.parameters.values(), **rule)
        self.inputs = [torch.optim.Adam([row], **rule) for row in self.embeddings]

    def _places(self, person: int) -> list[tuple[int, int]]:
        trace = self.traces.by_person[person].tolist()
        seen = {
            (slot // self.window_slots, region)
            for slot, region in enumerate(trace)
            if region != -1
        }
        return sorted(seen)

    def _upload(self, row: Tensor) -> Tensor:
        if self.upload_clip is None:
            return row
        norm = row.norm()
        return row * (self.upload_clip / norm) if norm > self.upload_clip else row

    def _aggregate(self, rows: list[Tensor]) -> tuple[dict, dict]:
        """Server: the sum and the number of uploads of each place."""
        sums: dict = defaultdict(lambda: torch.zeros_like(rows[0]))
        counts: dict = defaultdict(int)
        for person in self.people:
            for place in self.places[person]:
                sums[place] = sums[place] + self._upload(rows[person])
                counts[place] += 1
        return sums, counts

    def _receive(self, person: int, row: Tensor, sums: dict, counts: dict) -> Tensor:
        """Client: the mean over its places; others' rows are constants if local."""
        mine = self._upload(row)
        total = torch.zeros_like(row)
        for place in self.places[person]:
            edge = sums[place]
            if not self.exchanged:
                edge = edge.detach() - mine.detach() + mine
            total = total + edge / counts[place]
        mean = total / max(len(self.places[person]), 1)
        return mean if self.upload_clip is None else mean / self.upload_clip

    def _layer(self, layer: int, person: int, received: Tensor, keep) -> Tensor:
        if self.state is not None:
            received = torch.cat([received, self.state[person]])
        weight = self.parameters[f"layer{layer}.weight"]
        out = torch.relu(weight @ received + self.parameters[f"layer{layer}.bias"])
        return out if keep is None else out * keep[layer][person]

    def forward(self, keep=None) -> list[Tensor]:
        """Logits of everybody."""
        rows = list(self.embeddings)
        for layer in range(self.layers):
            sums, counts = self._aggregate(rows)
            received = [
                self._receive(person, rows[person], sums, counts)
                for person in self.people
            ]
            rows = [
                self._layer(layer, person, received[person], keep)
                for person in self.people
            ]
        weight, bias = self.parameters["head.weight"], self.parameters["head.bias"]
        return [weight @ row + bias for row in rows]

    def round(self, keep=None) -> float:
        """One round; returns the mean loss of the tested people."""
        logits = self.forward(keep)
        losses = {
            person: nn.functional.cross_entropy(
                logits[person], torch.tensor(self.status[person])
            )
            for person in self.people
            if self.status[person] >= 0
        }
        mean = sum(losses.values()) / len(losses)
        if self.exchanged and self.gradient_clip is None:
            for row in self.embeddings:
                row.grad = torch.zeros_like(row)
            mean.backward()
        else:
            self._own_gradients(losses)
        for optimiser in (self.server, *self.inputs):
            optimiser.step()
            optimiser.zero_grad()
        return mean.item()

    def _own_gradients(self, losses: dict[int, Tensor]) -> None:
        """Each person's own gradient; clipped, averaged over everybody if clipped."""
        names = list(self.parameters)
        total = {name: torch.zeros_like(self.parameters[name]) for name in names}
        for person in self.people:
            row = self.embeddings[person]
            row.grad = torch.zeros_like(row)
            if person not in losses:
                continue
            *gradients, row.grad = torch.autograd.grad(
                losses[person],
                [*self.parameters.values(), row],
                retain_graph=True,
                materialize_grads=True,
            )
            factor = 1.0
            if self.gradient_clip is not None:
                norm = torch.cat([one.flatten() for one in gradients]).norm()
                factor = min(1.0, self.gradient_clip / float(norm))
            for name, gradient in zip(names, gradients, strict=True):
                total[name] += factor * gradient
        people = len(losses) if self.gradient_clip is None else len(self.people)
        for name in names:
            self.parameters[name].grad = total[name] / people
