import numpy as np

from epifalcon.mobility.counting import count_moves, count_visits, visit_then_move

# Two people, two slots a day, three regions; Ada is not seen on the second noon.
TRACE = np.array([[0, 1, 0, -1], [2, 2, 1, 2]], dtype=np.int32)


def test_visits_by_hand():
    visits = count_visits(TRACE, 3, 2)
    rows = list(
        zip(
            visits.owner.tolist(),
            visits.slot.tolist(),
            visits.share.tolist(),
            strict=True,
        )
    )
    # Owner is person * 3 + region.
    assert rows == [(0, 0, 1.0), (1, 1, 1.0), (4, 0, 0.5), (5, 0, 0.5), (5, 1, 1.0)]
    assert visits.observed.tolist() == [[2, 1], [2, 2]]
    assert visits.people_by_slot().tolist() == [2, 2]
    assert visits.by_region(3).tolist() == [[1, 0.5, 0.5], [0, 1, 1]]


def test_moves_by_hand():
    moves = count_moves(TRACE, 3)
    assert moves.owner.tolist() == [0, 1, 4, 5, 5]
    assert moves.there.tolist() == [1, 0, 2, 1, 2]
    assert moves.times.tolist() == [1, 1, 1, 1, 1]
    assert moves.share.tolist() == [1, 1, 1, 0.5, 0.5]
    assert moves.table(3).toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 1]]


def test_visit_then_move_by_hand():
    joined = visit_then_move(count_visits(TRACE, 3, 2), count_moves(TRACE, 3), 3)
    assert joined.toarray().reshape(2, 3, 3).tolist() == [
        [[0, 1, 0], [0, 0, 0.5], [0, 0.25, 0.25]],
        [[0, 0, 0], [1, 0, 0], [0, 0.5, 0.5]],
    ]


def test_nobody_seen_is_nothing_counted():
    empty = np.full((2, 4), -1, dtype=np.int32)
    visits, moves = count_visits(empty, 3, 2), count_moves(empty, 3)
    assert visits.share.size == moves.share.size == 0
    assert visit_then_move(visits, moves, 3).nnz == 0
    assert moves.table(3).nnz == 0
