"""One training round of two hypergraph layers: ours against PyG's.

Both have the same people, weights and loss: rows of width 32, twice Linear,
propagation and ReLU, a linear head, cross-entropy, and the gradient of rows and
weights. PyG's layers are its ``HypergraphConv`` on the same pairs. Losses and
gradients must agree before anything is timed. Times are the best of several,
the two taken in turn, in one process on two threads; on a busy machine the
ratio of CPU times, given beside it, is the steadier one.

The bound: a propagation cannot do with less than reading each member's row once
per group, and reading and writing it once when the group passes on (by people
met: reading a row per entry), with 4 bytes for each id. That traffic, divided by
the speed at which this machine moves just such rows one after the other, is the
time it cannot avoid.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from epifalcon.hypergraph.compiled import each_part
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.hypergraph.noise import (
    Draw,
    ReceivedNoise,
    propagate_noisy,
)
from epifalcon.hypergraph.operator import Operator, propagate
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.streams import Streams
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city

WIDTH = 32
LAYERS = 2
THREADS = 2
_OURS, _THEIRS = 30, 3
_NEAR = 4096
"""Rows that stay in the second cache of a core, where groups of a region stay."""

Spread = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Model:
    """Rows, the weights of the layers and of the head, and whom to tell apart."""

    rows: Tensor
    layers: tuple[Tensor, ...]
    head: Tensor
    label: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Everything that gets a gradient."""
        return (self.rows, *self.layers, self.head)

    def round(self, spread: Spread) -> list[Tensor]:
        """Loss and gradients of one full round."""
        x = self.rows
        for number, weight in enumerate(self.layers):
            x = torch.relu(spread(x @ weight, number))
        loss = nn.functional.cross_entropy(x @ self.head, self.label)
        return [loss, *torch.autograd.grad(loss, self.parameters)]


