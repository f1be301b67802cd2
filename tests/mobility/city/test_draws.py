import numpy as np
from scipy import stats

from epifalcon.mobility.city.draws import normal, start, uniform
from tests.oracles.city_loop import Stream


def stream(seed, person):
    state = np.zeros(1, np.uint64)
    start(state, np.uint64(seed), person)
    return state


def test_equals_the_plain_generator_bit_by_bit():
    for seed, person in ((0, 0), (2**63 - 1, 7), (12345, 999_999)):
        state, plain = stream(seed, person), Stream(seed, person)
        assert [uniform(state) for _ in range(50)] == [
            plain.uniform() for _ in range(50)
        ]
        assert [normal(state) for _ in range(50)] == [plain.normal() for _ in range(50)]


def test_published_vector():
    """The first outputs of splitmix64 from state 1234567 (Vigna's reference)."""
    state = np.array([1234567], np.uint64)
    wished = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(state) for _ in range(3)] == [(w >> 11) * 2.0**-53 for w in wished]


def test_numbers_are_uniform_and_normal_over_people():
    states = [stream(3, person) for person in range(4000)]
    first = [uniform(state) for state in states]
    second = [normal(state) for state in states]
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert stats.kstest(second, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.06
