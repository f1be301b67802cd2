import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph import compiled
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.meetings import meetings_of
from epifalcon.hypergraph.merging import merge
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces

quick = settings(deadline=None, derandomize=True, max_examples=50)


def table(made, people):
    """The weights as a matrix; every entry is another person, met once."""
    found = np.diag(made.own)
    for person in range(people):
        some = slice(made.start[person], made.start[person + 1])
        others = made.person[some].tolist()
        assert len(set(others)) == len(others)
        assert person not in others
        found[person, others] = made.weight[some]
    return found


def by_loop(rows, weight, people):
    wanted = np.zeros((people, people))
    for group in range(len(rows.start) - 1):
        members = rows.index[rows.start[group] : rows.start[group + 1]]
        wanted[np.ix_(members, members)] += weight[group]
    return wanted


@quick
@given(incidences(), st.integers(0, 99))
def test_weights_are_summed_over_the_groups_of_each_two(inc, seed):
    rows = merge(inc).rows
    weight = np.random.default_rng(seed).random(len(rows.start) - 1)
    made = meetings_of(rows, weight, inc.people)
    wanted = by_loop(rows, weight, inc.people)
    np.testing.assert_allclose(table(made, inc.people), wanted, rtol=1e-12, atol=0)


def test_threads_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(compiled, "_WORTH_THREADS", 1)
    inc = Incidence.of(random_traces(5, 4_000, 1_500, Clock(2.0, 8)))
    groups, before = merge(inc), torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            made.append(meetings_of(groups.rows, groups.weight, inc.people))
    finally:
        torch.set_num_threads(before)
    assert len(made[0]) > 50_000
    for other in made[1:]:
        for name in ("start", "person", "weight", "own"):
            assert np.array_equal(getattr(made[0], name), getattr(other, name))


def test_no_groups_no_meetings():
    made = meetings_of(by_hand(3, []).by_edge, np.zeros(0), 3)
    assert len(made) == 0
    assert made.start.tolist() == [0, 0, 0, 0]
