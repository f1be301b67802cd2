import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph import spreading
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.noise import (
    Draw,
    ReceivedNoise,
    noisy_edges,
    propagate_noisy,
)
from epifalcon.hypergraph.operator import Operator, propagate
from epifalcon.hypergraph.propagate import edge_to_node, node_to_edge
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces
from tests.oracles.dense_hypergraph import layer_with_noisy_uploads, noise_covariance

quick = settings(deadline=None, derandomize=True, max_examples=50)

# Merged twice and thrice, shared by three, alone once and twice, never seen.
EDGES = [[0, 1], [0, 1, 2], [3], [0, 1], [2, 3], [0, 1, 2], [3], [4], [0, 1]]
EDGES += [[0], [2]]
EXTRA = np.array([0, 3, 1, 5, 0, 2, 0, 4, 1, 2, 0])
SIGMA = 0.7
COLUMNS = 150_000


def town() -> tuple[Incidence, Operator, np.ndarray]:
    inc = by_hand(6, EDGES)
    return inc, Operator.of(inc), inc.size + EXTRA


def test_the_generator_is_gaussian_and_without_memory():
    drawn = np.empty((60_000, 16), np.float32)
    for item in range(len(drawn)):
        spreading.normals(np.uint64(Draw(11).key), item, drawn[item])
    values = drawn.astype(np.float64)
    flat = np.sort(values.ravel())
    assert stats.kstest(flat, "norm").pvalue > 0.01
    count = flat.size
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((flat**power).mean() - moment) < 4 * np.sqrt(spread / count)
    tail = (np.abs(flat) > 4).sum()
    assert abs(tail - 6.334e-5 * count) < 4 * np.sqrt(6.334e-5 * count)
    # Neither coordinates nor items nor their squares know of each other.
    limit = 4.5 / np.sqrt(len(values))
    for table in (values, values**2):
        between = np.corrcoef(table.T) - np.eye(16)
        assert np.abs(between).max() < limit
        later = np.corrcoef(table[1:, 0], table[:-1, 0])[0, 1]
        assert abs(later) < limit


