import numpy as np
from scipy import stats

from epifalcon._random import fill_normals, normal, start, uniform
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


def test_normals_are_independent_standard_gaussians_of_their_key_and_row():
    out = np.empty((4000, 33))
    fill_normals(np.uint64(2**63 + 5), 10, np.ones(4000), out)
    assert stats.kstest(out.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(out.T) - np.eye(33)).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(out[:-1].ravel(), out[1:].ravel())[0, 1]) < 0.02
    some = np.empty((3, 33))
    fill_normals(np.uint64(2**63 + 5), 17, np.array([1.0, 0.0, 2.0]), some)
    np.testing.assert_array_equal(some, out[7:10] * [[1], [0], [2]])
