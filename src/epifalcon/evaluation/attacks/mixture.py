"""People of several kinds in one list of noisy numbers, told apart without labels.

The attacker knows the noise, not who is what: numbers are those of people without
a signal, N(0, 1), and of people with one, around centres of known sides. How many
are of each kind, where the centres lie and how far signals differ from person to
person is found by expectation and maximisation (Dempster, Laird and Rubin 1977).
"""

from collections.abc import Sequence

import numpy as np

from epifalcon.types import Floats

_STEPS = 200
_STEADY = 1e-9
_LEAST = 1e-3


def fit(values: Floats, most: float, sides: Sequence[float]) -> Floats:
    """Log-likelihood of each value by kind: (people, 1 + sides), no signal first.

    ``values`` (people,) are in units of their noise; ``sides`` are the signs of the
    centres, ``most`` the largest signal that the protocol allows. Noise may turn
    out larger than 1 but not smaller. Without any signal the kinds end alike, so
    that the numbers can be added to other evidence.
    """
    signs = np.concatenate([[0.0], np.asarray(sides, float)])
    excess = max(float(np.mean(values * values)) - 1, _LEAST)
    centre = signs * min(np.sqrt(2 * excess), most)
    variance = np.full(len(signs), 1 + min(excess, most * most) / 2)
    variance[0] = 1.0
    share = np.full(len(signs), 0.5 / len(sides))
    share[0] = 0.5
    before = -np.inf
    for _ in range(_STEPS):
        joint = _log_normal(values, centre, variance) + np.log(share)
        whole = np.logaddexp.reduce(joint, axis=1)
        total = float(whole.mean())
        if total - before < _STEADY * max(1.0, abs(total)):
            break
        before = total
        belongs = np.exp(joint - whole[:, None])
        # Where everybody is of one kind, the shares of others must stay above 0.
        weight = belongs.sum(axis=0) + _LEAST
        share = weight / weight.sum()
        found = (belongs * values[:, None]).sum(axis=0) / weight
        centre = signs * np.clip(signs * found, 0.0, most)
        away = (belongs * (values[:, None] - centre) ** 2).sum(axis=0)
        noise = max(float(away[0] / weight[0]), 1.0)
        spread = float(away[1:].sum() / weight[1:].sum()) - noise
        variance = np.full(len(signs), noise + np.clip(spread, 0.0, most * most / 4))
        variance[0] = noise
    return _log_normal(values, centre, variance)


def at(values: Floats, centres: Sequence[float]) -> Floats:
    """Log-likelihood of each value by kinds with known centres: (people, kinds)."""
    return _log_normal(values, np.asarray(centres, float), np.ones(len(centres)))


def _log_normal(values: Floats, centre: Floats, variance: Floats) -> Floats:
    """Log-density up to a constant: (people, kinds)."""
    away = values[:, None] - centre
    return np.asarray(-(away * away) / (2 * variance) - np.log(variance) / 2)