@quick
@given(incidences(), st.integers(0, 2**32), st.sampled_from([0.1, 3.0]))
def test_the_variances_are_those_of_noise_on_every_edge(inc, seed, sigma):
    extra = np.random.default_rng(seed).integers(0, 9, inc.edges)
    operator = Operator.of(inc)
    noise = ReceivedNoise.of(operator, sigma, inc.size + extra)
    covariance = np.diag(noise.person**2)
    groups = operator.groups.rows
    for group in range(len(operator.groups)):
        who = groups.index[groups.start[group] : groups.start[group + 1]]
        covariance[np.ix_(who, who)] += noise.group[group] ** 2
    covariance *= np.outer(operator.share, operator.share)
    wanted = noise_covariance(inc, sigma, torch.from_numpy(inc.size + extra))
    np.testing.assert_allclose(covariance, wanted.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_people_receive_has_the_covariance_of_noise_on_every_edge(dtype):
    inc, operator, uploads = town()
    noise = ReceivedNoise.of(operator, SIGMA, uploads)
    zeros = torch.zeros(inc.people, COLUMNS, dtype=dtype)
    received = propagate_noisy(zeros, operator, noise, Draw(3)).double().numpy()
    wanted = noise_covariance(inc, SIGMA, torch.from_numpy(uploads)).numpy()
    found = received @ received.T / COLUMNS
    spread = np.sqrt(np.outer(wanted.diagonal(), wanted.diagonal()) + wanted**2)
    assert (np.abs(found - wanted) <= 4 * spread / np.sqrt(COLUMNS)).all()
    assert (np.abs(received.mean(1)) <= 4 * np.sqrt(wanted.diagonal() / COLUMNS)).all()
    assert not received[5].any()


def test_it_is_equal_in_distribution_to_noise_on_every_edge_and_on_every_upload():
    inc, operator, uploads = town()
    columns = 40_000
    rows = torch.randn(inc.people, 1, generator=torch.Generator().manual_seed(0))
    x = rows.double().expand(-1, columns)
    noise = ReceivedNoise.of(operator, SIGMA, uploads)
    merged = propagate_noisy(x, operator, noise, Draw(9)).numpy()
    generator = torch.Generator().manual_seed(1)
    means = noisy_edges(node_to_edge(x, inc), inc, SIGMA, uploads, generator)
    by_edge = edge_to_node(means, inc).numpy()
    by_upload = layer_with_noisy_uploads(
        x, inc, SIGMA, torch.from_numpy(uploads), generator
    ).numpy()
    # One person, and sums and differences of two: the joint distribution.
    views = [np.eye(6)[person] for person in range(5)]
    views += [np.eye(6)[a] + sign * np.eye(6)[b] for a, b in ((0, 1), (0, 2), (2, 3))
              for sign in (1, -1)]  # fmt: skip
    for other in (by_edge, by_upload):
        for view in views:
            ours, theirs = view @ merged, view @ other
            if theirs.std() < 1e-9:
                np.testing.assert_allclose(ours, theirs, atol=1e-6)
            else:
                assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


def test_equal_draws_are_equal_and_others_fresh():
    inc, operator, uploads = town()
    noise = ReceivedNoise.of(operator, SIGMA, uploads)
    zeros = torch.zeros(inc.people, 4_000)
    first = propagate_noisy(zeros, operator, noise, Draw(1, 2, 3))
    assert torch.equal(first, propagate_noisy(zeros, operator, noise, Draw(1, 2, 3)))
    for other in (Draw(2, 2, 3), Draw(1, 3, 3), Draw(1, 2, 4), Draw(2, 1, 3)):
        again = propagate_noisy(zeros, operator, noise, other)
        assert abs(np.corrcoef(first[0], again[0])[0, 1]) < 4 / np.sqrt(4_000)


def test_keys_differ():
    keys = {
        Draw(seed, number, layer).key
        for seed in range(20)
        for number in range(20)
        for layer in range(3)
    }
    assert len(keys) == 1200


def test_noise_leaves_the_signal_and_its_gradient_alone():
    _, operator, uploads = town()
    noise = ReceivedNoise.of(operator, SIGMA, uploads)
    x = torch.randn(6, 5, dtype=torch.float64).requires_grad_()
    noisy, plain = propagate_noisy(x, operator, noise, Draw(4)), propagate(x, operator)
    alone = propagate_noisy(torch.zeros_like(x), operator, noise, Draw(4))
    torch.testing.assert_close(noisy, plain + alone)
    g = torch.randn(6, 5, dtype=torch.float64)
    (ours,) = torch.autograd.grad(noisy, x, g)
    (wanted,) = torch.autograd.grad(plain, x, g)
    torch.testing.assert_close(ours, wanted)


def test_no_sigma_is_no_noise():
    inc = by_hand(6, EDGES)
    operator = Operator.of(inc)
    noise = ReceivedNoise.of(operator, 0.0, inc.size + EXTRA)
    x = torch.randn(6, 5)
    noisy = propagate_noisy(x, operator, noise, Draw(4))
    assert torch.equal(noisy, propagate(x, operator))


def test_threads_do_not_change_a_bit():
    inc = Incidence.of(random_traces(5, 4_000, 60, Clock(2.0, 4)))
    operator, before = Operator.of(inc), torch.get_num_threads()
    noise = ReceivedNoise.of(operator, SIGMA, inc.size)
    x, found = torch.ones(inc.people, 7), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(propagate_noisy(x, operator, noise, Draw(1)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_edges_keep_their_own_noise():
    inc, _, uploads = town()
    zeros = torch.zeros(inc.edges, COLUMNS)
    generator = torch.Generator().manual_seed(0)
    noisy = noisy_edges(zeros, inc, SIGMA, uploads, generator).numpy()
    wanted = SIGMA * np.sqrt(uploads) / inc.size
    np.testing.assert_allclose(noisy.std(1), wanted, rtol=0.01)
    between = np.corrcoef(noisy) - np.eye(inc.edges)
    assert np.abs(between).max() < 5 / np.sqrt(COLUMNS)


@pytest.mark.parametrize(
    ("uploads", "told"),
    [
        (np.array([2]), r"shape \(1,\)"),
        (np.array([2.0, 2.0]), "float64"),
        (np.array([2, 0]), "edge 1 has 1 members and 0 uploads"),
    ],
)
def test_uploads_that_cannot_be_are_refused(uploads, told):
    inc = by_hand(2, [[0, 1], [1]])
    with pytest.raises(DataError, match=told):
        ReceivedNoise.of(Operator.of(inc), 1.0, uploads)
    with pytest.raises(DataError, match=told):
        noisy_edges(torch.zeros(2, 1), inc, 1.0, uploads, torch.Generator())


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_a_sigma_that_cannot_be_is_refused(sigma):
    inc = by_hand(2, [[0, 1]])
    with pytest.raises(SettingsError, match="upload_sigma"):
        ReceivedNoise.of(Operator.of(inc), sigma, inc.size)


def test_noise_of_another_operator_is_refused():
    inc = by_hand(2, [[0, 1]])
    other = by_hand(3, [[0, 1, 2], [0, 1]])
    noise = ReceivedNoise.of(Operator.of(other), 1.0, other.size)
    with pytest.raises(DataError, match="another operator"):
        propagate_noisy(torch.zeros(2, 1), Operator.of(inc), noise, Draw(0))


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, True])
def test_a_draw_is_named_by_whole_numbers(wrong):
    with pytest.raises(SettingsError, match="round="):
        Draw(0, wrong)
