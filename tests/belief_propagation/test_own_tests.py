import numpy as np

from epifalcon.belief_propagation.own_tests import result_likelihood
from epifalcon.epidemic.known import TestErrors
from tests.methods.encounters import known_of

RIGHT = TestErrors()


def laid_out(fit, person, slots):
    """The likelihood of an infection in each slot."""
    found = np.full(slots, fit.seed[person])
    for at in range(fit.start[person], fit.start[person + 1]):
        found[fit.slot[at] :] = fit.value[at]
    return found.tolist()


def test_right_tests_leave_a_window():
    known = known_of(4, [(0, 2, 1), (1, 2, 0), (2, 1, 0), (2, 3, 1)])
    fit = result_likelihood(known, 5, RIGHT)
    assert laid_out(fit, 0, 5) == [1, 1, 1, 0, 0]
    assert laid_out(fit, 1, 5) == [0, 0, 0, 1, 1]
    assert laid_out(fit, 2, 5) == [0, 0, 1, 1, 0]
    assert laid_out(fit, 3, 5) == [1] * 5
    assert fit.seed.tolist() == [1, 0, 0, 1]
    assert fit.never.tolist() == [0, 1, 0, 1]


def test_contradictory_tests_leave_the_first_positive_one():
    fit = result_likelihood(known_of(1, [(0, 1, 1), (0, 3, 0)]), 5, RIGHT)
    assert laid_out(fit, 0, 5) == [1, 1, 0, 0, 0]
    assert fit.never[0] == 0


def test_tests_after_the_end_of_the_traces_leave_the_last_slot():
    known = known_of(3, [(0, 7, 1), (1, 4, 0), (1, 9, 1), (2, 9, 0)])
    fit = result_likelihood(known, 5, RIGHT)
    assert laid_out(fit, 0, 5) == [1] * 5
    assert laid_out(fit, 1, 5) == [0, 0, 0, 0, 1]
    assert laid_out(fit, 2, 5) == [0] * 5
    assert fit.never.tolist() == [0, 0, 1]


def test_wrong_tests_are_weighed_up_to_a_common_factor():
    errors = TestErrors(false_positive=0.1, false_negative=0.3)
    fit = result_likelihood(known_of(1, [(0, 1, 0), (0, 3, 1)]), 5, errors)
    found = np.array([*laid_out(fit, 0, 5), fit.never[0], fit.seed[0]])
    wanted = np.array([0.3 * 0.7] * 2 + [0.9 * 0.7] * 2 + [0.9 * 0.1] * 2)
    wanted = np.append(wanted, 0.3 * 0.7)
    np.testing.assert_allclose(found / found.max(), wanted / wanted.max(), rtol=1e-6)


def test_nobody_tested():
    fit = result_likelihood(known_of(2, []), 3, TestErrors(false_positive=0.1))
    assert laid_out(fit, 1, 3) == [1, 1, 1]
    assert fit.never.tolist() == [1, 1]
