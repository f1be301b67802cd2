"""The person model, as each device computes it between exchanges with the others.

h0 is a free row of each person, or the embedding of its known status. Then, for
each layer, a = P h and h' = dropout(relu(W [a || s] + b)), with the operator
P = Dv^-1 H De^-1 H' (paper, "Detached Hypergraph Propagation") and s the region
state of the person's places; last a linear head, softmax and cross-entropy
("Prediction and Optimization"). ``head="lstm"`` puts the LSTM cell of the authors'
program before the linear head.

P joins people, so nobody can compute it alone. ``training_pass`` is therefore a
generator: it yields the rows that go to the edges and is sent what comes back, in the
clear or with noise. The backward half is written out, because DPSGD needs inputs and
output gradients of every person, and exchanges interrupt it.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from torch.optim.adam import adam

from epifalcon._numba import compiled
from epifalcon._random import GOLDEN, combine, mix
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagate import edge_to_node
from epifalcon.mobility.clock import Clock
from epifalcon.models.settings import FalconSettings

Parameters = Mapping[str, Tensor]
CLASSES = 2
STATUSES = 3
"""Negative, positive, unknown: the columns of a status input."""
CELL_WIDTH = 16
"""Of the LSTM cell."""
_COLUMNS = 8
_HALF = np.uint64(32)
_LOW_BITS = np.uint64(0xFFFFFFFF)


class Part:
    """What happens to rows on their way out and back; by default nothing."""

    def send(self, rows: Tensor) -> Tensor:
        """Return the rows that leave, (people, width)."""
        return rows

    def read(self, received: Tensor) -> Tensor:
        """Return what came back, as the model reads it."""
        return received

    def pull(self, rows: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gradient of ``rows`` from that of what their ``send`` led to."""
        return gradient


UNCHANGED = Part()


@dataclass(frozen=True, eq=False)
class Exchange:
    """Rows to be summed at the person's edges.

    ``upload``: what comes back is the mean over the person's edges of the mean
    of each edge. ``return``: the sum over the edges of (1/n_e) times the edge's
    sum, since the gradient's way is the transposed one.
    """

    kind: Literal["upload", "return"]
    layer: int
    rows: Tensor

    @property
    def channel(self) -> str:
        """Return its name in the ledger."""
        return f"{self.kind}/{self.layer}"


@dataclass(frozen=True, eq=False)
class HomeInputs:
    """Inputs of the pass for the people of a device or site; none leaves as it is."""

    rows: Tensor
    """(people, width) h0 as it enters, after dropout."""
    state: Tensor | None
    """(people, state width) s, the mean region state; None without region model."""
    target: NDArray[np.int8]
    """(people,) 1, 0, or -1 for people without a part in the loss."""
    share: Tensor
    """(people, 1) 1 / deg(u), 0 for people without edges."""
    self_weight: Tensor
    """(people, 1) c_u = P_uu = (1/deg u) sum over e of 1/n_e."""
    keep: tuple[Tensor | None, ...]
    """One for each layer, (people, width): 0 or 1/(1 - dropout); None for no
    dropout."""


@dataclass(frozen=True, eq=False)
class LinearUse:
    """One linear map as each person used it: inputs, and gradients of outputs.

    Gradients are of the people's own losses, not of their mean; summed outer
    products are the gradient of the weight.
    """

    weight: str
    bias: str | None
    inputs: Tensor
    outputs: Tensor

    def weight_gradient(self) -> Tensor:
        """Return the summed outer products, (outputs, inputs)."""
        return self.outputs.T @ self.inputs


@dataclass(frozen=True, eq=False)
class PassResult:
    """The result of a training pass, which stays on the device."""

    uses: tuple[LinearUse, ...]
    row_gradient: Tensor
    """(people, width) of the summed loss with respect to ``HomeInputs.rows``."""
    loss: float
    """Sum over the people with a target, by class weight."""
    weight: float
    """Sum of their weights."""
    received: Tensor
    """(people, width) what the last layer received."""


@dataclass(frozen=True)
class Way:
    """How rows and gradients travel."""

    upload: Part = UNCHANGED
    returned: Part = UNCHANGED
    exchanged: bool = True
    """Whether gradients travel too; otherwise others count as constants."""


