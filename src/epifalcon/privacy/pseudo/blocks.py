"""Work on people in blocks, on as many threads as numba may use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import get_num_threads

from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.privacy.pseudo.shapes import Block, Scratch, new_scratch
from epifalcon.progress import Progress
from epifalcon.types import UNKNOWN

BLOCK_PEOPLE = 256

Fill = Callable[[Block, Scratch], object]
"""Fills the pseudo traces of a block: ``steps.scatter``, ``walk`` or ``live``."""


def fill_in(
    traces: Traces,
    copies: int,
    fill: Fill,
    rng: np.random.Generator,
    progress: Progress,
    candidates: int = 1,
) -> PseudoTraces:
    """The pseudo traces that ``fill`` makes, block by block of people.

    One seed a copy is drawn from ``rng``: more copies begin with the same ones.
    """
    seeds = rng.integers(0, 2**63, size=copies, dtype=np.uint64)
    made = np.empty((copies, *traces.by_slot.shape), np.int32)

    def run(first: int) -> int:
        last = min(first + BLOCK_PEOPLE, traces.people)
        # One person at a time is read and written as a row, turned over here: a
        # column would touch a new cache line for every slot.
        true = np.ascontiguousarray(traces.by_slot[:, first:last].T)
        rows = np.full((copies, *true.shape), UNKNOWN, np.int32)
        scratch = new_scratch(len(traces.regions), candidates)
        fill(Block(true, rows, first, seeds), scratch)
        made[:, :, first:last] = rows.transpose(0, 2, 1)
        return last

    # Threads suffice: the compiled part lets go of the interpreter's lock.
    with ThreadPoolExecutor(get_num_threads()) as pool:
        for last in pool.map(run, range(0, traces.people, BLOCK_PEOPLE)):
            progress("pseudo traces", last, traces.people)
    return PseudoTraces(traces, made)
