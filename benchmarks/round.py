"""One training round of the person model: ours against PyG's layers.

Ours is the whole ``VectorisedEngine.step`` without privacy: forward and backward pass
of two layers of width 32 and the head, dropout, and Adam on rows and weights. PyG's is
the forward and backward pass of the same model built from its ``HypergraphConv``, on
the same pairs, without dropout and optimiser. Before anything is timed, loss and
gradients of both must agree. Times are the best of several, in turn, in one process
with two threads; on a busy machine the ratio of CPU times is more stable.
"""

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import THREADS, best, compared, run_in_subprocess, timed
from benchmarks.rounds import PygModel, bare_engine, require_same
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city
from epifalcon.hypergraph.fused_propagation import FusedOperator
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models.settings import FalconSettings

WIDTH = 32
_OURS, _THEIRS = 60, 3


def run(preset: str = "larger-sars", window_slots: int = 1) -> dict[str, Any]:
    """Milliseconds of a round, ours and PyG's, and of one propagation."""
    found: dict[str, Any] = run_in_subprocess("round", preset, str(window_slots))
    return found


def _run(preset: str, window_slots: int) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    traces = make_city(Experiment.load(preset), seed=0)
    window = partial(Incidence.of, traces, window_slots=window_slots)
    require_same(window(), traces)  # compiles, too
    build_incidence, inc = timed(window)
    build, operator = timed(lambda: FusedOperator.of(inc))
    engine = bare_engine(traces, inc, FalconSettings(window_slots=window_slots))
    engine.step()
    theirs = PygModel(inc, engine.state().tensors)
    rows = np.zeros((inc.people, WIDTH), np.float32)
    took = best(
        {
            "ours": (engine.step, _OURS),
            "pass": (lambda: operator.apply(rows, operator.share), _OURS),
            "peer": (theirs.round, _THEIRS),
        }
    )
    return {
        **compared("round", preset, took["ours"], took["peer"]),
        "one_propagation_ms": 1e3 * took["pass"].wall,
        "build_incidence_s": build_incidence,
        "build_operator_s": build,
        "edges": inc.edges,
        "pairs": inc.pairs,
        "groups": len(operator.merged),
        "merged_pairs": len(operator.merged.members.index),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2])), indent=2))
