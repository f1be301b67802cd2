from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph import stays as module
from epifalcon.hypergraph.incidence import Incidence, Rows
from epifalcon.hypergraph.merging import merge
from epifalcon.hypergraph.stays import MOST_GROUPS, stays_of
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import incidences
from tests.oracles.cities import random_traces

quick = settings(deadline=None, derandomize=True, max_examples=60)


def rows_of(groups: list[list[int]]) -> Rows:
    sizes = [len(group) for group in groups]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Rows(start, np.array([one for group in groups for one in group], np.int32))


def members(made, groups):
    """Who is in each group, from the stays alone."""
    found = [[] for _ in range(groups)]
    for block, begin in enumerate(made.block[:-1]):
        for stay in range(made.start[block], made.start[block + 1]):
            for place in range(made.first[stay], made.past[stay]):
                assert begin + place < made.block[block + 1]
                found[begin + place].append(int(made.person[stay]))
    return [sorted(group) for group in found]


def require_valid(rows, people):
    """The stays hold just the members, without gaps that could be closed."""
    groups = len(rows.start) - 1
    made = stays_of(rows, people)
    assert made.block[0] == made.start[0] == 0
    assert made.block[-1] == groups
    assert made.start[-1] == len(made)
    wanted = [rows.index[a:b].tolist() for a, b in pairwise(rows.start)]
    assert members(made, groups) == wanted
    for block in range(len(made.block) - 1):
        some = slice(made.start[block], made.start[block + 1])
        ends = {}
        for who, first, past in zip(
            made.person[some], made.first[some], made.past[some], strict=True
        ):
            ends.setdefault(who, []).append((int(first), int(past)))
        for pieces in ends.values():
            pieces.sort()
            assert all(a[1] < b[0] for a, b in pairwise(pieces))
        length = made.past[some].astype(int) - made.first[some]
        border = made.long[block] - made.start[block]
        assert (length[:border] == 1).all()
        assert (length[border:] > 1).all()
        assert (np.diff(made.person[some][:border].astype(int)) >= 0).all()
    return made


@quick
@given(incidences())
def test_stays_hold_the_members_of_every_group(inc):
    require_valid(merge(inc).rows, inc.people)


@quick
@given(st.lists(st.sets(st.integers(0, 7), min_size=1), max_size=3 * MOST_GROUPS))
def test_any_row_of_groups_will_do(groups):
    require_valid(rows_of([sorted(group) for group in groups]), 8)


def test_a_larger_town():
    inc = Incidence.of(random_traces(5, 1_000, 20, Clock(2.0, 14)))
    made = require_valid(merge(inc).rows, inc.people)
    assert np.diff(made.block).max() <= MOST_GROUPS


def test_who_stays_is_listed_once_for_each_block():
    made = stays_of(rows_of([[0, 1]] * (2 * MOST_GROUPS)), 2)
    assert made.block.tolist() == [0, MOST_GROUPS, 2 * MOST_GROUPS]
    assert made.person.tolist() == [0, 1, 0, 1]
    assert made.past.tolist() == [MOST_GROUPS] * 4


def test_a_small_group_after_a_large_one_begins_a_block():
    size = module._SMALLER
    crowd = list(range(2 * size))
    assert stays_of(rows_of([crowd, [0, 1]]), 2 * size).block.tolist() == [0, 2]
    crowd.append(2 * size)
    assert stays_of(rows_of([crowd, [0, 1]]), 2 * size + 1).block.tolist() == [0, 1, 2]
    # The other way round nothing is lost.
    assert stays_of(rows_of([[0, 1], crowd]), 2 * size + 1).block.tolist() == [0, 2]
