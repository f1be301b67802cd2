"""Small cities of regions with flows and cases."""

import numpy as np
import scipy.sparse as sp
import torch

from epifalcon.mobility.flows import Flows
from epifalcon.models.region_model import RegionHistory
from epifalcon.models.settings import TrainingSettings

QUICK = TrainingSettings(steps=6, patience=6, horizon=2, origins_per_step=3)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def flows_of(tables) -> Flows:
    """Flows from one square table of moves per day."""
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
