"""What people hold, what places tell, and what leaves: the tables of a sweep."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.models.field.disease import Fit
from epifalcon.types import Floats, RegionIds

Singles = NDArray[np.float32]


class Home(NamedTuple):
    """What the people of a cohort hold at home."""

    here: RegionIds
    """(slots, people), -1 for not observed."""
    fit: Fit
    infectious: Singles
    """(slots, people) the message in force: expected infectiousness, in [0, 1]."""
    evidence: Singles
    """(slots, people) the message in force: evidence, from -1 to the bound."""
    risk: Floats
    """(people,) of having been infected, own tests aside."""
    counted: Singles
    """(people,) 1 for those whose infections and exposure are tallied, else 0."""
    prior: Floats
    """(people, 4) chance of S, E, I, R before the first slot, as earlier tests of
    the person let expect."""
    aside: Floats
    """(people, 4) the same, earlier own tests aside."""


class Told(NamedTuple):
    """What the places tell everybody."""

    edges: Floats
    """(slots, 1 + regions, 4): chance that one infectious person infects one
    other; people there but one; expected infectious people; evidence. Place 0 is
    "not observed"."""
    flat: Floats
    """(slots,) the hazard before anything was told, or nothing."""
    day: NDArray[np.int32]
    """(slots,) row of the tally."""
    own: float
    """1 where a person finds its own messages in the sums, and takes them out; 0
    where they are of others alone, or only as good as that."""
    typical: Floats
    """(days, 1 + regions) the typical over the mean factor of transmission: how
    much less an uncertain region is blamed for infections. 1 before any estimate."""


class Manner(NamedTuple):
    """How a sweep is to be done."""

    renewed_illness: float
    """Share of the new message in the one in force."""
    renewed_evidence: Floats
    """(slots,) the same of evidence."""
    bound: float
    """Evidence is cut off here."""


class Sums(NamedTuple):
    """What leaves a cohort: sums over its people."""

    infectious: Floats
    """(slots, 1 + regions)"""
    evidence: Floats
    """(slots, 1 + regions)"""
    well: Floats
    """(slots, 1 + regions) expected susceptible people, or of size 0."""
    tally: Floats
    """(2, days, 1 + regions) infections and the hazard borne, or of size 0."""