def initial_parameters(
    settings: FalconSettings, state_width: int, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Draw weights (outputs, inputs) and biases like ``torch.nn.Linear``."""
    shapes = {
        f"layer{number}": (settings.width, settings.width + state_width)
        for number in range(settings.layers)
    }
    shapes["head"] = (CLASSES, settings.width)
    if settings.head == "lstm":
        # Without a state before it a cell has no use for its forget gate.
        shapes["cell"] = (3 * CELL_WIDTH, settings.width)
        shapes["head"] = (CLASSES, CELL_WIDTH)
    made: dict[str, Tensor] = {}
    for name, (outputs, inputs) in shapes.items():
        bound = inputs**-0.5
        weight, bias = (
            torch.from_numpy(rng.uniform(-bound, bound, shape)).to(settings.dtype)
            for shape in ((outputs, inputs), (outputs,))
        )
        made |= {f"{name}.weight": weight, f"{name}.bias": bias}
    if settings.input == "status":
        drawn = rng.standard_normal((settings.width, STATUSES))
        made["input.weight"] = torch.from_numpy(drawn).to(settings.dtype)
    return made


def training_pass(
    parameters: Parameters, home: HomeInputs, way: Way, weights: Tensor | None = None
) -> Generator[Exchange, Tensor, PassResult]:
    """Run forward and backward of one round.

    Yields each ``Exchange`` and must be sent what came back for its rows.
    ``weights``, (2,), are class weights.
    """
    rows, uses = home.rows, []
    entered, read = [rows], []
    received = rows
    for layer, keep in enumerate(home.keep):
        received = yield Exchange("upload", layer, way.upload.send(rows))
        read.append(beside(way.upload.read(received), home.state))
        rows = layer_forward(parameters, layer, read[layer], keep)
        entered.append(rows)
    top, gates = cell_forward(parameters, rows)
    logits = torch.addmm(parameters["head.bias"], top, parameters["head.weight"].T)
    loss, weight, gradient = loss_and_gradient(logits, home.target, weights)
    uses.append(LinearUse("head.weight", "head.bias", top, gradient))
    gradient = gradient @ parameters["head.weight"]
    if gates is not None:
        gradient = _cell_gradient(gates, gradient)
        uses.append(LinearUse("cell.weight", "cell.bias", rows, gradient))
        gradient = gradient @ parameters["cell.weight"]
    for layer in reversed(range(len(home.keep))):
        name, opened = f"layer{layer}", entered[layer + 1]
        outward = torch.ops.aten.threshold_backward(gradient, opened, 0)
        if (keep := home.keep[layer]) is not None:
            outward *= keep
        uses.append(LinearUse(f"{name}.weight", f"{name}.bias", read[layer], outward))
        width = entered[layer].shape[1]
        inward = outward @ parameters[f"{name}.weight"][:, :width]
        if way.exchanged:
            inward *= home.share
            sent = way.returned.send(inward)
            came = yield Exchange("return", layer, sent)
            gradient = way.returned.read(came)
        else:
            inward *= home.self_weight
            gradient = inward
        gradient = way.upload.pull(entered[layer], gradient)
    return PassResult(tuple(uses), gradient, loss, weight, received)


def scoring_pass(
    parameters: Parameters, home: HomeInputs, way: Way
) -> Generator[Exchange, Tensor, Tensor]:
    """Run the forward half without dropout; return the last ``received``."""
    rows = received = home.rows
    for layer in range(len(home.keep)):
        received = yield Exchange("upload", layer, way.upload.send(rows))
        inputs = beside(way.upload.read(received), home.state)
        rows = layer_forward(parameters, layer, inputs, None)
    return received


def scores(
    parameters: Parameters, layers: int, received: Tensor, state: Tensor | None
) -> Tensor:
    """Return the probability of infection from what the last layer read, (people,)."""
    rows = layer_forward(parameters, layers - 1, beside(received, state), None)
    return torch.softmax(head(parameters, rows), dim=1)[:, 1]


def state_of_people(states: Tensor, inc: Incidence, clock: Clock) -> Tensor:
    """Return the mean region state of each person's true edges, (people, width).

    ``states`` (regions, days, width) come from the region model; an edge has the state
    of the day in which its window begins. The paper concatenates it to each edge's row
    before people average over their edges ("Cooperative Coupling", algorithm 2), which
    is the same. People without edges get zeros.
    """
    if states.ndim != 3 or states.shape[:2] != (inc.regions, clock.days):
        raise DataError(
            f"region states have shape {tuple(states.shape)}, expected "
            f"({inc.regions}, {clock.days}, width): made for another city?"
        )
    if clock.slots % inc.windows:
        raise DataError(
            f"{inc.windows} windows do not divide the clock's {clock.slots} slots"
        )
    if not bool(torch.isfinite(states).all()):
        raise DataError("region states hold NaN or infinity, expected finite numbers")
    window_slots = clock.slots // inc.windows
    day = inc.edge_window.astype(np.int64) * window_slots // clock.slots_per_day
    place = torch.from_numpy(inc.edge_region * np.int64(clock.days) + day)
    flat = states.detach().reshape(-1, states.shape[2])
    # A few columns at a time: all edges at once would take a row for each.
    parts = [edge_to_node(some[place], inc) for some in torch.split(flat, _COLUMNS, 1)]
    return torch.cat(parts, dim=1)


def beside(received: Tensor, state: Tensor | None) -> Tensor:
    """[a || s]: the region state beside what came from the edges."""
    return received if state is None else torch.cat([received, state], dim=1)


def layer_forward(
    parameters: Parameters, layer: int, inputs: Tensor, keep: Tensor | None
) -> Tensor:
    """dropout(relu(W x + b)), (people, width)."""
    bias = parameters[f"layer{layer}.bias"]
    out = torch.addmm(bias, inputs, parameters[f"layer{layer}.weight"].T)
    torch.relu_(out)
    return out if keep is None else out.mul_(keep)


def head(parameters: Parameters, rows: Tensor) -> Tensor:
    """Return the two logits of each person, (people, 2)."""
    top, _ = cell_forward(parameters, rows)
    return torch.addmm(parameters["head.bias"], top, parameters["head.weight"].T)


def cell_forward(parameters: Parameters, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what the linear head reads, and the gates of an LSTM cell if any.

    With a cell, (people, 16) and the gates (people, 48) before their nonlinearities;
    without one, the rows and None.
    """
    if "cell.weight" not in parameters:
        return rows, None
    gates = torch.addmm(parameters["cell.bias"], rows, parameters["cell.weight"].T)
    return _cell_output(gates), gates


def _cell_output(gates: Tensor) -> Tensor:
    """One step of an LSTM from a zero state: o * tanh(i * g)."""
    enter, candidate, leave = gates.chunk(3, dim=1)
    return leave.sigmoid() * (enter.sigmoid() * candidate.tanh()).tanh()


def _cell_gradient(gates: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the gates from that of the cell's output."""
    with torch.enable_grad():
        leaf = gates.detach().requires_grad_()
        (found,) = torch.autograd.grad(_cell_output(leaf), leaf, gradient)
    return found


def loss_and_gradient(
    logits: Tensor, target: NDArray[np.int8], weights: Tensor | None
) -> tuple[float, float, Tensor]:
    """Return summed loss, weight, and gradient (people, 2); a target of -1 counts 0."""
    known = np.flatnonzero(target >= 0)
    goal = target[known]
    weight = np.ones(len(goal)) if weights is None else weights.double().numpy()[goal]
    against, infected = logits.numpy()[known].astype(np.float64).T
    # The caller refuses a loss that is no number.
    with np.errstate(invalid="ignore"):
        margin = infected - against
        loss = weight @ np.logaddexp(0, np.where(goal == 1, -margin, margin))
    gradient = torch.zeros_like(logits)
    gradient.numpy()[known, 1] = weight * (expit(margin) - goal)
    gradient[:, 0] = -gradient[:, 1]
    return float(loss), float(weight.sum()), gradient


def status_inputs(status: NDArray[np.int8], dtype: torch.dtype) -> Tensor:
    """One-hot of negative, positive, unknown: (people, 3)."""
    place = np.where(status < 0, STATUSES - 1, status).astype(np.int64)
    return torch.nn.functional.one_hot(torch.from_numpy(place), STATUSES).to(dtype)


def kept(
    person: NDArray[np.int64], width: int, dropout: float, key: int
) -> NDArray[np.float32]:
    """Return dropout factors, (people, width), fixed by key, person and column."""
    if not 0 <= dropout < 1:
        raise DataError(f"dropout={dropout} must be at least 0 and less than 1")
    out = np.empty((len(person), width), np.float32)
    bar, factor = round(dropout * 2**32), np.float32(1 / (1 - dropout))
    _keep(person, np.uint64(key), bar, factor, out)
    return out


@compiled
def _keep(
    person: NDArray[np.int64],
    key: np.uint64,
    bar: int,
    factor: np.float32,
    out: NDArray[np.float32],
) -> None:
    width, zero = out.shape[1], np.float32(0)
    for row in range(len(person)):
        base = combine(key, np.uint64(person[row]))
        for pair in range(width // 2):
            word = mix(base + np.uint64(2 * pair) * GOLDEN)
            high, low = np.int64(word >> _HALF), np.int64(word & _LOW_BITS)
            out[row, 2 * pair] = factor if high >= bar else zero
            out[row, 2 * pair + 1] = factor if low >= bar else zero
        if width % 2:
            word = mix(base + np.uint64(width - 1) * GOLDEN)
            out[row, width - 1] = factor if np.int64(word >> _HALF) >= bar else zero


@dataclass(frozen=True, eq=False)
class Moments:
    """Adam's running mean and square of a gradient."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, value: Tensor) -> "Moments":
        """Of a parameter before its first step."""
        return cls(torch.zeros_like(value), torch.zeros_like(value))


def adam_step(
    values: Parameters,
    gradients: Parameters,
    moments: Mapping[str, Moments],
    step: int,
    rule: FalconSettings,
) -> tuple[dict[str, Tensor], dict[str, Moments]]:
    """Return values and moments after one step of Adam; nothing is overwritten.

    ``step`` counts from 1. Elementwise, so an embedding updated on its device moves as
    in one central Adam.
    """
    new = {name: value.clone() for name, value in values.items()}
    after = {
        name: Moments(moments[name].first.clone(), moments[name].second.clone())
        for name in values
    }
    adam(
        list(new.values()),
        [gradients[name] for name in new],
        [one.first for one in after.values()],
        [one.second for one in after.values()],
        [],
        [torch.tensor(step - 1.0) for _ in new],
        fused=True,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=rule.learning_rate_at(step),
        weight_decay=rule.weight_decay,
        eps=1e-8,
        maximize=False,
    )
    return new, after
