"""Pseudo traces that recur day by day, as lives do.

The paper's walk forgets: its pseudo traces seldom come back to a place on
another day, while people do, so whoever asks which of the places recurs finds
the true one. Here a copy has a memory: each true region of the person has one
pseudo region, and is met again with it. A pseudo life so has a home, a place of
work and rare places just as often and at the same hours as the true one.

A pseudo region is drawn when its true region is first met: some candidates by
the walk's own step, and of these one by how probable it makes all the moves
between it and the pseudo regions drawn before. Without that choice most moves
of a pseudo life would be moves that nobody makes.
"""

from functools import partial

import numpy as np

from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo import steps
from epifalcon.privacy.pseudo.blocks import fill_in
from epifalcon.privacy.pseudo.domains import epidemic_domains
from epifalcon.privacy.pseudo.plausible import tables_of
from epifalcon.privacy.pseudo.record import PseudoSettings, PseudoTraces
from epifalcon.privacy.pseudo.tables import require_match
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats

CANDIDATES = 8
"""Steps of the walk among which a pseudo region is chosen."""
SWEEPS = 1
"""How often all pseudo regions are drawn; more than once to see later ones too."""


def recurring(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Pseudo lives: one pseudo region for each true region (see ``Generator``).

    The pseudo region lies in the epidemic domain of its true region. As long as
    the domain has regions left, it is none of the person's true regions, and no
    two true regions share one in any copy; then the pseudo trace is in the same
    place in two slots exactly if the true trace is.
    """
    require_match(traces, model)
    domains = epidemic_domains(traces.regions, cases, settings.domains, rng)
    fill = partial(steps.live, tables_of(model, domains), SWEEPS)
    copies = settings.pseudo_copies
    return fill_in(traces, copies, fill, rng, progress, CANDIDATES)
