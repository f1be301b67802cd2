"""EPIGNN: graph convolution on the recent states of tested people.

Tomy, Razzanelli, Di Lauro, Rus and Della Santina, "Estimating the state of
epidemics spreading with graph neural networks" (Nonlinear Dynamics 109, 2022).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import Count, Share
from epifalcon.epidemic.test_results import TestResults
from epifalcon.methods.gcn import Convolutions
from epifalcon.methods.graph_networks import NetworkMethod, NetworkSettings
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats


@dataclass(frozen=True, kw_only=True)
class EpignnSettings(NetworkSettings):
    """Settings of EPIGNN."""

    width: Count = 64
    dropout: Share = 0.4
    layers: Count = 1
    """Number of graph convolutions; 3 in the paper."""
    recent_days: Count = 15
    """Number of last days over which states are counted."""


class Epignn(NetworkMethod):
    """Graph convolution of width 64 on how long tested people were in each state.

    Here ``input="exposure"`` is the paper's input: the numbers of the last 15 days on
    which each tested person was susceptible and infected, scaled to [0, 1] over the
    tested people, and zeros for everybody else. Differences from the paper:

    - One layer instead of three: each further average over contacts loses information
      here, AUC .686 with ``layers=3`` and .700 with one (``epifalcon compare --preset
      larger-sars --methods epignn --seeds 1``).
    - A day counts only if a test implies the state on it (``days_in_state``).
    - One outbreak instead of 80 simulated ones; the states of people in the loss are
      masked in the input, with the same folds as for all networks.
    - Edges are weighted by the number of slots together, as in ``gcn``.
    - The loss takes log odds; the authors' program applies softmax twice.
    """

    name = "epignn"
    settings_type = EpignnSettings
    settings: EpignnSettings
    network_type = Convolutions
    static = True
    reads_results = True

    def features(self, traces: Traces, known: TestResults) -> Tensor:
        """Return scaled days in each state, (people, 1, 2), from tests ``known``."""
        days = days_in_state(known, traces.clock, self.settings.recent_days)
        seen = days[known.tested] if known.tested.any() else np.zeros((1, 2))
        low, high = seen.min(axis=0), seen.max(axis=0)
        # A count that is equal for all people is scaled to 1.
        span = np.where(high > low, high - low, np.maximum(high, 1))
        floor = np.where(high > low, low, 0)
        scaled = np.where(known.tested[:, None], (days - floor) / span, 0)
        return torch.from_numpy(scaled.astype(np.float32)[:, None, :])


def days_in_state(known: TestResults, clock: Clock, recent_days: int) -> Floats:
    """Return each person's recent days known susceptible and infected, (people, 2).

    Only days with a state implied by a test count. Nobody is infected twice, so a
    negative test before any positive one implies susceptible up to its day; a positive
    test implies infected from its day until a later negative one.
    """
    first_day = max(clock.days - recent_days, 0)
    test_day = np.minimum(known.slot // clock.slots_per_day, clock.days - 1)
    found = np.zeros((known.people, 2))
    infected_from = np.full(known.people, clock.days)
    positive = known.positive
    np.minimum.at(infected_from, known.person[positive], test_day[positive])
    before = ~positive & (test_day < infected_from[known.person])
    healthy_until = np.zeros(known.people, np.int64)
    np.maximum.at(healthy_until, known.person[before], test_day[before] + 1)
    after = ~positive & (test_day > infected_from[known.person])
    recovered_from = np.full(known.people, clock.days)
    np.minimum.at(recovered_from, known.person[after], test_day[after])
    found[:, 0] = np.maximum(healthy_until - first_day, 0)
    found[:, 1] = recovered_from - np.maximum(infected_from, first_day)
    return np.maximum(found, 0)
