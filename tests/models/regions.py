"""Small cities of regions with flows and cases, and a plain rival of DCRNN."""

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st
from torch import nn

from epifalcon.mobility.flows import Flows
from epifalcon.models.region_model import RegionHistory
from epifalcon.models.settings import TrainingSettings
from epifalcon.types import Floats


def flows_of(tables) -> Flows:
    """Flows from one square table of moves a day."""
    tables = np.asarray(tables, dtype=np.int64)
    days, regions, _ = tables.shape
    between = sp.csr_array(tables.reshape(days * regions, regions))
    stays = np.ones((days, regions), dtype=np.int64)
    visitors = tables.sum(axis=1) + 1
    return Flows(between, stays, visitors)


def small_history(regions=9, days=12, seed=3, source="reported") -> RegionHistory:
    """Cases that wander along the flows, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    tables = rng.poisson(0.6, size=(days, regions, regions))
    for table in tables:
        np.fill_diagonal(table, 0)
    cases = np.zeros((regions, days))
    cases[:, 0] = rng.poisson(2, regions)
    for day in range(1, days):
        walk = tables[day - 1] / np.maximum(tables[day - 1].sum(1, keepdims=True), 1)
        cases[:, day] = 0.7 * cases[:, day - 1] + 0.4 * walk.T @ cases[:, day - 1]
    return RegionHistory(flows_of(tables), cases, source)


@st.composite
def move_tables(draw: st.DrawFn) -> Floats:
    """Square counts, often with regions that nobody leaves or reaches."""
    regions = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.2, 0.7, 1.0]))
    table = rng.integers(1, 9, (regions, regions)) * (
        rng.random((regions, regions)) < density
    )
    if draw(st.booleans()):
        table[rng.integers(regions)] = 0
        table[:, rng.integers(regions)] = 0
    return table.astype(np.float64)


QUICK = TrainingSettings(steps=6, patience=6, horizon=2, origins_per_step=3)


class PlainGru(nn.Module):
    """A gated recurrent unit for each region alone: the authors' program in effect."""

    width = 5

    def __init__(self, inputs, generator):
        super().__init__()
        skip = torch.nn.utils.skip_init
        self.encoder = skip(nn.GRUCell, inputs, self.width)
        self.decoder = skip(nn.GRUCell, 1, self.width)
        self.readout = skip(nn.Linear, self.width, 1)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.4, 0.4, generator=generator)

    def encode(self, inputs, graphs, state=None):
        states = []
        for x, _ in zip(inputs, graphs, strict=True):
            state = self.encoder(x, state)
            states.append(state)
        return states

    def decode(self, state, last, graph, days):
        assert graph.regions == len(state)
        value, told = last[:, :1], []
        for _ in range(days):
            state = self.decoder(value, state)
            value = self.readout(state)
            told.append(value)
        return torch.cat(told, dim=1)
