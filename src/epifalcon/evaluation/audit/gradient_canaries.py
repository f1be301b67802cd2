"""Canary people: made-up gradients sent as a person's own device sends them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.canaries import cohort_of
from epifalcon.evaluation.audit.seen import (
    BLANKS,
    LENGTH,
    Seen,
    coins,
    factors,
    middle,
    sign,
)
from epifalcon.federation import client
from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.models.micro import LinearUse
from epifalcon.models.settings import FalconSettings
from epifalcon.streams import Streams
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class CanaryPeople:
    """Made-up people, each a cohort of its own; see ``seen`` for what they are.

    Their gradients are those of two linear maps, the layer and the head, so that a
    clip of each map by itself would not do.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    people: int = 2000
    """Put in or left out; blanks come on top."""

    def __post_init__(self) -> None:
        whole(2, people=self.people)
        if self.plan.gradient is None:
            raise SettingsError(
                "mode='off' promises nothing: there is nothing to audit"
            )

    def gradients(self, rounds: Sequence[int]) -> Seen:
        """What every device sends in each round."""
        relation = self.plan.relation
        included = coins(self.seed, "people", (self.people,))
        strength = np.append(factors(included, relation), np.zeros(BLANKS))
        rows = _flat(self._uses)[: self.people]
        size = np.linalg.norm(rows, axis=1) * self._clip
        scores, blank = [], []
        for number in rounds:
            turned = (strength * sign(number)).tolist()
            came = np.stack(
                [self._sent(who, one, number) for who, one in enumerate(turned)]
            )
            along = (came[: self.people] * rows).sum(axis=1)
            scores.append(sign(number) * along / size)
            blank.append(came[self.people :, None])
        return Seen(
            channel="gradient",
            unit="person",
            way="each upload",
            scores=np.stack(scores),
            included=included,
            middle=middle(relation),
            blank=np.stack(blank),
        )

    def _sent(self, person: int, factor: float, number: int) -> Floats:
        """What one person's device sends, as one vector."""
        own = slice(person, person + 1)
        uses = [
            LinearUse(use.weight, use.bias, use.inputs[own], use.outputs[own] * factor)
            for use in self._uses
        ]
        cohort, where = self._cohorts[person], (RunSeeds(self.seed), number)
        sent = client.gradient_upload(cohort, uses, 1.0, self.plan, where).gradients
        parts = [sent[name] for use in uses for name in _names(use)]
        return torch.cat([part.flatten() for part in parts]).double().numpy()

    @property
    def _clip(self) -> float:
        return 0.0 if self.plan.gradient is None else self.plan.gradient.clip

    @cached_property
    def _cohorts(self) -> list[Cohort]:
        nowhere = cohort_of(np.full((1, 1), -1, np.int32))
        people = np.arange(self.people + BLANKS)[:, None]
        return [Cohort(one, nowhere.incidence, nowhere.status) for one in people]

    @cached_property
    def _uses(self) -> tuple[LinearUse, ...]:
        """Gradients of two maps, of one length each, together ``LENGTH`` clips long."""
        rng = Streams(self.seed).numpy("canary gradients")
        people, width = self.people + BLANKS, self.model.width
        inputs = [rng.standard_normal((people, width)) for _ in range(2)]
        outputs = [rng.standard_normal((people, size)) for size in (width, 2)]
        share = LENGTH * self._clip / math.sqrt(len(inputs))
        for into, out in zip(inputs, outputs, strict=True):
            squares = (1 + (into**2).sum(axis=1)) * (out**2).sum(axis=1)
            out *= (share / np.sqrt(squares))[:, None]
        return tuple(
            LinearUse(
                f"{name}.weight",
                f"{name}.bias",
                self._tensor(into),
                self._tensor(out),
            )
            for name, into, out in zip(("layer0", "head"), inputs, outputs, strict=True)
        )

    def _tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).to(self.model.dtype)


def _names(use: LinearUse) -> tuple[str, ...]:
    return (use.weight,) if use.bias is None else (use.weight, use.bias)


def _flat(uses: Sequence[LinearUse]) -> Floats:
    """Everybody's whole gradient: (people, parameters)."""
    parts = []
    for use in uses:
        outer = use.outputs[:, :, None] * use.inputs[:, None, :]
        parts += [outer.flatten(1), use.outputs]
    return torch.cat(parts, dim=1).double().numpy()
