"""Traces that begin later than the outbreak did: how many were infected by then."""

from dataclasses import replace

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings


def begun_by(rule: OutbreakSettings, share: float) -> OutbreakSettings:
    """The same rule, begun by ``share`` of the people, whoever they are."""
    return replace(
        rule, seed_count=None, seed_people=(), seed_regions=(), seed_share=share
    )


def share_infected(
    rule: OutbreakSettings, pathogen: Pathogen, known: Known, slot: int
) -> float:
    """Share of people infected before ``slot`` of the outbreak, by tests alone.

    As if it had grown by one factor a slot, from the seeds to the share of positive
    tests in the mean slot of the tests. Half a seed is the least.
    """
    seeds = max(rule.wished_seeds(pathogen, known.people), 0.5)
    seeded = min(seeds / known.people, 1.0)
    if not len(known.slot):
        return seeded
    positives = np.count_nonzero(known.status == 1)
    # As if one more person were tested, and infected like anybody at the start.
    share = (positives + seeded) / (np.count_nonzero(known.tested) + 1)
    way = min(slot / max(float(known.slot.mean()), 1.0), 1.0)
    return float(seeded ** (1 - way) * share**way)
