"""Name to generator: the only list of pseudo-trace methods."""

from collections.abc import Mapping

import numpy as np

from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.lives import recurring
from epifalcon.privacy.pseudo.plausible import plausible
from epifalcon.privacy.pseudo.record import (
    Generator,
    Method,
    PseudoSettings,
    PseudoTraces,
)
from epifalcon.privacy.pseudo.simple import aggregate, uniform, walk
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats

GENERATORS: Mapping[Method, Generator] = {
    "plausible": plausible,
    "recurring": recurring,
    "uniform": uniform,
    "aggregate": aggregate,
    "walk": walk,
}


def generate(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Pseudo traces for everybody by the generator that ``settings.method`` names.

    ``cases`` (regions, days): reported cases. What all generators promise
    stands at ``Generator``; algorithm 2 of the paper, PseudoLocGenerate.
    """
    chosen = GENERATORS[settings.method]
    return chosen(traces, model, cases, settings, rng, progress)
