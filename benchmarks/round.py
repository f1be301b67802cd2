"""One training round of the person model: ours against PyG's layers.

Ours is ``VectorisedEngine.step`` without privacy, all of it: forward and backward
of two layers of width 32 and the head, dropout, and Adam on rows and weights.
PyG's is forward and backward of the same model built from its
``HypergraphConv``, on the same pairs, without dropout and optimiser. Before
anything is timed, loss and gradients of both must agree. Times are the best of
several, the two taken in turn, in one process on two threads; on a busy machine
the ratio of CPU times, given beside it, is the steadier one.

The bound is the time for the bytes that such a round must move. In a propagation,
of which there are four, two layers forward and back: for every stay a row is read
on the way to the groups and read and written on the way back, and twice its 6
bytes of ids are read; for every meeting a row and 8 bytes; for every group its
weight; for every person three rows. The dense part reads or writes 22 arrays of
rows: each layer two forward and five backward, the head one, Adam seven. The time
is that of moving as many bytes, in the same run and on as many threads, by reading
people's rows and by reading and writing them, in the random order in which people
come, and nothing else. ``over_bound`` compares CPU times, which other work on the
machine hardly changes; ``over_bound_wall`` compares wall times. ``over_bound_near``
is stricter: the same moves among so few people that none of them ever leaves the
second-level cache.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit

from benchmarks.measuring import THREADS, best, compared, in_a_process_of_its_own, timed
from benchmarks.rounds import PygModel, bare_engine, require_same
from epifalcon.hypergraph.compiled import each_part
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.hypergraph.operator import Operator, propagate
from epifalcon.hypergraph.vectors import aligned_zeros, enter, give
from epifalcon.models.settings import FalconSettings
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city

WIDTH = 32
PASSES = 4
_OURS, _THEIRS = 60, 3
_DENSE = 22
_NEAR = 2048
"""People whose rows, read and summed, stay in the second cache of a core."""
_PIECE, _PLACES = 80, 32
"""Stays and groups of a usual block."""
_enter, _give = enter[1], give[1]


def run(preset: str = "larger-sars", window_slots: int = 1) -> dict[str, Any]:
    """Milliseconds of a round, ours and PyG's, and how far ours is from the bound."""
    found: dict[str, Any] = in_a_process_of_its_own("round", preset, str(window_slots))
    return found


def _run(preset: str, window_slots: int) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    traces = make_city(Experiment.load(preset), seed=0)
    window = HypergraphSettings(window_slots=window_slots)
    require_same(Incidence.of(traces, window), traces)  # compiles, too
    build_incidence, inc = timed(lambda: Incidence.of(traces, window))
    build, operator = timed(lambda: _operator(inc))
    engine = bare_engine(traces, inc, FalconSettings(window_slots=window_slots))
    engine.step()
    theirs = PygModel(inc, engine.state().tensors)
    rows = torch.zeros(inc.people, WIDTH)
    traffic = _traffic(operator)
    took = best(
        {
            "ours": (engine.step, _OURS),
            "pass": (lambda: propagate(rows, operator), _OURS),
            "bound": (_moves_of(traffic, inc.people), _OURS),
            "near": (_moves_of(traffic, min(inc.people, _NEAR)), _OURS),
            "peer": (theirs.round, _THEIRS),
        }
    )
    ours, peer, bound = took["ours"], took["peer"], took["bound"]
    ready = operator.ready(np.dtype(np.float32), silent=True)
    return {
        **compared("round", preset, ours, peer),
        "one_propagation_ms": 1e3 * took["pass"].wall,
        "bound_ms": 1e3 * bound.wall,
        "bound_cpu_ms": 1e3 * bound.busy,
        "over_bound": ours.busy / bound.busy,
        "over_bound_wall": ours.wall / bound.wall,
        "over_bound_near": ours.busy / took["near"].busy,
        "mb_moved": traffic / 1e6,
        "build_incidence_s": build_incidence,
        "build_operator_s": build,
        "edges": inc.edges,
        "pairs": inc.pairs,
        "groups": len(operator.groups),
        "merged_pairs": len(operator.groups.rows.index),
        "stays": len(ready.stays),
        "meetings": len(ready.meetings[1]),
    }


def _operator(inc: Incidence) -> Operator:
    made = Operator.of(inc)
    made.ready(np.dtype(np.float32), silent=True)
    return made


def _traffic(operator: Operator) -> float:
    """Bytes that a round must move."""
    row = 4 * WIDTH
    ready = operator.ready(np.dtype(np.float32), silent=True)
    stays = len(ready.stays) * (3 * row + 2 * 6) + 4 * len(ready.weight)
    meetings = len(ready.meetings[1]) * (row + 8)
    people = operator.people * row
    return PASSES * (stays + meetings + 3 * people) + _DENSE * people


def _moves_of(traffic: float, people: int) -> Callable[[], None]:
    """Moves so many bytes on as many threads as ours; each has sums of its own."""
    count = round(traffic / (THREADS * 3 * 4 * WIDTH))
    person = np.random.default_rng(0).integers(0, people, count).astype(np.uint32)
    place = (np.arange(count) % _PLACES).astype(np.uint8)
    x, *outs = (aligned_zeros((people, WIDTH), np.float32) for _ in range(1 + THREADS))
    _move(person[:1], place[:1], x, outs[0])

    def work(part: int) -> None:
        _move(person, place, x, outs[part])

    return lambda: each_part(work, THREADS, 10**9)


@njit(nogil=True)
def _move(person, place, x, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    table = np.zeros(_PLACES * x.shape[1], x.dtype)
    # In pieces, as blocks are: what was read is still near when it is written.
    for begin in range(0, len(person), _PIECE):
        where = x.shape[1], 0, begin, min(begin + _PIECE, len(person))
        _enter((x.reshape(-1), person, place, table), where)
        _give((out.reshape(-1), person, place, table), where)


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2])), indent=2))
