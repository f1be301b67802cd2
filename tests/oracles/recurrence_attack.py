"""An attack that knows no model: the true place is the one that comes back."""

import numpy as np

from epifalcon.privacy.pseudo_traces import PseudoTraces


def recurrence_error(made: PseudoTraces, rng: np.random.Generator) -> float:
    """Share of (person, slot) in which the attacker names a pseudo place.

    For each place claimed in a slot the attacker counts on how many other days
    the person claims it at the same hour, and names the most frequent, at
    random among equals. A guess errs in copies / (copies + 1) of all slots.
    """
    true, day = made.true.by_slot, made.true.clock.slots_per_day
    claims = np.concatenate([true[None], made.pseudo])
    days = claims.reshape(len(claims), -1, day, true.shape[1])
    back = np.zeros(days.shape)
    for other in range(days.shape[1]):
        for copy in range(len(claims)):
            back += (days == days[copy, None, None, other]) & (days >= 0)
    score = np.where(days >= 0, back, -1) + rng.random(days.shape)
    wrong = score.argmax(axis=0) != 0
    return float(wrong[days[0] >= 0].mean())
