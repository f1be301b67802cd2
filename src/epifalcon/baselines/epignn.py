"""EPIGNN: graph convolution on the recent states of known people.

Tomy, Razzanelli, Di Lauro, Rus and Della Santina, "Estimating the state of
epidemics spreading with graph neural networks" (Nonlinear Dynamics 109, 2022).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from epifalcon.baselines.gcn import Convolutions
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.networks import NetworkMethod, NetworkSettings
from epifalcon.checks import whole
from epifalcon.epidemic.known import Known
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats


@dataclass(frozen=True, kw_only=True)
class EpignnSettings(NetworkSettings):
    """Of EPIGNN."""

    width: int = 64
    dropout: float = 0.4
    layers: int = 3
    recent_days: int = 15
    """Days from the end of the traces over which states are counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(1, layers=self.layers, recent_days=self.recent_days)


class Epignn(NetworkMethod):
    """Three graph convolutions of 64 on how long known people were in each state.

    ``input="exposure"`` is the paper's input here: the days that each known
    person was susceptible and infected among the last 15, zeros for everybody
    else, scaled to [0, 1] by the known people. Known and asked people are apart,
    as the folds of all networks do. Adapted: states come from tests, so a day
    counts only where a test tells of it (``days_in_state``); one outbreak is
    learnt from, not 80 simulated ones; the graph is weighted by slots together,
    as in ``gcn``; and the loss sees log odds (the authors' program puts a
    softmax before a loss that has one).
    """

    name = "epignn"
    title = "EPIGNN"
    settings_type: ClassVar[type] = EpignnSettings
    settings: EpignnSettings
    reads_results = True

    def network(self, ground: Ground, channels: int) -> nn.Module:
        """``settings.layers`` layers of ``settings.width``."""
        settings = self.settings
        flat = self.flat(ground, channels, days=1)
        widths = (flat.width, *[settings.width] * settings.layers)
        return Convolutions(ground, flat, widths, settings.dropout)

    def features(self, traces: Traces, known: Known) -> Tensor:
        """Scaled days in each state, (people, 1, 2), from the tests in ``known``."""
        days = days_in_state(known, traces.clock, self.settings.recent_days)
        seen = days[known.tested]
        low, high = (
            (seen.min(axis=0), seen.max(axis=0)) if len(seen) else np.zeros((2, 2))
        )
        # A count that is the same for all tells nothing, but is not nothing.
        span = np.where(high > low, high - low, np.maximum(high, 1))
        floor = np.where(high > low, low, 0)
        scaled = np.where(known.tested[:, None], (days - floor) / span, 0)
        return torch.from_numpy(scaled.astype(np.float32)[:, None, :])


def days_in_state(known: Known, clock: Clock, recent_days: int) -> Floats:
    """How many of the last days people are known susceptible and infected: (people, 2).

    Infection is told once, for good or until recovery, so a negative test before
    any positive one speaks for all days up to its own; a positive one for its
    day and those after, until a later negative one. What no test speaks of does
    not count: people without a test have zeros.
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
