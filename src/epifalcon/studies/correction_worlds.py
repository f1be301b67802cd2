"""Simulated worlds from broad priors, and what a person of them has at home.

Each world is a city, an outbreak and tests of its own; what methods are told of
the disease is wrong in many of them. The people whose results stay hidden teach
the correction: they are simulated, so nobody's data is touched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_runs import Runs
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.mobility.reporting import report
from epifalcon.models.field.calibrating import odds_of
from epifalcon.models.field.settings import FieldSettings, Law
from epifalcon.streams import Streams
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from epifalcon.types import Floats, Mask

FIELD = FieldSettings(sweeps=10, correction="none", calibration="none")
LAWS: tuple[Law, ...] = ("scaled", "apart")
"""Each world is told by each of these: which one is chosen is not known here."""
_MOST_PEOPLE = 400
"""Hidden people of a world who teach."""
_LEAST_POSITIVE = 3


@dataclass(frozen=True, eq=False)
class Lesson:
    """Hidden people of one world under one law."""

    odds: Floats
    """(people,) by the field."""
    numbers: NDArray[np.float32]
    """(people, ``NUMBERS``)"""
    infected: Mask
    """(people,)"""


def draw_world(rng: np.random.Generator, people: tuple[int, int]) -> Experiment:
    """A world from the priors, of ``people`` from the least to the most."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def maybe(chance: float, value: float, otherwise: float) -> float:
        return value if rng.random() < chance else otherwise

    count = round(between(*people))
    omicron = rng.random() < 0.3
    seeds = between(0.002, 0.006) if omicron else between(0.008, 0.03)
    values = {
        "city.people": count,
        "city.regions": round(between(max(count / 30, 5), max(count / 4, 6))),
        "city.days": int(rng.integers(8, 19)),
        "city.built_share": between(0.1, 0.5),
        "city.attraction_sigma": rng.uniform(1.0, 2.2),
        "city.outings": between(0.7, 1.8),
        "city.observed_share": maybe(0.6, rng.uniform(0.5, 0.99), 1.0),
        "reporting.trace_share": maybe(0.4, rng.uniform(0.3, 0.99), 1.0),
        "outbreak.rule": "authors" if rng.random() < 0.1 else "paper",
        "outbreak.seed_count": max(round(seeds * count), 2),
        "outbreak.regional_sigma": maybe(0.6, rng.uniform(0.2, 1.6), 0.0),
        "beliefs.beta_factor": maybe(0.5, between(0.5, 2.0), 1.0),
        "labels.label_share": between(0.05, 0.6),
        "labels.false_positive": maybe(0.3, rng.uniform(0, 0.05), 0.0),
        "labels.false_negative": maybe(0.3, rng.uniform(0, 0.25), 0.0),
    }
    dispersion = between(0.1, 1.0)
    if rng.random() < 0.35:
        values["outbreak.dispersion"] = dispersion
    name = "omicron" if omicron else "sars-cov-2"
    words = [f"pathogen={name}"]
    words += [f"{key}={value}" for key, value in values.items()]
    return Experiment.load("hamlet", words)


def true_rates(believed: Pathogen, rng: np.random.Generator) -> Pathogen:
    """Latent and infectious times that differ from the published ones."""
    alpha, mu = np.exp(rng.uniform(-0.4, 0.4, 2))
    if rng.random() < 0.5:
        alpha = mu = 1.0
    # The number whom a case infects stays: beta is a setting of its own.
    return replace(
        believed,
        alpha=believed.alpha * float(alpha),
        mu=believed.mu * float(mu),
        beta=believed.beta * float(mu),
    )


def lessons_of(number: int, seed: int, people: tuple[int, int]) -> Iterator[Lesson]:
    """The lessons of world ``number``; none where it tells nothing.

    Equal numbers and seeds give equal lessons.
    """
    streams = Streams(Streams(seed).seed_for(f"world {number}"))
    rng = streams.numpy("settings")
    told = draw_world(rng, people)
    true = replace(told, pathogen=true_rates(told.pathogen, rng))
    traces = make_city(true, streams.seed)
    epidemic = next(run_epidemics(true, traces, streams.seed))
    known = epidemic.labels.known
    if (known.status == 1).sum() < _LEAST_POSITIVE:
        return
    reported = report(traces, told.reporting, streams.numpy("reporting"))
    truth = epidemic.labels.hidden.open("teaching a correction in a simulated world")
    size = min(_MOST_PEOPLE, len(truth.person))
    some = np.sort(rng.permutation(len(truth.person))[:size])
    scene = Scene(
        reported,
        pathogen=told.believed_pathogen,
        rule=told.believed_rule,
        test_errors=told.labels.test_errors,
    )
    runs = Runs(scene, reported, FieldWishes(field=FIELD), numbers=True)
    who = truth.person[some]
    for law in LAWS:
        end, _ = runs.final(known, law)
        if end.numbers is not None:
            yield Lesson(odds_of(end.risk[who]), end.numbers[who], truth.infected[some])
