"""Likelihood of a person's own tests, by the slot of infection."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known, TestErrors
from epifalcon.types import Floats, Slots


class ResultLikelihood(NamedTuple):
    """Likelihood of each person's tests given the slot of infection.

    It changes only in slots of tests. Person i has the changes ``start[i]`` to
    ``start[i + 1]``: from slot ``slot[k]`` on it is ``value[k]``; before the first
    change it is ``seed[i]``. Only ratios matter.
    """

    seed: NDArray[np.float32]
    """(people,) if infected before the first slot."""
    never: NDArray[np.float32]
    """(people,) if never infected."""
    start: NDArray[np.int64]
    """(people + 1,)"""
    slot: Slots
    """(changes,)"""
    value: NDArray[np.float32]
    """(changes,)"""


def result_likelihood(known: Known, slots: int, errors: TestErrors) -> ResultLikelihood:
    """Compute the likelihood of all tests.

    A test shows whether the person was infected in its slot or before. Where tests
    are never wrong but contradict each other, the first positive one stands.
    """
    if errors.none:
        known = _without_contradictions(known, slots)
    with np.errstate(divide="ignore"):
        negative = np.log([1 - errors.false_positive, errors.false_negative])
        positive = np.log([errors.false_positive, 1 - errors.false_negative])
    if_well = np.where(known.positive, positive[0], negative[0])
    if_ill = np.where(known.positive, positive[1], negative[1])
    seed, never = np.zeros((2, known.people))
    np.add.at(seed, known.person, if_ill)
    np.add.at(never, known.person, if_well)
    start = np.searchsorted(known.person, np.arange(known.people + 1)).astype(np.int64)
    value = _after_each_test(known, start, if_well, if_ill)
    scale = np.maximum(seed, never)
    np.maximum.at(scale, known.person, value)
    return ResultLikelihood(
        np.exp(seed - scale).astype(np.float32),
        np.exp(never - scale).astype(np.float32),
        start,
        np.minimum(known.slot + 1, slots).astype(np.int32),
        np.exp(value - scale[known.person]).astype(np.float32),
    )


def _without_contradictions(known: Known, slots: int) -> Known:
    """Drop negative tests after the first positive one, and repeated positives.

    A positive test after the last slot shows an infection in the last slot or before.
    """
    positive_in = known.first_positive_slot
    first = positive_in[known.person]
    counts = np.where(known.positive, known.slot == first, known.slot < first)
    counts |= first < 0
    slot = np.where(known.positive, np.minimum(known.slot, slots - 1), known.slot)
    # A negative test after the end leaves the last slot to the positive one.
    latest = np.minimum(first, slots - 1) - 1
    slot = np.where(~known.positive & (first >= 0), np.minimum(slot, latest), slot)
    counts &= slot >= 0
    return Known(
        known.people,
        known.person[counts],
        known.positive[counts],
        slot[counts].astype(np.int32),
    )


def _after_each_test(
    known: Known, start: NDArray[np.int64], if_well: Floats, if_ill: Floats
) -> Floats:
    """(tests,) log likelihood of an infection after each test and before the next.

    Tests until then found the person well, the later ones ill. A person has few
    tests, so the loop is over their number and not over people.
    """
    count = np.diff(start)
    value = np.zeros(len(known.person))
    position = np.arange(len(known.person)) - start[known.person]
    for number in range(int(count.max(initial=0))):
        # The result of each person's test ``number``, for all of its tests.
        own = start[known.person] + number
        has = number < count[known.person]
        at = np.where(has, own, 0)
        before = np.where(position >= number, if_well[at], if_ill[at])
        value += np.where(has, before, 0.0)
    return value
