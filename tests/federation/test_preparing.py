"""What a site makes for its own people, whatever the split into sites."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.cases import cases_without_folds, reported_cases
from epifalcon.federation.preparing import StateMoments, StateScaling, divide
from epifalcon.federation.settings import PrivacySettings, SiteRules
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.one_process import prepare, split
from epifalcon.federation.sites.run import Order
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.markov import MobilityModelSettings, mobility_model
from tests.studies import town

SHARE = replace(town.FALCON.stopping, validation_share=0.3)
SETTINGS = replace(town.FALCON, stopping=SHARE)


def homes(sites):
    return split(town.traces(), town.known(), sites)


def divided(sites, seed=4):
    parts = [divide(home, SETTINGS, seed) for home in homes(sites)]
    firsts = [home.first for home in homes(sites)]
    held = [part.held_back + first for part, first in zip(parts, firsts, strict=True)]
    return np.concatenate(held), np.concatenate([part.fold for part in parts])


@pytest.mark.parametrize("sites", [2, 7, 80])
def test_who_is_held_back_and_the_folds_do_not_depend_on_the_split(sites):
    one, other = divided(1), divided(sites)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.tolist() == theirs.tolist()


def test_held_back_are_a_share_of_the_tested_and_folds_cover_the_others():
    held, fold = divided(1)
    tested = town.known().tested
    assert tested[held].all()
    assert 0 < len(held) < tested.sum()
    assert (fold[held] == -1).all()
    assert ((fold >= 0) == (tested & ~np.isin(np.arange(80), held))).all()
    assert set(fold[fold >= 0]) <= set(range(SETTINGS.region.folds))
    assert not np.array_equal(held, divided(1, seed=5)[0])


def test_a_result_moves_nobody():
    known = town.known()
    flipped = replace(known, positive=~known.positive)
    (home,) = homes(1)
    other = replace(home, known=flipped)
    one, another = (divide(each, SETTINGS, 4) for each in (home, other))
    assert one.held_back.tolist() == another.held_back.tolist()
    assert one.fold.tolist() == another.fold.tolist()


@pytest.mark.parametrize("sites", [1, 3, 9])
def test_tallies_of_sites_add_up_to_those_of_the_city(sites):
    private = PrivacySettings(mode="paper")
    settings = replace(SETTINGS, privacy=private)
    parts = homes(sites)
    total = tallies.total(
        [tallies.count(home, divide(home, settings, 4), settings) for home in parts]
    )
    (whole,) = homes(1)
    division = divide(whole, settings, 4)
    flows = count_flows(whole.traces)
    assert (total.flows.between != flows.between).nnz == 0
    assert (total.flows.stays == flows.stays).all()
    wanted = settings.region.cases
    told = [
        reported_cases(division.training, whole.traces, wanted),
        *cases_without_folds(division.training, whole.traces, division.fold, wanted),
    ]
    per_day = whole.traces.clock.slots_per_day
    for tally, cases in zip(total.cases, told, strict=True):
        found = tally.told(per_day, wanted).by_region_and_day
        assert np.allclose(found, cases.by_region_and_day, rtol=1e-12)
    rng = np.random.default_rng(0)
    expected = mobility_model(whole.traces, MobilityModelSettings(), rng)
    made = total.mobility.model(whole.traces.regions, expected.epsilon)
    assert np.allclose(made.joint.toarray(), expected.joint.toarray(), rtol=1e-12)
    assert np.allclose(made.visits, expected.visits, rtol=1e-12)
    assert (made.moves != expected.moves).nnz == 0
    assert made.people == expected.people


def test_tallies_travel():
    settings = replace(SETTINGS, privacy=PrivacySettings(mode="paper"))
    (home,) = homes(1)
    made = tallies.count(home, divide(home, settings, 4), settings)
    clock, regions = home.traces.clock, len(home.traces.regions)
    folds = settings.region.folds
    back = tallies.unpack(tallies.pack(made), regions, clock, folds)
    assert (back.flows.between != made.flows.between).nnz == 0
    for one, other in zip(back.cases, made.cases, strict=True):
        assert (one.cases == other.cases).all()
        assert (one.visits == other.visits).all()
        assert (one.unplaced, one.tested) == (other.unplaced, other.tested)
    assert (back.mobility.joint != made.mobility.joint).nnz == 0
    assert (back.reported.cases == made.reported.cases).all()


def test_a_scaling_of_sums_is_that_of_the_states():
    rng = np.random.default_rng(1)
    state = rng.normal(3, [0.1, 2.0, 0.0], (50, 3)).astype(np.float32)
    parts = [StateMoments.of(part) for part in np.array_split(state, 4)]
    made = StateScaling.of_moments(sum(parts[1:], parts[0]))
    expected = StateScaling.of(state)
    assert np.allclose(made.centre, expected.centre, rtol=1e-5)
    assert np.allclose(made.factor, expected.factor, rtol=1e-4)


@pytest.mark.parametrize("sites", [2, 5])
def test_cohorts_of_any_split_hold_the_same_people(sites):
    order = Order(settings=SETTINGS, rules=SiteRules(), seed=3)
    one, other = (prepare(homes(number), order) for number in (1, sites))
    (whole,) = one.cohorts
    assert np.array_equal(one.held_back, other.held_back)
    first = 0
    for cohort in other.cohorts:
        people = slice(first, first + len(cohort.people))
        assert (cohort.status == whole.status[people]).all()
        assert np.allclose(cohort.state, whole.state[people], atol=1e-5)
        first = people.stop
