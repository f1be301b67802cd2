"""Small worlds and a goodness-of-fit test for pseudo traces."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.mobility_model import MobilityModel, mobility_model
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings
from tests.oracles.cities import random_traces


@dataclass(frozen=True, eq=False)
class World:
    traces: Traces
    model: MobilityModel
    cases: np.ndarray


def learn(traces: Traces, epsilon: float = 1e-3) -> MobilityModel:
    return mobility_model(traces, epsilon)


def world_of(traces: Traces, epsilon: float = 1e-3, seed: int = 0) -> World:
    rng = np.random.default_rng(seed)
    shape = (len(traces.regions), traces.clock.days)
    return World(traces, learn(traces, epsilon), rng.poisson(0.7, shape).astype(float))


def twins(epsilon: float, people: int = 6000, regions: int = 11) -> World:
    """Many people with one and the same trace, in a city that others made."""
    clock = Clock(slot_hours=6, days=2)
    city = random_traces(5, 40, regions, clock)
    trace = np.array([2, 2, 7, -1, 2, 3, 7, 1], dtype=np.int32)
    same = np.ascontiguousarray(np.repeat(trace[:, None], people, axis=1))
    made = world_of(city, epsilon)
    return World(Traces(same, clock, city.regions), made.model, made.cases)


def settings_for(method: str, copies: int = 2, count: int = 3) -> PseudoSettings:
    domains = DomainSettings(count=count, least_regions=copies + 1)
    return PseudoSettings(method=method, pseudo_copies=copies, domains=domains)


def p_value(
    conditions: np.ndarray, drawn: np.ndarray, shares: Callable[..., np.ndarray]
) -> float:
    """How well ``drawn`` (draws,) fits ``shares(condition)`` of its own row.

    Cells that expect fewer than five are put together within their group.
    """
    total, freedom = 0.0, 0
    keys, group = np.unique(conditions, axis=0, return_inverse=True)
    for number, key in enumerate(keys):
        mine = drawn[group.ravel() == number]
        expected = shares(tuple(key.tolist())) * mine.size
        seen = np.bincount(mine, minlength=expected.size)
        assert not seen[expected == 0].any(), "an impossible region was drawn"
        small = expected < 5
        seen = np.append(seen[~small], seen[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5:
            seen, expected = seen[:-1], expected[:-1]
        if expected.size > 1:
            total += ((seen - expected) ** 2 / expected).sum()
            freedom += expected.size - 1
    assert freedom > 10
    return float(stats.chi2.sf(total, freedom))
