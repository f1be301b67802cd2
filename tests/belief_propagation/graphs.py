"""Belief propagation on small cities, swept until it converges."""

import numpy as np

from epifalcon.belief_propagation.inference import (
    ChainCohort,
    FactorGraph,
    InitialHazard,
    add_sums,
    infer,
)
from epifalcon.belief_propagation.seir_chain import rates_for
from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.traces import Traces
from tests.methods.encounters import force_of

UNDAMPED = FieldSettings(sweeps=20, damping=0.0, damping_decay=0.0, damping_backoff=1.0)


class Cohorts:
    """Several cohorts in one process, as an exchange."""

    def __init__(self, cohorts):
        self.cohorts = cohorts

    def crowd(self):
        return sum(cohort.crowd() for cohort in self.cohorts)

    def sweep(self, received, options):
        return add_sums([cohort.sweep(received, options) for cohort in self.cohorts])

    def end(self, received):
        for cohort in self.cohorts:
            cohort.end(received)

    @property
    def risk(self):
        return np.concatenate([cohort.risk for cohort in self.cohorts])


def part_of(traces, known, people):
    """Some people's traces and tests."""
    place = np.full(traces.people, -1, np.int32)
    place[people] = np.arange(len(people), dtype=np.int32)
    tests = known.of_people(place >= 0)
    own = TestResults.from_tests(
        len(people),
        place[tests.person],
        tests.positive,
        tests.slot,
        kind=tests.kind,
        kinds=tests.kinds,
    )
    by_slot = np.ascontiguousarray(traces.by_slot[:, people])
    return Traces(by_slot, traces.clock, traces.regions), own


def rates_of(scene):
    traces = scene.traces
    return rates_for(traces.people, traces.clock, scene.pathogen, scene.rule)


def cohorts_of(scene, known, parts=None):
    """Everybody in one cohort, or people divided into the cohorts ``parts``."""
    traces = scene.traces
    divided = [(traces, known)]
    if parts is not None:
        divided = [part_of(traces, known, people) for people in parts]
    rates = rates_of(scene)
    return Cohorts([ChainCohort.of(*one, rates) for one in divided])


def graph_of(scene, crowd):
    traces, rule = scene.traces, scene.rule
    over = rule.contact == "I/S"
    return FactorGraph(traces.clock, force_of(scene), rule.chance, crowd, over)


def start_of(known, rates, slots):
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    return InitialHazard.from_tests(tested, positive, rates.seeded, slots)


def converge(people, graph, known, rates, settings=UNDAMPED, transmission="fixed"):
    """Run all sweeps and send the last messages; returns the final state."""
    state = infer(
        people,
        graph,
        start_of(known, rates, graph.clock.slots),
        settings.sweeps,
        settings,
        Transmission(transmission, TransmissionSettings(from_sweep=2)),
    )
    people.end(graph.messages(state.sums, state.factor))
    return state


def rested(scene, known, settings=UNDAMPED, transmission="fixed", parts=None):
    """The risks after all sweeps, and the final state."""
    people = cohorts_of(scene, known, parts)
    graph = graph_of(scene, people.crowd())
    state = converge(people, graph, known, rates_of(scene), settings, transmission)
    return people.risk, state
