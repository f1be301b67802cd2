"""Choose among laws by people who were held out, the simpler one in doubt."""

from collections.abc import Mapping

import numpy as np

from epifalcon.models.field.settings import LAWS, Law
from epifalcon.types import Floats, Mask, Probabilities

_LEAST_RISK = 1e-6


def losses(risk: Probabilities, infected: Mask) -> Floats:
    """Log loss of each person."""
    told = np.where(infected, risk, 1 - risk)
    return np.asarray(-np.log(np.clip(told, _LEAST_RISK, 1.0)))


def choose(lost: Mapping[Law, Floats]) -> Law:
    """The law that loses least among held-out people, (people,) each.

    A richer one must win by more than one standard error over the best of the
    simpler ones.
    """
    best: Law = "one"
    for law in LAWS:
        if law == best or law not in lost:
            continue
        gain = lost[best] - lost[law]
        if len(gain) < 2:
            continue
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        if gain.mean() > error:
            best = law
    return best
