"""The smallest networks that can be taught, and a small city that has every gap."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from epifalcon.epidemic.test_results import TestResults
from epifalcon.methods.base import Context
from epifalcon.methods.graph_networks import NetworkMethod, NetworkSettings
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.studies import town

QUICK = NetworkSettings(steps=6, check_every=2, learning_rates=(0.05, 0.01), width=4)
EMBEDDED = replace(QUICK, input="embedding")


class _Sum(nn.Module):
    """Dropout, so that every step draws, and a mean over contacts, so that all meet."""

    def __init__(self, contacts, channels):
        super().__init__()
        self._contacts = contacts
        self.head = nn.Linear(channels, 1)
        self.seen = nn.Parameter(torch.zeros(3))

    def forward(self, x, status):
        rows = nn.functional.dropout(x.mean(1), 0.3, self.training)
        rows = self._contacts.mean(rows) + rows
        return self.head(rows)[:, 0] + self.seen[status + 1]


class Tiny(NetworkMethod):
    """One linear layer."""

    name, title = "tiny", "Tiny"

    def network(self, graphs, channels):
        return _Sum(graphs.contacts, channels)


class Reader(Tiny):
    """Reads results besides."""

    name, title = "reader", "Reader"
    reads_results = True


def fitted(cls=Tiny, settings=QUICK, tests=None, seed=3, **context):
    """``cls`` after its training on the town."""
    known = town.known() if tests is None else tests
    context = Context(insecure_seed=True, **context)
    return cls(settings, seed=seed).fit(town.traces(), known, context)


def odd_cities():
    """Traces and tests that no method may stumble over, by name."""
    rng = np.random.default_rng(1)
    two_days, one_day = Clock(6.0, 2), Clock(6.0, 1)
    gaps = rng.integers(5, size=(8, 30))
    gaps[rng.random(gaps.shape) < 0.4] = -1
    gaps[:, :5] = -1
    return {
        "gaps and people never observed": city(gaps, two_days, 5),
        "one region": city(np.zeros((8, 30)), two_days, 1),
        "everybody alone": city(np.tile(np.arange(30), (8, 1)), two_days, 30),
        "nobody ever observed": city(np.full((8, 30), -1), two_days, 3),
        "a single day": city(rng.integers(5, size=(4, 30)), one_day, 5),
    }


def city(regions, clock, count):
    """Traces of ``regions`` (slots, people), each region with a place."""
    centre = np.arange(2.0 * count).reshape(count, 2)
    return Traces(regions.astype(np.int32), clock, Regions("area", centre))


def odd_tests(positives=6):
    """Tests of 20 of 30 people, in the last slot of a single day."""
    person = np.arange(20, dtype=np.int32)
    slot = np.full(20, 3, np.int32)
    return TestResults(30, person, person < positives, slot)


def crowd(days):
    """Twelve people in three regions."""
    rng = np.random.default_rng(4)
    return city(rng.integers(3, size=(3 * days, 12)), Clock(8.0, days), 3)


def sixteen_houses():
    """Sixteen houses of eight people each, who never leave them."""
    house = np.repeat(np.arange(16), 8)
    return city(np.tile(house, (8, 1)), Clock(6.0, 2), 16)


def house_tests():
    """Half of every house is tested; in every other one all are infected."""
    person = np.flatnonzero(np.arange(128) % 8 < 4).astype(np.int32)
    return TestResults(128, person, person // 8 % 2 == 0, np.full(64, 7, np.int32))


def distinguishes_houses(risk):
    """Whether every untested person of infected houses is above all others."""
    untested = np.flatnonzero(np.arange(128) % 8 >= 4)
    infected = untested // 8 % 2 == 0
    return risk[untested][infected].min() > risk[untested][~infected].max()


def city_of(by_slot, days=1):
    """A city from region ids (slots, people), as many slots per day as fit."""
    ids = np.array(by_slot, np.int32)
    regions = Regions("area", np.zeros((max(int(ids.max()) + 1, 1), 2)))
    return Traces(ids, Clock(24 * days / len(ids), days), regions)


def results_of(*results):
    """Tests in slot 0 from everybody's result: 1, 0, or -1 for none."""
    status = np.array(results)
    person = np.flatnonzero(status >= 0).astype(np.int32)
    slot = np.zeros(len(person), np.int32)
    return TestResults(len(status), person, status[person] == 1, slot)
