"""The region state of a person, against a loop over its places."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.models.coupling import state_of_people
from tests.oracles.cities import cities
from tests.oracles.dense_hypergraph import members_by_loop


@settings(deadline=None, derandomize=True, max_examples=40)
@given(cities(), st.booleans(), st.sampled_from([1, 3, 11]))
def test_the_mean_over_true_places(traces, by_day, width):
    window = traces.clock.slots_per_day if by_day else 1
    inc = Incidence.of(traces, HypergraphSettings(window_slots=window))
    states = torch.randn(
        len(traces.regions),
        traces.clock.days,
        width,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(1),
    )
    expected = np.zeros((traces.people, width))
    count = np.zeros(traces.people)
    for key, members in members_by_loop(traces, window).items():
        window_number, region = divmod(key, len(traces.regions))
        day = traces.clock.day_of_slot(window_number * window)
        for person in members:
            expected[person] += states[region, day].numpy()
            count[person] += 1
    expected /= np.maximum(count, 1)[:, None]
    assert np.allclose(state_of_people(states, inc, traces.clock), expected)


def test_another_city_is_refused():
    clock = Clock(8, 2)
    key = np.zeros(1, np.int64)
    from tests.hypergraph.hypergraphs import by_hand

    inc = by_hand(2, [[0, 1]] * 6)
    assert inc.edge_key[0] == key[0]
    good = torch.zeros(1, 2, 3)
    assert state_of_people(good, inc, clock).shape == (2, 3)
    with pytest.raises(DataError, match="another city"):
        state_of_people(torch.zeros(2, 2, 3), inc, clock)
    with pytest.raises(DataError, match="another city"):
        state_of_people(torch.zeros(1, 3, 3), inc, clock)
    with pytest.raises(DataError, match="do not divide"):
        state_of_people(good, by_hand(2, [[0, 1]] * 4), clock)
    with pytest.raises(DataError, match="NaN"):
        state_of_people(good * torch.nan, inc, clock)
