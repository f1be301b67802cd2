"""The attack by sets in full: every assignment of claims to sets, one after another."""

from itertools import product

import numpy as np

from epifalcon.attacks.claims import Candidates
from epifalcon.mobility.mobility_model import MobilityModel
from tests.oracles.localisation_loop import claims_of
from tests.oracles.markov_loop import transition


def sets_of(found: Candidates, person: int) -> dict[int, tuple[int, ...]]:
    """The claims of each window that has some."""
    rows = enumerate(claims_of(found, person))
    return {window: tuple(claims) for window, claims in rows if claims}


def chances(found: Candidates, person: int, model: MobilityModel, evidence=None):
    """P(region is the truth of its set), by window; evidence lies as the claims do."""
    by_window = sets_of(found, person)
    distinct = list(dict.fromkeys(by_window.values()))
    lives = np.array(list(product(*(range(len(one)) for one in distinct))))
    total, before = np.zeros(len(lives)), None
    for window, claims in by_window.items():
        here, slot = distinct.index(claims), window * found.window_slots
        regions, chosen = np.array(claims, np.int32), lives[:, here]
        if before is None:
            total += model.log_visits[slot % model.slots_per_day][regions][chosen]
        else:
            was = np.array(distinct[before], np.int32)
            moves = transition(model, slot - 1, was[:, None], regions, normalised=True)
            with np.errstate(divide="ignore"):
                moves = np.log(moves)
            total += moves[lives[:, before], chosen]
        if evidence is not None:
            first = found.start[person * found.windows + window]
            total += evidence[first + chosen]
        before = here
    share = np.exp(total - total.max())
    share /= share.sum()
    made = []
    for window in range(found.windows):
        claims = by_window.get(window, ())
        place = distinct.index(claims) if claims else 0
        made.append(
            [share[lives[:, place] == spot].sum() for spot in range(len(claims))]
        )
    return made
