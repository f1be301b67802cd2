"""Pseudo traces at Larger size: two copies for everybody against a plain loop.

Both use the same mobility model and the same domains. The loop draws person by
person, each step from a whole row of the model; it is timed on some people and scaled
to all. The error of the recurrence attack is also reported.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from epifalcon.epidemic.cases import reported_cases
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import named_rule
from epifalcon.mobility.mobility_model import MobilityModel, mobility_model
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_generators import epidemic_domains, generate
from epifalcon.privacy.pseudo_traces import PseudoSettings, PseudoTraces
from epifalcon.streams import Streams
from epifalcon.types import Floats
from tests.oracles.pseudo_loop import next_shares
from tests.oracles.recurrence_attack import recurrence_error

_LOOP_PEOPLE = 20
_ATTACKED_PEOPLE = 500
_METHODS = ("plausible", "recurring")


def run() -> dict[str, object]:
    """Seconds for two copies of everybody, ours and the loop's."""
    streams = Streams(0)
    city = CitySettings(people=15_738, regions=3_127, days=14, kind="area")
    traces = build_city(city, streams.numpy("city"))
    model = mobility_model(traces)
    cases = _reported(traces, streams)

    def make(method: str) -> PseudoTraces:
        settings = PseudoSettings(method=method)  # type: ignore[arg-type]
        return generate(traces, model, cases, settings, streams.numpy("pseudo"))

    pseudo_traces = {method: make(method) for method in _METHODS}
    seconds = {method: _best(partial(make, method), 2) for method in _METHODS}
    settings = PseudoSettings()
    rng = streams.numpy("loop")
    domains = epidemic_domains(traces.regions, cases, settings.domains, rng)
    begin = time.perf_counter()
    for trace in traces.by_person[:_LOOP_PEOPLE]:
        _walk_person(trace, model, domains, settings.pseudo_copies, rng)
    peer = (time.perf_counter() - begin) * traces.people / _LOOP_PEOPLE
    return {
        "name": "pseudo-traces",
        "ours": seconds["plausible"],
        "peer": peer,
        "ratio": peer / seconds["plausible"],
        "unit": "s",
        "seconds": seconds,
        "missing": {method: _missing(one) for method, one in pseudo_traces.items()},
        "recurrence_error": {
            method: recurrence_error(_some(one), rng)
            for method, one in pseudo_traces.items()
        },
        "people": traces.people,
        "slots": traces.slots,
        "copies": settings.pseudo_copies,
    }


def _reported(traces: Traces, streams: Streams) -> Floats:
    rule = named_rule("paper", SARS_COV_2)
    outbreak = simulate(traces, SARS_COV_2, rule, streams.numpy("seir"))
    labels = draw_labels(outbreak, LabelSettings(), streams.numpy("labels"))
    return reported_cases(labels.known, traces).by_region_and_day


def _missing(made: PseudoTraces) -> int:
    """Count the (copy, slot, person) without a pseudo region but with a true one."""
    unseen = made.copies * np.count_nonzero(made.true.by_slot < 0)
    return int(np.count_nonzero(made.pseudo < 0) - unseen)


def _some(pseudo_traces: PseudoTraces) -> PseudoTraces:
    true = pseudo_traces.true
    few = np.ascontiguousarray(true.by_slot[:, :_ATTACKED_PEOPLE])
    pseudo = np.ascontiguousarray(pseudo_traces.pseudo[:, :, :_ATTACKED_PEOPLE])
    return PseudoTraces(Traces(few, true.clock, true.regions), pseudo)


def _best(work: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _walk_person(
    trace: np.ndarray,
    model: MobilityModel,
    domain: np.ndarray,
    copies: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The walk of each copy through the domains of ``trace``: (copies, slots)."""
    made = np.full((copies, trace.size), -1, dtype=np.int32)
    for copy in range(copies):
        last = -1
        for slot, here in enumerate(trace):
            if here < 0:
                continue
            free = domain == domain[here]
            free[here] = False
            for earlier in made[:copy, slot]:
                if earlier >= 0:
                    free[earlier] = False
            if free.any():
                shares = next_shares(model, slot, last, free)
                last = int(rng.choice(shares.size, p=shares))
                made[copy, slot] = last
    return made
