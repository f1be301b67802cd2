"""The paper's three rivals: uniform IID, aggregate IID, random walk.

Paper, "Evaluation of Privacy and Utility". None of them reads the cases: they
are ``plausible`` with one domain that holds all regions, or less.
"""

from functools import partial

import numpy as np

from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo import steps
from epifalcon.privacy.pseudo.blocks import fill_in
from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.privacy.pseudo.plausible import walk_on
from epifalcon.privacy.pseudo.record import PseudoSettings, PseudoTraces
from epifalcon.privacy.pseudo.tables import lay_out_places, require_match
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats


def uniform(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,  # noqa: ARG001
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Each pseudo place by itself, every free region alike (see ``Generator``)."""
    require_match(traces, model)
    alike = np.ones(model.visits.shape)
    return _independent(traces, alike, settings, rng, progress)


def aggregate(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,  # noqa: ARG001
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Each pseudo place by itself, by the visits pi(r | t) (see ``Generator``)."""
    require_match(traces, model)
    return _independent(traces, model.visits, settings, rng, progress)


def walk(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,  # noqa: ARG001
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """A walk by the aggregate mobility model over all regions (see ``Generator``)."""
    require_match(traces, model)
    everywhere = Domains.single(len(traces.regions))
    copies = settings.pseudo_copies
    return walk_on(everywhere, traces, model, copies, rng, progress)


def _independent(
    traces: Traces,
    weight: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress,
) -> PseudoTraces:
    places = lay_out_places(Domains.single(len(traces.regions)), weight)
    fill = partial(steps.scatter, places)
    return fill_in(traces, settings.pseudo_copies, fill, rng, progress)
