"""Choose among models by people who were held out, the simpler one in doubt."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from epifalcon.types import Floats, Mask, Probabilities

Name = TypeVar("Name", bound=Hashable)

_LEAST_RISK = 1e-6


def losses(risk: Probabilities, infected: Mask) -> Floats:
    """Log loss of each person."""
    told = np.where(infected, risk, 1 - risk)
    return np.asarray(-np.log(np.clip(told, _LEAST_RISK, 1.0)))


def choose(lost: Mapping[Name, Floats]) -> Name:
    """The one that loses least among held-out people, (people,) each.

    They stand from simple to rich; a richer one must win by more than one standard
    error over the best of the simpler ones.
    """
    best, *richer = lost
    for name in richer:
        gain = lost[best] - lost[name]
        if len(gain) < 2:
            continue
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        if gain.mean() > error:
            best = name
    return best
