"""Canary people: made-up gradients sent as a person's device, or a cohort, sends."""

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
    Seen,
    coins,
    factors,
    middle,
    row_lengths,
    signs,
)
from epifalcon.federation import client
from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.models.micro import LinearUse, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.streams import Streams
from epifalcon.types import Floats

_WEIGHT, _BIAS = ".weight", ".bias"


@dataclass(frozen=True, eq=False)
class CanaryPeople:
    """Made-up people, each a cohort of its own; see ``seen`` for what they are.

    Their gradients are of every parameter that the model has, all maps alike long,
    so that neither a clip of each map by itself nor noise that leaves one parameter
    out would do. With ``together`` of 2 or more each stands in a cohort with others
    whose gradient is zero, as in the fast engine, where all people are one cohort:
    the sum must carry the noise of everybody in it. Region states, which widen the
    input of the layers, are left out.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    people: int = 2000
    """Put in or left out; blanks come on top."""
    together: int = 1
    """People in each cohort."""

    def __post_init__(self) -> None:
        whole(2, people=self.people)
        whole(1, together=self.together)
        if self.plan.gradient is None:
            raise SettingsError(
                "mode='off' promises nothing: there is nothing to audit"
            )

    def gradients(self, rounds: Sequence[int]) -> Seen:
        """What every device, or cohort, sends in each round."""
        relation, clip = self.plan.relation, self._clip
        included = coins(self.seed, "people", (self.people,))
        strength = factors(included, relation)
        scores, lengths = (np.empty((len(rounds), self.people)) for _ in range(2))
        blank: dict[str, list[list[Floats]]] = {name: [] for name in self._sizes}
        for turn, (number, sign) in enumerate(signs(rounds)):
            for person, factor in enumerate(strength.tolist()):
                came = _joined(self._sent(person, factor * sign, number))
                own = self._direction(person)
                scores[turn, person] = sign * float(came @ own) / clip
                lengths[turn, person] = float(np.linalg.norm(came)) / clip
            rest = range(self.people, self.people + BLANKS)
            quiet = [self._sent(person, 0.0, number) for person in rest]
            for name, found in blank.items():
                found.append([one[name] for one in quiet])
        root = math.sqrt(self.together)
        return Seen(
            channel="gradient",
            unit="person",
            way="each upload" if self.together == 1 else "fast engine",
            rounds=tuple(rounds),
            scores=scores,
            lengths=lengths,
            included=included,
            middle=middle(relation),
            blank={
                name: np.array(found)[:, :, None] / root
                for name, found in blank.items()
            },
            size=sum(self._sizes.values()),
            noises=self.together,
        )

    def _sent(self, person: int, factor: float, number: int) -> dict[str, Floats]:
        """What leaves for one canary, by parameter, each as one vector."""
        uses = []
        for use in self._uses:
            out = use.outputs[person] * factor
            outputs = torch.zeros((self.together, len(out)), dtype=out.dtype)
            # Not the first, after whom the cohort's noise is named.
            outputs[-1] = out
            inputs = use.inputs[person].expand(self.together, -1)
            uses.append(LinearUse(use.weight, use.bias, inputs, outputs))
        cohort, where = self._cohorts[person], (RunSeeds(self.seed), number)
        sent = client.gradient_upload(cohort, uses, 1.0, self.plan, where).gradients
        return {name: sent[name].flatten().double().numpy() for name in self._sizes}

    def _direction(self, person: int) -> Floats:
        """The whole gradient of one canary, as a vector of length 1."""
        made: dict[str, Floats] = {}
        for use in self._uses:
            into, out = (
                one[person].double().numpy() for one in (use.inputs, use.outputs)
            )
            made[use.weight] = np.outer(out, into).ravel()
            if use.bias is not None:
                made[use.bias] = out
        whole_row = _joined({name: made[name] for name in self._sizes})
        return np.asarray(whole_row / np.linalg.norm(whole_row))

    @property
    def _clip(self) -> float:
        return 0.0 if self.plan.gradient is None else self.plan.gradient.clip

    @cached_property
    def _cohorts(self) -> list[Cohort]:
        nowhere = cohort_of(np.full((1, self.together), -1, np.int32))
        people = np.arange((self.people + BLANKS) * self.together)
        return [
            Cohort(one, nowhere.incidence, nowhere.status)
            for one in people.reshape(-1, self.together)
        ]

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        rng = np.random.default_rng(0)
        made = initial_parameters(self.model, 0, rng)
        return {name: tuple(one.shape) for name, one in made.items()}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Numbers in each parameter."""
        return {name: math.prod(shape) for name, shape in self._shapes.items()}

    @cached_property
    def _uses(self) -> tuple[LinearUse, ...]:
        """Gradients of all maps, of one length each; together as long as drawn."""
        rng = Streams(self.seed).numpy("canary gradients")
        people = self.people + BLANKS
        maps = [name for name in self._shapes if name.endswith(_WEIGHT)]
        length = row_lengths(self.seed, "people", people) * self._clip
        uses = []
        for name in maps:
            outputs, inputs = self._shapes[name]
            bias = name.removesuffix(_WEIGHT) + _BIAS
            into = rng.standard_normal((people, inputs))
            out = rng.standard_normal((people, outputs))
            squares = (into**2).sum(axis=1) + (bias in self._shapes)
            size = np.sqrt(squares * (out**2).sum(axis=1) * len(maps))
            out *= (length / size)[:, None]
            named = bias if bias in self._shapes else None
            uses.append(LinearUse(name, named, self._tensor(into), self._tensor(out)))
        return tuple(uses)

    def _tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).to(self.model.dtype)


def _joined(parts: dict[str, Floats]) -> Floats:
    return np.concatenate(list(parts.values()))
