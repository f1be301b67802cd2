"""The engine to be timed, and the same model built from PyG's layers."""

import numpy as np
import torch
from torch import Tensor, nn

from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.privacy_plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PrivacySettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.traces import Traces
from epifalcon.models.settings import FalconSettings

EVERYTHING = PrivacySettings(mode="paper", upload_sigma=0.1, gradient_sigma=0.1)


def bare_engine(
    traces: Traces, inc: Incidence, settings: FalconSettings
) -> VectorisedEngine:
    """Return an engine with two layers, without privacy and region model."""
    plan = PrivacyPlan.of(PrivacySettings(), settings, releases_of(traces.clock), 0)
    return VectorisedEngine(
        Cohort(np.arange(inc.people), inc, status(inc)), settings, plan, seed=0
    )


def full_engine(traces: Traces, inc: Incidence, copies: int) -> VectorisedEngine:
    """Return an engine with noise, pseudo copies, region states and DPSGD."""
    settings = FalconSettings()
    # Pseudo traces are other people's traces: the time does not depend on it.
    pseudo = [
        Incidence.of(
            Traces(
                np.ascontiguousarray(np.roll(traces.by_slot, number + 1, axis=1)),
                traces.clock,
                traces.regions,
            )
        )
        for number in range(copies)
    ]
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(inc.people, settings.width, generator=generator)
    plan = PrivacyPlan.of(EVERYTHING, settings, releases_of(traces.clock), copies)
    cohort = Cohort(np.arange(inc.people), inc, status(inc), state, tuple(pseudo))
    return VectorisedEngine(cohort, settings, plan, seed=0)


def status(inc: Incidence) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Return statuses with the paper's shares: 40 % tested, 20 % of them positive."""
    rng = np.random.default_rng(0)
    sampled = rng.choice([-1, 0, 1], inc.people, p=[0.6, 0.32, 0.08])
    return sampled.astype(np.int8)


class PygModel:
    """The engine's model built from PyG's ``HypergraphConv``.

    ``tensors`` are those of the engine's state: both compute the same loss and the
    same gradients. PyG multiplies with the weights before it propagates, which is
    the same product.
    """

    def __init__(self, inc: Incidence, tensors: dict[str, Tensor]) -> None:
        from torch_geometric.nn import HypergraphConv

        self.rows = tensors["home/rows"].clone().requires_grad_()
        names = sorted(name for name in tensors if name.startswith("parameter/"))
        self.named = {
            name.removeprefix("parameter/"): tensors[name].clone().requires_grad_()
            for name in names
        }
        self.layers = []
        for number in range(2):
            weight = self.named[f"layer{number}.weight"]
            layer = HypergraphConv(weight.shape[1], weight.shape[0])
            layer.lin.weight = nn.Parameter(weight.detach())
            layer.bias = nn.Parameter(self.named[f"layer{number}.bias"].detach())
            self.layers.append(layer)
        self.target = torch.from_numpy(status(inc).astype(np.int64))
        self.edges = inc.edges
        person = torch.from_numpy(inc.by_edge.index.astype(np.int64))
        edge = torch.repeat_interleave(torch.from_numpy(inc.size.astype(np.int64)))
        self.by_edge = torch.stack([person, edge])

    def round(self) -> dict[str, Tensor]:
        """Return loss, and gradients of the mean loss by the engine's names."""
        x = self.rows
        for layer in self.layers:
            x = torch.relu(layer(x, self.by_edge, num_edges=self.edges))
        logits = nn.functional.linear(
            x, self.named["head.weight"], self.named["head.bias"]
        )
        loss = nn.functional.cross_entropy(logits, self.target, ignore_index=-1)
        wanted = {"home/rows": self.rows}
        for number, layer in enumerate(self.layers):
            wanted[f"layer{number}.weight"] = layer.lin.weight
            wanted[f"layer{number}.bias"] = layer.bias
        wanted |= {name: self.named[name] for name in ("head.weight", "head.bias")}
        found = torch.autograd.grad(loss, list(wanted.values()))
        return {"loss": loss.detach()} | dict(zip(wanted, found, strict=True))


def require_same(inc: Incidence, traces: Traces) -> None:
    """Exit unless one round of both gives the same loss and gradients."""
    settings = FalconSettings(dropout=0.0)
    engine = bare_engine(traces, inc, settings)
    before = engine.state().tensors
    theirs = PygModel(inc, before).round()
    ours = {"loss": torch.tensor(engine.step())}
    after = engine.state().tensors
    for name in theirs.keys() - {"loss"}:
        inside = name if name.startswith("home/") else f"parameter/{name}"
        first = after[
            inside.replace("home/rows", "home/first").replace("parameter/", "first/")
        ]
        # After one step Adam's mean is a tenth of the gradient with weight decay.
        ours[name] = first / 0.1 - settings.weight_decay * before[inside]
    for name, other in theirs.items():
        far = torch.linalg.vector_norm(ours[name] - other)
        if far > 1e-3 * torch.linalg.vector_norm(other):
            raise SystemExit(f"round: PyG's {name} differs from ours")
