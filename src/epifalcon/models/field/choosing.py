"""Choose among models by people who were held out, the simpler one in doubt."""

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

import numpy as np

from epifalcon.types import Floats, Mask, Probabilities

Name = TypeVar("Name", bound=Hashable)

_LEAST_RISK = 1e-6


def losses(risk: Probabilities, infected: Mask) -> Floats:
    """Log loss of each person."""
    told = np.where(infected, risk, 1 - risk)
    return np.asarray(-np.log(np.clip(told, _LEAST_RISK, 1.0)))


def choose(lost: Mapping[Name, Floats], alike: Collection[Name] = ()) -> Name:
    """The one that loses least among held-out people, (people,) each.

    They stand from simple to rich; a richer one must win over the best of the simpler
    ones as ``wins`` has it. Those of ``alike`` are as rich as each other.
    """
    best, *richer = lost
    for name in richer:
        gain = lost[best] - lost[name]
        if len(gain) < 2:
            continue
        error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
        if wins(float(gain.mean()), error, richer=not {best, name} <= set(alike)):
            best = name
    return best


def wins(gain: float, error: float, *, richer: bool) -> bool:
    """Whether a mean gain with this standard error is enough to change the model.

    For a richer one it must be more than the error.
    """
    return gain > (error if richer else 0.0)
