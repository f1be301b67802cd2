"""Fine-tune the learned correction on held-out tested people, by DPSGD.

A person's gradient is that of the log loss of its own result, told by a run that did
not know it. Gradients are clipped over all tuned weights together, added up and
noised; the receipt of a step stands in the ledger before its sum is looked at.

A tuning is made twice, each time on every second person. Each half is told by the
other's weights, which shows what a tuning wins; the weights in use are the mean of
both. So nobody takes part in both halves: a step of both is one release of one
vector of each person. The same holds for the tunings of all folds.

What is bounded is a person's own gradient. What others say of it through places
follows from messages, which are another channel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import TUNING, TuningSettings
from epifalcon.models.field.correction import Correction
from epifalcon.models.field.lessons import LayerSlopes, Lessons, slopes_of
from epifalcon.privacy.accounting import sigma_for
from epifalcon.privacy.dpsgd import (
    GradientMechanism,
    LinearTape,
    clipped_sum,
    private_mean,
)
from epifalcon.privacy.events import (
    ONE_VECTOR,
    GaussianRelease,
    Releases,
    Terms,
    UnprotectedRelease,
)
from epifalcon.privacy.gaussian import KeyedNormals, NoiseKey
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.types import Plain, Probabilities

_TIMES = 2
"""Tunings that a person takes part in."""
_HALVES = 2
_REST = UnprotectedRelease(
    terms=Terms(channel="field", releases=Releases(visit=1, day=1, person=1)),
    what="all but tuning: sums of messages, of tests and of how well people are told",
)
Weights = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """Clip, noise and receipts of all steps; decided once."""

    settings: TuningSettings

    @property
    def mechanism(self) -> GradientMechanism:
        """With the noise that keeps the promise exactly, or that was wished for."""
        wish = self.settings
        if wish.sigma is not None:
            return GradientMechanism(wish.clip, wish.sigma * wish.clip)
        releases = _TIMES * max(wish.steps, 1)
        sigma = sigma_for(wish.epsilon, wish.delta, wish.clip, releases)
        return GradientMechanism(wish.clip, sigma)

    @property
    def budget(self) -> Budget:
        """The promise as the ledger keeps it; none where noise was wished for."""
        wish = self.settings
        limit = wish.epsilon if wish.sigma is None else None
        return Budget(person=limit, delta=wish.delta)

    def terms(self, time: int, step: int) -> Terms:
        """Of one step, from 1 on, of the first or the second tuning of everybody."""
        local = self.settings.noise == "local"
        return Terms(
            channel=TUNING,
            releases=ONE_VECTOR,
            round=time * self.settings.steps + step,
            adversary="each-upload" if local else "sums",
        )

    def receipts(self, time: int) -> tuple[GaussianRelease, ...]:
        """Of all steps of one tuning of everybody."""
        steps = range(1, self.settings.steps + 1)
        return tuple(self.mechanism.receipt(self.terms(time, one)) for one in steps)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a tuning found."""

    correction: Correction
    told: Probabilities
    """(people,) the lessons' risks, each corrected by weights without the person."""


class Tuner:
    """All tunings of one run, by one plan and one ledger."""

    def __init__(self, plan: TuningPlan, ledger: Ledger, seed: int) -> None:
        self._plan, self.ledger, self._seed = plan, ledger, seed
        self._time = -1
        self._group = 0
        ledger.record(_REST)

    @property
    def always(self) -> bool:
        """Whether what was tuned is used whatever held-out people show."""
        return self._plan.settings.taken == "always"

    def begin(self) -> None:
        """Record that everybody takes part in one tuning more, before it does.

        All calls of ``tune`` until the next ``begin`` are this one tuning: no two of
        them may have a person in common.
        """
        self._time += 1
        self.ledger.record(*self._plan.receipts(self._time))
        self._group = 0

    def tune(
        self, correction: Correction, lessons: Lessons, errors: TestErrors
    ) -> Tuned:
        """The correction, tuned on ``lessons``; without steps the same."""
        if self._time < 0:
            raise SettingsError("begin() must come first: nothing was recorded yet")
        half = np.arange(len(lessons)) % _HALVES
        told, found = np.empty(len(lessons)), []
        for one in range(_HALVES):
            weights = self._descend(correction, lessons.of(half == one), errors)
            found.append(weights)
            others = lessons.of(half != one)
            told[half != one] = Correction(weights, {})(others.risk, others.numbers)
        mean = {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
        return Tuned(Correction(mean, correction.made), told)

    def as_plain(self) -> Plain:
        """What it cost so far, for the log."""
        mechanism, wish = self._plan.mechanism, self._plan.settings
        spent = self.ledger.spent().channels.get(TUNING)
        epsilon = 0.0 if spent is None else spent["person"].epsilon
        return {
            "steps": wish.steps,
            "clip": mechanism.clip,
            "sigma": mechanism.sigma,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self.ledger.budget.delta,
            "noise": wish.noise,
        }

    def _descend(
        self, correction: Correction, lessons: Lessons, errors: TestErrors
    ) -> Weights:
        """The weights after all steps on these people."""
        weights, wish = dict(correction.arrays), self._plan.settings
        group, self._group = self._group, self._group + 1
        for step in range(1, wish.steps + 1):
            if not len(lessons):
                break
            slopes = slopes_of(weights, lessons, errors)[-wish.layers :]
            for name, mean in self._mean(slopes, step, group).items():
                weights[name] = weights[name] - wish.learning_rate * mean
        return weights

    def _mean(self, slopes: Sequence[LayerSlopes], step: int, group: int) -> Weights:
        """What the server sees of one step."""
        terms = self._plan.terms(self._time, step)
        noise = KeyedNormals(NoiseKey(self._seed, terms), group)
        clipped = clipped_sum(tapes(slopes), self._plan.mechanism.clip)
        seen = private_mean(clipped, self._plan.mechanism, terms, noise).value
        return {name: value.numpy() for name, value in seen.items()}


def tapes(slopes: Sequence[LayerSlopes]) -> list[LinearTape]:
    """The layers as they are clipped."""
    return [
        LinearTape(
            one.weight,
            torch.from_numpy(np.ascontiguousarray(one.inputs)),
            torch.from_numpy(np.ascontiguousarray(one.outputs)),
            one.bias,
        )
        for one in slopes
    ]
