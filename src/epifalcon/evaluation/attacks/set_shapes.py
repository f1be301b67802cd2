"""The record that the compiled parts of the attack by sets work on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.city.borrow import borrow
from epifalcon.types import Floats

Index = NDArray[np.int64]


class Graph(NamedTuple):
    """The sets of one person; room for those of any of several people."""

    set_of: Index
    """(windows,) number of the window's set, -1 without claims."""
    row: Index
    """(sets,) a row that has these claims."""
    state: Index
    """(sets + 1,) where the states of each set begin."""
    pair: Index
    """(sets, sets) number of the pair, -1 for none; the same both ways."""
    ends: Index
    """(pairs, 2) the lower set first."""
    at: Index
    """(pairs,) where the pair's moves begin."""
    alone: Floats
    """(states,) log-weight of a state by itself."""
    joint: Floats
    """Log-weights of two states together, (lower, higher) laid flat, pair by pair."""
    news: Floats
    """(pairs, 2, most claims) log-messages: to the higher set, to the lower one."""
    belief: Floats
    """(states,) alone and all messages; in the end the probability."""
    move: Floats
    near: Floats
    spare: Floats
    """(2, most claims)"""


@compiled
def borrow_graph(graph: Graph) -> Graph:
    """The same record of borrowed arrays."""
    return Graph(
        borrow(graph.set_of),
        borrow(graph.row),
        borrow(graph.state),
        borrow(graph.pair),
        borrow(graph.ends),
        borrow(graph.at),
        borrow(graph.alone),
        borrow(graph.joint),
        borrow(graph.news),
        borrow(graph.belief),
        borrow(graph.move),
        borrow(graph.near),
        borrow(graph.spare),
    )
