from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph import merging
from epifalcon.hypergraph.merging import ALONE, merge
from tests.hypergraph.hypergraphs import by_hand, incidences

quick = settings(deadline=None, derandomize=True, max_examples=60)

member_lists = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True).map(sorted),
    max_size=30,
)


def sets(rows) -> list[tuple[int, ...]]:
    return [
        tuple(rows.index[first:past].tolist())
        for first, past in zip(rows.start[:-1], rows.start[1:], strict=True)
    ]


@quick
@given(member_lists)
def test_groups_are_the_different_sets_of_two_or_more_people(edges):
    inc = by_hand(6, edges)
    groups = merge(inc)
    wanted = Counter(tuple(members) for members in edges if len(members) > 1)
    assert dict(zip(sets(groups.rows), groups.edges.tolist(), strict=True)) == wanted
    assert len(groups) == len(wanted)
    for edge, group in enumerate(groups.group_of_edge.tolist()):
        if group == ALONE:
            assert len(edges[edge]) == 1
        else:
            assert sets(groups.rows)[group] == tuple(edges[edge])


@quick
@given(member_lists)
def test_sets_that_fall_into_one_place_of_the_table_stay_apart(edges):
    inc = by_hand(6, edges)
    group = np.empty(inc.edges, np.int32)
    # As small a table as may be: nearly every place is wanted by several.
    bits = int(inc.edges).bit_length()
    order = np.arange(inc.edges, dtype=np.int32)
    first, count = merging._merge(
        inc.by_edge.start, inc.by_edge.index, order, bits, group
    )
    found = dict(zip(first.tolist(), count.tolist(), strict=True))
    wanted = Counter(tuple(members) for members in edges if len(members) > 1)
    assert {tuple(edges[edge]): times for edge, times in found.items()} == wanted


@quick
@given(incidences())
def test_groups_lie_in_the_order_of_the_regions(inc):
    groups = merge(inc)
    first = [
        inc.edge_region[groups.group_of_edge == group].min()
        for group in range(len(groups))
    ]
    assert first == sorted(first)
