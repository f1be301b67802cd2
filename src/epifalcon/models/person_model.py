"""Person model, as computed on each device between exchanges with the server.

h0 is a trainable row per person, or the embedding of the known status. Each layer
computes a = P h and h' = dropout(relu(W [a || s] + b)), with the operator
P = Dv^-1 H De^-1 H' (paper, "Detached Hypergraph Propagation") and s the mean region
state of the person's edges, followed by a linear head, softmax and cross-entropy
("Prediction and Optimization"). ``head="lstm"`` inserts the LSTM cell of the authors'
program before the linear head.

P mixes the rows of different people, so no device can compute it alone.
``training_pass`` is therefore a generator: it yields the rows to upload and receives
the aggregated rows, with or without noise. The backward pass is written by hand:
DPSGD needs per-person inputs and output gradients, and exchanges interrupt it.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
from epifalcon.hypergraph.propagation import edge_to_node
from epifalcon.mobility.clock import Clock
from epifalcon.models.settings import FalconSettings

Parameters = Mapping[str, Tensor]
CLASSES = 2
STATUSES = 3
"""Number of status columns: negative, positive, unknown."""
CELL_WIDTH = 16
"""Width of the LSTM cell."""
ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
ADAM |= {"amsgrad": False, "maximize": False}
_COLUMNS = 8
_HALF = np.uint64(32)
_LOW_BITS = np.uint64(0xFFFFFFFF)


class RowTransform:
    """Transformation of rows before and after an exchange; identity by default."""

    def encode(self, rows: Tensor) -> Tensor:
        """Return the rows to upload, (people, width)."""
        return rows

    def decode(self, received: Tensor) -> Tensor:
        """Return the rows as the model uses them, from the received ones."""
        return received

    def backward(self, rows: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Backpropagate ``gradient`` through ``decode`` and ``encode`` at ``rows``."""
        return gradient


UNCHANGED = RowTransform()


@dataclass(frozen=True, eq=False)
class Exchange:
    """Rows to be aggregated over the edges of each person.

    With ``upload``, the result is the mean over the person's edges of the mean of each
    edge. With ``return``, it is the sum over the edges of (1/n_e) times the sum of each
    edge, which applies the transposed operator to gradients.
    """

    kind: Literal["upload", "return"]
    layer: int
    rows: Tensor

    @property
    def channel(self) -> str:
        """Return the name of the ledger channel."""
        return f"{self.kind}/{self.layer}"


@dataclass(frozen=True, eq=False)
class LocalInputs:
    """Inputs of a pass for the people of one device or site."""

    rows: Tensor
    """Input rows h0 after dropout, (people, width)."""
    state: Tensor | None
    """Mean region state s, (people, state width); None without region model."""
    target: NDArray[np.int8]
    """Label 1 or 0, or -1 for people excluded from the loss, (people,)."""
    share: Tensor
    """1 / deg(u), or 0 for people without edges, (people, 1)."""
    self_weight: Tensor
    """Diagonal P_uu = (1/deg u) sum over e of 1/n_e, (people, 1)."""
    keep: tuple[Tensor | None, ...]
    """Dropout factors of each layer, (people, width): 0 or 1/(1 - dropout); None for no
    dropout."""


@dataclass(frozen=True, eq=False)
class LinearActivations:
    """Per-person inputs and output gradients of one linear map.

    Gradients are those of each person's own loss, not of the mean loss; the sum of
    the outer products is the gradient of the weight.
    """

    weight: str
    bias: str | None
    inputs: Tensor
    outputs: Tensor

    def weight_gradient(self) -> Tensor:
        """Return the sum of the outer products, (outputs, inputs)."""
        return self.outputs.T @ self.inputs


@dataclass(frozen=True, eq=False)
class PassResult:
    """Result of a training pass; it stays on the device."""

    uses: tuple[LinearActivations, ...]
    row_gradient: Tensor
    """Gradient of the summed loss with respect to ``LocalInputs.rows``, (people,
    width)."""
    loss: float
    """Class-weighted sum of losses over the people with a target."""
    weight: float
    """Sum of the class weights of the people with a target."""
    received: Tensor
    """Rows received by the last layer, (people, width)."""


@dataclass(frozen=True)
class ExchangeRules:
    """Options of the exchange of rows and gradients."""

    upload: RowTransform = UNCHANGED
    returned: RowTransform = UNCHANGED
    exchanged: bool = True
    """True if gradients are exchanged; otherwise other people's rows are constants."""


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
        # The cell starts from a zero state, so it needs no forget gate.
        shapes["cell"] = (3 * CELL_WIDTH, settings.width)
        shapes["head"] = (CLASSES, CELL_WIDTH)
    parameters: dict[str, Tensor] = {}
    for name, (outputs, inputs) in shapes.items():
        bound = inputs**-0.5
        weight, bias = (
            torch.from_numpy(rng.uniform(-bound, bound, shape)).to(settings.dtype)
            for shape in ((outputs, inputs), (outputs,))
        )
        parameters |= {f"{name}.weight": weight, f"{name}.bias": bias}
    if settings.input == "status":
        drawn = rng.standard_normal((settings.width, STATUSES))
        parameters["input.weight"] = torch.from_numpy(drawn).to(settings.dtype)
    return parameters


