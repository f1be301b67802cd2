"""One whole round with all components against PyG's two layers.

Ours: a round of the vectorised engine in paper mode at the size of a preset, with
noise on every upload, two pseudo copies, region states of width 32, dropout, clipped
and noised gradients of every person, both optimisers and the ledger. PyG's: only the
forward and backward pass of the model of ``round``. Both with two threads in one
process, the best of several, in turn. On a busy machine the ratio of CPU times is more
stable.

Times by stage are those of the fastest of some rounds: each stage's function is timed
from outside, and the remainder is attributed to the layers. Noise is drawn within the
propagation, so its time is the difference to a propagation without noise.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.measuring import (
    THREADS,
    best,
    compared,
    peak_mb,
    run_in_subprocess,
    timed,
)
from benchmarks.rounds import PygModel, bare_engine, full_engine
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city
from epifalcon.federation import server
from epifalcon.federation.client import Client
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.privacy_plan import Clipped
from epifalcon.hypergraph.fused_propagation import FusedOperator
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger

COPIES = 2
_OURS, _THEIRS, _PROFILED = 30, 2, 20

STAGES: tuple[tuple[str, Any, str], ...] = (
    ("propagation", FusedOperator, "apply"),
    ("clipping uploads", Clipped, "encode"),
    ("clipping uploads", Clipped, "backward"),
    ("gradients: clip and noise", Client, "gradient_upload"),
    ("dropout", Client, "_dropout"),
    ("optimisers", server, "step"),
    ("optimisers", Client, "close_round"),
    ("ledger", Ledger, "record"),
)
"""Name of the stage, owner of its function, and name of the function."""


def run(preset: str = "larger-sars") -> dict[str, Any]:
    """Milliseconds of a round, ours with all components and PyG's layers."""
    found: dict[str, Any] = run_in_subprocess("round_all", preset)
    return found


def _run(preset: str) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    traces = make_city(Experiment.load(preset), seed=0)
    inc = Incidence.of(traces)
    full_engine(traces, inc, COPIES).step()  # compiles
    setup, engine = timed(lambda: full_engine(traces, inc, COPIES))
    setup += timed(engine.step)[0]  # counts claims, merges edges
    memory = peak_mb()
    bare = bare_engine(traces, inc, FalconSettings())
    theirs = PygModel(inc, bare.state().tensors)
    took = best({"ours": (engine.step, _OURS), "peer": (theirs.round, _THEIRS)})
    ours, peer = took["ours"], took["peer"]
    return {
        **compared("round-all", preset, ours, peer),
        "stages_ms": _stages(engine, inc),
        "setup_s": setup,
        "scoring_ms": 1e3 * timed(lambda: engine.scores())[0],
        "seconds_of_500_rounds": 500 * ours.wall,
        "peak_mb_without_peer": memory,
        "pairs": inc.pairs,
    }


def _stages(engine: VectorisedEngine, inc: Incidence) -> dict[str, float]:
    """Return milliseconds by stage of the fastest of some rounds."""
    rounds = []
    for _ in range(_PROFILED):
        spent = dict.fromkeys((name for name, _, _ in STAGES), 0.0)
        with ExitStack() as patches:
            for name, owner, function in STAGES:
                profiled = _profiled(getattr(owner, function), spent, name)
                patches.enter_context(patch.object(owner, function, profiled))
            whole, _ = timed(engine.step)
        spent["layers and the rest"] = whole - sum(spent.values())
        rounds.append((whole, spent))
    _, spent = min(rounds, key=lambda one: one[0])
    without_noise = _seconds_without_noise(inc, engine) * engine.settings.layers
    noise = max(0.0, spent["propagation"] - without_noise)
    spent = {"noise of uploads": noise} | spent
    spent["propagation"] -= noise
    return {name: round(1e3 * seconds, 2) for name, seconds in spent.items()}


def _profiled(
    function: Callable[..., Any], spent: dict[str, float], name: str
) -> Callable[..., Any]:
    @wraps(function)
    def profiled(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        try:
            return function(*given, **named)
        finally:
            spent[name] += time.perf_counter() - began

    return profiled


def _seconds_without_noise(inc: Incidence, engine: VectorisedEngine) -> float:
    """Return the seconds of one propagation without noise."""
    operator = FusedOperator.of(inc)
    rows = np.ones((operator.people, engine.settings.width), np.float32)
    job = partial(operator.apply, rows, operator.share)
    return best({"pass": (job, _PROFILED)})["pass"].wall


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
