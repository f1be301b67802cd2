"""Outbreaks in small cities, and the same for the plain loop."""

import numpy as np
from hypothesis import strategies as st

from epifalcon.epidemic.labels import LabelSettings
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

FAST = Pathogen(name="fast", beta=6.0, alpha=2.0, mu=0.8)


def traces_of(rows, regions=None, slot_hours=24.0):
    """Traces from one list of regions per slot."""
    by_slot = np.array(rows, dtype=np.int32)
    clock = Clock(slot_hours, round(len(by_slot) * slot_hours / 24))
    count = int(by_slot.max()) + 1 if regions is None else regions
    return Traces(by_slot, clock, Regions("area", np.zeros((max(count, 1), 2))))


def known_of(people, tests, wrong=(0.0, 0.0)):
    """Tests given as (person, slot, result), with the shares of wrong results."""
    person, slot, result = np.array([*tests], np.int32).reshape(-1, 3).T
    return TestResults.from_tests(
        people, person, result.astype(np.bool_), slot, kinds=(wrong_tests(*wrong),)
    )


def wrong_tests(false_positive, false_negative):
    """Tests of earlier infection with these shares of wrong results."""
    return LabelSettings(
        false_positive=false_positive, false_negative=false_negative
    ).test_kind(SARS_COV_2)


def mixing_city(people=40, regions=6, days=6, slot_hours=6.0, seed=5) -> Traces:
    """A well-mixed city with some gaps."""
    rng = np.random.default_rng(seed)
    clock = Clock(slot_hours, days)
    by_slot = rng.integers(regions, size=(clock.slots, people)).astype(np.int32)
    by_slot[rng.random(by_slot.shape) < 0.15] = -1
    return Traces(by_slot, clock, Regions("area", np.zeros((regions, 2))))


@st.composite
def rules(draw: st.DrawFn) -> OutbreakSettings:
    """Any model, contact term, chance, seeds and weights."""
    return OutbreakSettings(
        model=draw(st.sampled_from(["seir", "sir"])),
        contact=draw(st.sampled_from(["I/N", "I/S"])),
        chance=draw(st.sampled_from(["exponential", "linear"])),
        kappa=draw(st.sampled_from([0.5, 1.0, 3.0, "r0"])),
        seed_share=draw(st.sampled_from([0.0, 0.1, 0.4, 1.0])),
        seed_state=draw(st.sampled_from(["infectious", "exposed"])),
        symptomatic_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
        onset_rate=draw(st.sampled_from([0.5, 5.0])),
        asymptomatic_weight=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        regional_sigma=draw(st.sampled_from([0.0, 0.0, 1.5])),
        dispersion=draw(st.sampled_from([None, None, 0.2, 3.0])),
    )


def pathogens() -> st.SearchStrategy[Pathogen]:
    """Slow to explosive, so that every branch of a small outbreak is covered."""
    return st.builds(
        Pathogen,
        name=st.just("any"),
        beta=st.sampled_from([0.0, 0.7, 5.0, 60.0]),
        alpha=st.sampled_from([0.3, 2.0, 30.0]),
        mu=st.sampled_from([0.1, 0.8, 9.0]),
    )