def training_pass(
    parameters: Parameters,
    local: LocalInputs,
    rules: ExchangeRules,
    weights: Tensor | None = None,
) -> Generator[Exchange, Tensor, PassResult]:
    """Run the forward and backward pass of one round.

    Yields each ``Exchange``; the aggregated rows must be sent to the generator.
    ``weights`` (2,) are class weights.
    """
    rows, uses = local.rows, []
    entered, read = [rows], []
    received = rows
    for layer, keep in enumerate(local.keep):
        received = yield Exchange("upload", layer, rules.upload.encode(rows))
        read.append(beside(rules.upload.decode(received), local.state))
        rows = layer_forward(parameters, layer, read[layer], keep)
        entered.append(rows)
    top, gates = cell_forward(parameters, rows)
    logits = torch.addmm(parameters["head.bias"], top, parameters["head.weight"].T)
    loss, weight, gradient = loss_and_gradient(logits, local.target, weights)
    uses.append(LinearActivations("head.weight", "head.bias", top, gradient))
    gradient = gradient @ parameters["head.weight"]
    if gates is not None:
        with torch.enable_grad():
            leaf = gates.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(_cell_output(leaf), leaf, gradient)
        uses.append(LinearActivations("cell.weight", "cell.bias", rows, gradient))
        gradient = gradient @ parameters["cell.weight"]
    for layer in reversed(range(len(local.keep))):
        name, activation = f"layer{layer}", entered[layer + 1]
        outward = torch.ops.aten.threshold_backward(gradient, activation, 0)
        if (keep := local.keep[layer]) is not None:
            outward *= keep
        weight_name, bias_name = f"{name}.weight", f"{name}.bias"
        uses.append(LinearActivations(weight_name, bias_name, read[layer], outward))
        inward = outward @ parameters[weight_name][:, : entered[layer].shape[1]]
        if rules.exchanged:
            inward *= local.share
            sent = rules.returned.encode(inward)
            returned = yield Exchange("return", layer, sent)
            gradient = rules.returned.decode(returned)
        else:
            inward *= local.self_weight
            gradient = inward
        gradient = rules.upload.backward(entered[layer], gradient)
    return PassResult(tuple(uses), gradient, loss, weight, received)


def scoring_pass(
    parameters: Parameters, local: LocalInputs, rules: ExchangeRules
) -> Generator[Exchange, Tensor, Tensor]:
    """Run the forward pass without dropout; return the rows received last."""
    rows = received = local.rows
    for layer in range(len(local.keep)):
        received = yield Exchange("upload", layer, rules.upload.encode(rows))
        inputs = beside(rules.upload.decode(received), local.state)
        rows = layer_forward(parameters, layer, inputs, None)
    return received


def scores(
    parameters: Parameters, layers: int, received: Tensor, state: Tensor | None
) -> Tensor:
    """Return infection probabilities (people,) from the inputs of the last layer."""
    rows = layer_forward(parameters, layers - 1, beside(received, state), None)
    return torch.softmax(head(parameters, rows), dim=1)[:, 1]


def state_of_people(states: Tensor, inc: Incidence, clock: Clock) -> Tensor:
    """Return the mean region state over each person's true edges, (people, width).

    ``states`` (regions, days, width) come from the region model; an edge has the state
    of the day on which its window begins. The paper concatenates it to each edge's row
    before people average over their edges ("Cooperative Coupling", algorithm 2), which
    is equivalent. People without edges get zeros.
    """
    if states.ndim != 3 or states.shape[:2] != (inc.regions, clock.days):
        raise DataError(
            f"region states have shape {tuple(states.shape)}, expected "
            f"({inc.regions}, {clock.days}, width): made for another city?"
        )
    if not bool(torch.isfinite(states).all()):
        raise DataError("region states hold NaN or infinity, expected finite numbers")
    window_slots = clock.slots // inc.windows
    day = inc.edge_key // inc.regions * window_slots // clock.slots_per_day
    place = torch.from_numpy(inc.edge_region * np.int64(clock.days) + day)
    flat = states.detach().reshape(-1, states.shape[2])
    # A few columns at a time, to avoid storing full rows for all edges.
    parts = [edge_to_node(part[place], inc) for part in torch.split(flat, _COLUMNS, 1)]
    return torch.cat(parts, dim=1)


def beside(received: Tensor, state: Tensor | None) -> Tensor:
    """Return received rows and region state, concatenated: [a || s]."""
    return received if state is None else torch.cat([received, state], dim=1)