def run(preset: str = "larger-sars", window_slots: int = 1) -> dict[str, Any]:
    """Milliseconds of a round, ours and PyG's, and how far ours is from the bound.

    In a process of its own, in which torch's idle threads sleep: otherwise they
    spin for milliseconds after each operation and take the processor from ours.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.round", preset, str(window_slots)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(preset: str, window_slots: int) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    traces = make_city(Experiment.load(preset), seed=0)
    settings = HypergraphSettings(window_slots=window_slots)
    Operator.of(Incidence.of(traces, settings))  # compile outside the clock
    build_incidence, inc = _timed(lambda: Incidence.of(traces, settings))
    build, operator = _timed(lambda: Operator.of(inc))
    received = ReceivedNoise.of(operator, 0.1, inc.size)
    model, theirs = _model(inc.people), _pyg(inc)

    def ours(x: Tensor, _: int) -> Tensor:
        return propagate(x, operator)

    def noisy(x: Tensor, layer: int) -> Tensor:
        return propagate_noisy(x, operator, received, Draw(0, 0, layer))

    _require_same(model.round(ours), model.round(theirs))
    model.round(noisy)
    best = _best(
        {
            "ours": (lambda: model.round(ours), _OURS),
            "noisy": (lambda: model.round(noisy), _OURS),
            "peer": (lambda: model.round(theirs), _THEIRS),
        }
    )
    wall, busy = best["ours"][0], best["ours"][1]
    bound = 2 * LAYERS * _traffic(operator) / _bandwidth(inc.people)
    return {
        "name": "round",
        "ours": 1e3 * wall,
        "peer": 1e3 * best["peer"][0],
        "ratio": best["peer"][0] / wall,
        "unit": "ms",
        "preset": preset,
        "ours_cpu_ms": 1e3 * busy,
        "peer_cpu_ms": 1e3 * best["peer"][1],
        "ratio_cpu": best["peer"][1] / busy,
        "with_noise_ms": 1e3 * best["noisy"][0],
        "ratio_with_noise": best["peer"][0] / best["noisy"][0],
        "bound_ms": 1e3 * bound,
        "over_bound": wall / bound,
        "way": "merged" if operator.multiplied is None else "multiplied",
        "build_incidence_s": build_incidence,
        "build_operator_s": build,
        "edges": inc.edges,
        "pairs": inc.pairs,
        "groups": len(operator.groups),
        "merged_pairs": len(operator.groups.rows.index),
    }


def scale(people: int = 1_000_000, regions: int = 20_000) -> dict[str, Any]:
    """Seconds and memory of hypergraph, operator and one propagation each way."""
    torch.set_num_threads(THREADS)
    small = CitySettings(people=500, regions=50, days=14, kind="area")
    warm = Operator.of(Incidence.of(build_city(small, Streams(0).numpy("city"))))
    propagate(torch.zeros(500, WIDTH), warm)
    settings = CitySettings(people=people, regions=regions, days=14, kind="area")
    city, traces = _timed(lambda: build_city(settings, Streams(0).numpy("city")))
    incidence, inc = _timed(lambda: Incidence.of(traces))
    build, operator = _timed(lambda: Operator.of(inc))
    rows = torch.randn(people, WIDTH, requires_grad=True)
    forward, out = _timed(lambda: propagate(rows, operator))
    backward, _ = _timed(lambda: out.backward(torch.ones_like(out)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "name": "hypergraph-scale",
        "people": people,
        "pairs": inc.pairs,
        "merged_pairs": len(operator.groups.rows.index),
        "city_s": city,
        "build_incidence_s": incidence,
        "build_operator_s": build,
        "forward_s": forward,
        "backward_s": backward,
        "peak_rss_mb": peak / 1024,
    }


def _model(people: int) -> Model:
    generator = torch.Generator().manual_seed(0)

    def weights(rows: int, width: int) -> Tensor:
        made = torch.randn(rows, width, generator=generator) * rows**-0.5
        return made.requires_grad_()

    rows = torch.randn(people, WIDTH, generator=generator).requires_grad_()
    layers = tuple(weights(WIDTH, WIDTH) for _ in range(LAYERS))
    label = torch.randint(0, 2, (people,), generator=generator)
    return Model(rows, layers, weights(WIDTH, 2), label)


def _pyg(inc: Incidence) -> Spread:
    from torch_geometric.nn import HypergraphConv

    conv = HypergraphConv(WIDTH, WIDTH, bias=False)
    conv.lin = nn.Identity()  # the weights are the model's
    person = torch.from_numpy(inc.by_edge.index.astype(np.int64))
    edge = torch.repeat_interleave(torch.from_numpy(inc.size.astype(np.int64)))
    index = torch.stack([person, edge])

    def spread(x: Tensor, _: int) -> Tensor:
        passed: Tensor = conv(x, index, num_edges=inc.edges)
        return passed

    return spread


def _require_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        far = torch.linalg.vector_norm(mine - other)
        if far > 1e-4 * torch.linalg.vector_norm(other):
            raise SystemExit("round: PyG's loss or gradient differs from ours")


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    made = work()
    return time.perf_counter() - begin, made


def _best(
    jobs: dict[str, tuple[Callable[[], object], int]],
) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds of each job, the best of its repeats, taken in turn."""
    best = {name: (float("inf"), float("inf")) for name in jobs}
    turns = min(repeats for _, repeats in jobs.values())
    for _ in range(turns):
        for name, (job, repeats) in jobs.items():
            for _ in range(repeats // turns):
                began = time.process_time()
                wall = _timed(job)[0]
                busy = time.process_time() - began
                best[name] = min(best[name][0], wall), min(best[name][1], busy)
    return best


def _traffic(operator: Operator) -> float:
    """Bytes that one propagation must move."""
    row = 4 * WIDTH
    if operator.multiplied is not None:
        entries = len(operator.multiplied.person)
        return entries * (row + 4 + 4) + 2 * operator.people * row
    return len(operator.groups.rows.index) * (3 * row + 4)


def _bandwidth(people: int) -> float:
    """Bytes a second of out += x, row after row, on as many threads as ours."""
    x = np.ones((min(people, _NEAR), WIDTH), np.float32)
    outs = [np.zeros_like(x) for _ in range(THREADS)]
    times = 50 * max(1, people // _NEAR)

    def work(part: int) -> None:
        _sweep(x, outs[part], times)

    _sweep(x, outs[0], 1)
    jobs = {"sweep": (lambda: each_part(work, THREADS, 10**9), 10)}
    return THREADS * times * 3 * x.nbytes / _best(jobs)["sweep"][0]


@njit(cache=True, nogil=True)
def _sweep(x, out, times):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for _ in range(times):
        for row in range(len(x)):
            for column in range(x.shape[1]):
                out[row, column] += x[row, column]


if __name__ == "__main__":
    if sys.argv[1:2] == ["scale"]:
        print(json.dumps(scale(*map(int, sys.argv[2:])), indent=2))
    else:
        print(json.dumps(_run(sys.argv[1], int(sys.argv[2])), indent=2))
