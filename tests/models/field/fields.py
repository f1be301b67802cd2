"""Fields on small cities, swept until they rest."""

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.federation.field.together import Together
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import FieldSettings, TransmissionSettings
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import Transmission

UNDAMPED = FieldSettings(sweeps=20, renewed=1.0, caution=0.0, slower=1.0)


def part_of(traces, known, people):
    """Some people's traces and tests."""
    place = np.full(traces.people, -1, np.int32)
    place[people] = np.arange(len(people), dtype=np.int32)
    tests = known.of_people(place >= 0)
    own = Known.from_tests(len(people), place[tests.person], tests.positive, tests.slot)
    by_slot = np.ascontiguousarray(traces.by_slot[:, people])
    return Traces(by_slot, traces.clock, traces.regions), own


def together_of(scene, known, parts=None):
    """Everybody in one cohort, or people dealt into the cohorts ``parts``."""
    traces = scene.traces
    rates = rates_of(traces, scene.pathogen, scene.rule)
    dealt = [(traces, known)]
    if parts is not None:
        dealt = [part_of(traces, known, people) for people in parts]
    return Together([Cohort.of(*one, rates, scene.test_errors) for one in dealt])


def city_of(scene, together):
    return City(
        scene.traces.clock,
        force_of_infection(scene.traces, scene.pathogen, scene.rule),
        scene.rule.chance,
        together.crowd(),
        scene.rule.contact == "I/S",
    )


def rested(scene, known, settings=UNDAMPED, law="one", parts=None):
    """The risks after all sweeps, and the last stage."""
    together = together_of(scene, known, parts)
    rates = rates_of(scene.traces, scene.pathogen, scene.rule)
    start = Start.of(known, rates, scene.traces.slots)
    wish = TransmissionSettings(from_sweep=2)
    transmission = Transmission.of(
        law, wish, scene.traces.regions, lambda: count_flows(scene.traces)
    )
    city = city_of(scene, together)
    stage = infer(together, city, start, settings, transmission, lambda _: None)
    return together.risk, stage


def wrong_tests(false_positive, false_negative):
    return TestErrors(false_positive=false_positive, false_negative=false_negative)