def layer_forward(
    parameters: Parameters, layer: int, inputs: Tensor, keep: Tensor | None
) -> Tensor:
    """Return dropout(relu(W x + b)), (people, width)."""
    bias = parameters[f"layer{layer}.bias"]
    out = torch.addmm(bias, inputs, parameters[f"layer{layer}.weight"].T)
    torch.relu_(out)
    return out if keep is None else out.mul_(keep)


def head(parameters: Parameters, rows: Tensor) -> Tensor:
    """Return the two logits of each person, (people, 2)."""
    top, _ = cell_forward(parameters, rows)
    return torch.addmm(parameters["head.bias"], top, parameters["head.weight"].T)


def cell_forward(parameters: Parameters, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the inputs of the linear head, and the gates of the LSTM cell, if any.

    With a cell, these are its outputs (people, 16) and pre-activation gates (people,
    48); without, the rows and None.
    """
    if "cell.weight" not in parameters:
        return rows, None
    gates = torch.addmm(parameters["cell.bias"], rows, parameters["cell.weight"].T)
    return _cell_output(gates), gates


def _cell_output(gates: Tensor) -> Tensor:
    """Compute one LSTM step from a zero state: o * tanh(i * g)."""
    input_gate, candidate, output_gate = gates.chunk(3, dim=1)
    return output_gate.sigmoid() * (input_gate.sigmoid() * candidate.tanh()).tanh()


def loss_and_gradient(
    logits: Tensor, target: NDArray[np.int8], weights: Tensor | None
) -> tuple[float, float, Tensor]:
    """Return summed loss, sum of weights and gradient (people, 2); -1 is masked."""
    known = np.flatnonzero(target >= 0)
    goal = target[known]
    weight = np.ones(len(goal)) if weights is None else weights.double().numpy()[goal]
    negative, positive = logits.numpy()[known].astype(np.float64).T
    # The caller raises if the loss is not finite.
    with np.errstate(invalid="ignore"):
        margin = positive - negative
        loss = weight @ np.logaddexp(0, np.where(goal == 1, -margin, margin))
    gradient = torch.zeros_like(logits)
    gradient.numpy()[known, 1] = weight * (expit(margin) - goal)
    gradient[:, 0] = -gradient[:, 1]
    return float(loss), float(weight.sum()), gradient


def status_inputs(status: NDArray[np.int8], dtype: torch.dtype) -> Tensor:
    """Return the one-hot encoding of negative, positive, unknown: (people, 3)."""
    place = np.where(status < 0, STATUSES - 1, status).astype(np.int64)
    return torch.nn.functional.one_hot(torch.from_numpy(place), STATUSES).to(dtype)


def dropout_mask(
    person: NDArray[np.int64], width: int, dropout: float, key: int
) -> NDArray[np.float32]:
    """Return dropout factors (people, width), a function of key, person and column."""
    out = np.empty((len(person), width), np.float32)
    limit, factor = round(dropout * 2**32), np.float32(1 / (1 - dropout))
    _fill_dropout(person, np.uint64(key), limit, factor, out)
    return out


@compiled
def _fill_dropout(
    person: NDArray[np.int64],
    key: np.uint64,
    limit: int,
    factor: np.float32,
    out: NDArray[np.float32],
) -> None:
    width, zero = out.shape[1], np.float32(0)
    for row in range(len(person)):
        base = combine(key, np.uint64(person[row]))
        for pair in range(width // 2):
            word = mix(base + np.uint64(2 * pair) * GOLDEN)
            high, low = np.int64(word >> _HALF), np.int64(word & _LOW_BITS)
            out[row, 2 * pair] = factor if high >= limit else zero
            out[row, 2 * pair + 1] = factor if low >= limit else zero
        if width % 2:
            word = mix(base + np.uint64(width - 1) * GOLDEN)
            out[row, width - 1] = factor if np.int64(word >> _HALF) >= limit else zero


@dataclass(frozen=True, eq=False)
class Moments:
    """Adam's running means of a gradient and of its square."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, value: Tensor) -> "Moments":
        """Return the moments of a parameter before the first step."""
        return cls(torch.zeros_like(value), torch.zeros_like(value))


def adam_step(
    values: Parameters,
    gradients: Parameters,
    moments: Mapping[str, Moments],
    step: int,
    rule: FalconSettings,
) -> tuple[dict[str, Tensor], dict[str, Moments]]:
    """Return values and moments after one step of Adam; the inputs are not modified.

    ``step`` counts from 1. The update is elementwise, so updating an embedding on its
    device gives the same result as one central Adam.
    """
    new = {name: value.clone() for name, value in values.items()}
    old = ((name, moments[name]) for name in values)
    after = {name: Moments(m.first.clone(), m.second.clone()) for name, m in old}
    adam(
        list(new.values()),
        [gradients[name] for name in new],
        [moment.first for moment in after.values()],
        [moment.second for moment in after.values()],
        [],
        [torch.tensor(step - 1.0) for _ in new],
        fused=True,
        lr=rule.learning_rate_at(step),
        weight_decay=rule.weight_decay,
        **ADAM,
    )
    return new, after
