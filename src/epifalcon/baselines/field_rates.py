"""Latent and infectious times other than the pathogen's, where tests speak for them.

Tests tell little of them: a disease that is infectious for twice as long at half the
rate infects about the same people. So each is tried at half and at twice the
published value, with transmission estimated, and must tell held-out people better by
more than one standard error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_runs import Runs, held_out
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.settings import Law
from epifalcon.types import Floats


@dataclass(frozen=True)
class Times:
    """What the pathogen's rates are multiplied with."""

    alpha: float = 1.0
    """Of becoming infectious."""
    mu: float = 1.0
    """Of recovering."""


PUBLISHED = Times()
TRIED = (
    *(PUBLISHED, Times(alpha=0.5), Times(alpha=2.0), Times(mu=0.5), Times(mu=2.0)),
)
_LAW: Law = "scaled"


class RunsByTimes:
    """Runs of the field under each of the tried times, made when asked for."""

    def __init__(self, scene: Scene, traces: Traces, wishes: FieldWishes) -> None:
        self._scene, self._traces, self._wishes = scene, traces, wishes
        self._made: dict[Times, Runs] = {}

    def under(self, times: Times) -> Runs:
        """The runs under these times."""
        if times not in self._made:
            believed = self._scene.pathogen
            pathogen = replace(
                believed,
                alpha=believed.alpha * times.alpha,
                mu=believed.mu * times.mu,
            )
            scene = replace(self._scene, pathogen=pathogen)
            self._made[times] = Runs(scene, self._traces, self._wishes)
        return self._made[times]

    def chosen(self, tests: Known, fold: NDArray[np.int64]) -> Times:
        """The times that ``tests`` speak for, by folds held out as for a law."""
        held = held_out(tests, fold)
        if self._wishes.field.rates == "given" or not held:
            return PUBLISHED
        return choose({times: self._lost(times, tests, fold) for times in TRIED})

    def _lost(self, times: Times, tests: Known, fold: NDArray[np.int64]) -> Floats:
        parts = []
        for part in held_out(tests, fold):
            out = fold == part
            risk = self.under(times).shortly(tests.of_people(~out), _LAW).risk[out]
            parts.append(losses(risk, tests.status[out] == 1))
        return np.concatenate(parts)


def as_plain(times: Times) -> Mapping[str, float]:
    """The figures for the log."""
    return {"alpha_factor": times.alpha, "mu_factor": times.mu}
