"""Random hypergraphs for hypothesis: from small cities, with people never seen."""

import numpy as np
from hypothesis import strategies as st

from epifalcon.hypergraph.incidence import Incidence, Rows
from epifalcon.mobility.clock import Clock
from tests.oracles.cities import random_traces


@st.composite
def incidences(draw: st.DrawFn, most_people: int = 12) -> Incidence:
    """Up to 9 regions, 4 days; windows of several lengths, alone or not."""
    clock = Clock(draw(st.sampled_from([4.0, 8.0])), draw(st.integers(1, 4)))
    traces = random_traces(
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, most_people)),
        draw(st.integers(1, 9)),
        clock,
    )
    width, alone = draw(st.sampled_from([1, 3])), draw(st.booleans())
    return Incidence.of(traces, window_slots=width, keep_alone=alone)


def by_hand(people: int, edges: list[list[int]]) -> Incidence:
    """A hypergraph from lists of members, one region and as many windows as edges."""
    sizes = [len(members) for members in edges]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    member = np.array([one for members in edges for one in members], np.int32)
    key = np.arange(len(edges), dtype=np.int64)
    return Incidence(people, 1, len(edges), key, Rows(start, member))
