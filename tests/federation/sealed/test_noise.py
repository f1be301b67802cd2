"""Discrete Gaussian noise: its distribution, and the privacy of continuous noise."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr

from epifalcon.errors import SettingsError
from epifalcon.federation.sealed.combine import aggregate
from epifalcon.federation.sealed.fixed_point import encode
from epifalcon.federation.sealed.noise import discrete_gaussian, noise_of
from epifalcon.federation.sealed.task import LEAST_SIGMA, MOST_SIGMA
from tests.federation.sealed.parties import messages, task_for
from tests.federation.sealed.test_sums import TASK

# Each of these tests fails by chance once in a million runs.
LEAST_P = 1e-6


def drawn(scale, length):
    return discrete_gaussian(scale, length).view(np.int64)


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_small_noise_has_exactly_the_discrete_distribution(scale):
    most = math.ceil(3 * scale)
    values = np.arange(-20 * most, 20 * most + 1)
    mass = np.exp(-(values**2) / (2 * scale**2))
    mass /= mass.sum()
    inner = np.abs(values) <= most
    expected = np.append(mass[inner], mass[~inner].sum())
    noise = drawn(scale, 20_000)
    counts = [(noise == value).sum() for value in values[inner]]
    counts.append(len(noise) - sum(counts))
    assert stats.chisquare(counts, len(noise) * expected).pvalue > LEAST_P


@pytest.mark.parametrize("scale", [LEAST_SIGMA, 1e8 / 3, MOST_SIGMA])
def test_large_noise_has_the_continuous_distribution(scale):
    noise = drawn(scale, 10_000)
    assert stats.kstest(noise / scale, "norm").pvalue > LEAST_P
    # Its low bits are uniform: the grid is that of integers.
    counts = np.bincount(noise & 15, minlength=16)
    assert stats.chisquare(counts).pvalue > LEAST_P


def test_noise_comes_from_the_system_and_differs_each_time():
    one, other = (drawn(LEAST_SIGMA, 100) for _ in range(2))
    assert not np.array_equal(one, other)
    assert abs(stats.pearsonr(one, other).statistic) < 0.6


def test_a_task_has_noise_of_its_sigma_and_a_sum_that_of_both_aggregators():
    task = task_for(TASK.aggregators, sigma=0.25, length=10_000)
    alone = noise_of(task).view(np.int64) / task.scale
    assert stats.kstest(alone / 0.25, "norm").pvalue > LEAST_P
    total = encode(messages(3, length=10_000), task).sum(axis=0, dtype=np.uint64)
    found = aggregate(task, total) - total.view(np.int64) / task.scale
    assert stats.kstest(found / (0.25 * math.sqrt(2)), "norm").pvalue > LEAST_P


def test_a_missing_sampler_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(SettingsError, match=r"pip install 'epifalcon\[sealed\]'"):
        noise_of(task_for(TASK.aggregators, sigma=1.0))


def continuous_delta(epsilon, mu):
    """Balle and Wang 2018, theorem 8."""
    ahead, behind = log_ndtr([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    return math.exp(ahead) - math.exp(epsilon + behind)


def discrete_delta(epsilon, mu, sigma):
    """Sum over all integers of what exceeds exp(epsilon) times the shifted mass."""
    values = np.arange(-12.0 * sigma, 12.0 * sigma + 1)
    shift = round(mu * sigma)
    log_mass = -(values**2) / (2 * sigma**2)
    loss = (shift * values + shift**2 / 2) / sigma**2
    # The mass of x - shift relative to that of x is exp(-loss).
    gain = -np.expm1(np.minimum(epsilon - loss, 0.0))
    # By Poisson summation the total is sigma sqrt(2 pi) to 1e-300 or better.
    return float((np.exp(log_mass) * gain).sum()) / (sigma * math.sqrt(2 * math.pi))


def apart(mu, delta, sigma):
    """Distance between the epsilons of discrete and continuous noise at ``delta``."""
    mu = math.floor(mu * sigma) / sigma
    found = [
        brentq(lambda e, curve=curve: curve(e) / delta - 1, 1e-9, 200, xtol=1e-13)
        for curve in (
            lambda e: discrete_delta(e, mu, sigma),
            lambda e: continuous_delta(e, mu),
        )
    ]
    return abs(found[0] - found[1])


@pytest.mark.parametrize(("mu", "delta"), [(0.25, 1e-5), (1.3, 1e-7), (2.0, 1e-9)])
def test_the_least_noise_has_the_privacy_of_continuous_noise(mu, delta):
    assert apart(mu, delta, LEAST_SIGMA) < 1e-9


def test_much_less_noise_has_not():
    assert apart(1.0, 1e-6, 2.0**10) > 1e-8


def test_forked_processes_draw_different_noise():
    # A copied state of the generator would give both aggregators equal noise.
    code = (
        "import os, sys\n"
        "from epifalcon.federation.sealed.noise import discrete_gaussian\n"
        "discrete_gaussian(65536.0, 3)\n"
        "child = os.fork()\n"
        "sys.stdout.write(f'{discrete_gaussian(65536.0, 3).tolist()}\\n')\n"
        "sys.stdout.flush()\n"
        "if child: os.waitpid(child, 0)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.splitlines())) == 2
