import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.federation.field.site_people import (
    ClippingRule,
    Sent,
    _add_messages,
    send,
)
from tests.belief_propagation.graphs import cohorts_of
from tests.methods.test_hbp import town_scene
from tests.oracles import private_field_loop as oracle
from tests.studies import town

REGIONS, SLOTS = 5, 12


@st.composite
def crowds(draw):
    """A few people's places and messages, and a way to bound them."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    people = draw(st.integers(1, 6))
    here = rng.integers(-1, REGIONS, (SLOTS, people)).astype(np.int32)
    message = rng.random((SLOTS, people)).astype(np.float32)
    clipping = ClippingRule(
        rng.random(SLOTS) * draw(st.sampled_from([0.0, 0.5])),
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.sampled_from([0.0, 0.1])),
        draw(st.sampled_from([1, 4, SLOTS])),
        draw(st.sampled_from([0.05, 0.4, np.inf])),
        draw(st.sampled_from([0.2, 1.0, np.inf])),
        draw(st.sampled_from([0, 1, 2])),
        1.0,
        draw(st.sampled_from([0.0, 2.0**-6])),
    )
    return here, message, clipping


def sums_of(here, message, clipping):
    shape = (SLOTS // clipping.length, 1 + REGIONS)
    sent = Sent(np.zeros(shape), np.zeros(shape))
    _add_messages(here, message, clipping, sent)
    return sent


@given(crowds())
@settings(max_examples=60, deadline=None)
def test_sums_are_those_of_plain_loops(crowd):
    here, message, clipping = crowd
    found = sums_of(here, message, clipping)
    total, senders = oracle.sent(here, message, clipping)
    for part, plain in ((found.total, total), (found.senders, senders)):
        wanted = np.zeros_like(part)
        for (stretch, region), value in plain.items():
            wanted[stretch, region + 1] = value
        np.testing.assert_allclose(part, wanted, atol=1e-7)


@given(crowds())
@settings(max_examples=60, deadline=None)
def test_nobody_weighs_more_than_the_bound(crowd):
    here, message, clipping = crowd
    for person in range(here.shape[1]):
        alone = sums_of(here[:, [person]], message[:, [person]], clipping)
        # Not a hair more: entries are cut towards 0.
        assert np.linalg.norm(alone.total) <= clipping.bound * (1 + 1e-12)


@given(crowds(), st.integers(0, SLOTS // 4 - 1))
@settings(max_examples=80, deadline=None)
def test_a_day_without_traces_moves_a_first_message_by_its_own_part(crowd, day):
    """A message that does not follow from traces; days of four slots."""
    here, message, clipping = crowd
    clipping = clipping._replace(places=0, cap=min(clipping.cap, 1.0))
    without = here.copy()
    without[4 * day : 4 * day + 4] = -1
    for person in range(here.shape[1]):
        one = [person]
        moved = (
            sums_of(here[:, one], message[:, one], clipping).total
            - sums_of(without[:, one], message[:, one], clipping).total
        )
        together = 2.0 if clipping.length == 1 else 4.0
        assert np.linalg.norm(moved) <= together * clipping.cap + 1e-6


@pytest.mark.parametrize(("places", "step"), [(0, 0.0), (2, 0.0), (0, 2.0**-24)])
def test_sums_do_not_depend_on_the_division_of_people(places, step):
    deals = [None, [np.arange(31), np.arange(31, 80)], [[k] for k in range(80)]]
    found = []
    for deal in deals:
        cohorts = cohorts_of(town_scene(), town.known(), deal).cohorts
        for cohort in cohorts:
            here = cohort.state.regions
            cohort.state.infectious[:] = np.sin(1 + here.sum(axis=0) % 7) ** 2
        slots, base = town.traces().slots, np.full(town.traces().slots, 0.1)
        clipping = ClippingRule(base, 0.03, 0.0, slots, 0.04, 0.5, places, 1.0, step)
        sent = [send(cohort, clipping) for cohort in cohorts]
        found.append([sum(one.total for one in sent), sum(one.senders for one in sent)])
    assert found[0][0].any()
    for other in found[1:]:
        # Fixed-point sums are exact.
        np.testing.assert_allclose(found[0], other, 0, 0.0 if step else 1e-9)
