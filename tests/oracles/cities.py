"""Small random cities with gaps, for hypothesis."""

import numpy as np
from hypothesis import strategies as st

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces


def random_traces(seed: int, people: int, regions: int, clock: Clock) -> Traces:
    """Traces with whole blocks missing, people never seen and unplaced regions."""
    rng = np.random.default_rng(seed)
    own = rng.integers(regions, size=(people, 4))
    pick = rng.integers(4, size=(clock.slots, people))
    ids = own[np.arange(people), pick].astype(np.int32)
    ids[rng.random(ids.shape) < rng.choice([0.0, 0.2, 0.7])] = -1
    ids[:, rng.random(people) < 0.1] = -1
    centre = rng.uniform(0, 6, size=(regions, 2))
    centre[rng.random(regions) < rng.choice([0.0, 0.3])] = np.nan
    return Traces(ids, clock, Regions("area", centre))


@st.composite
def cities(draw: st.DrawFn) -> Traces:
    """A city of up to 12 people, 9 regions, 4 days."""
    clock = Clock(draw(st.sampled_from([4.0, 8.0, 24.0])), draw(st.integers(1, 4)))
    return random_traces(
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 9)),
        clock,
    )
