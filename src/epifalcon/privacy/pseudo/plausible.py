"""The paper's generator: a walk through the epidemic domain of each slot.

Paper, "Transforming Traces into Epidemic Domain" and "Sampling Trace from the
Epidemic Domain"; algorithm 2, PseudoLocGenerate. The true trace becomes a trace
of domains, and a pseudo trace is a walk by the aggregate mobility model that is
in the same domain at every slot: so it meets an epidemic like the true one.
"""

from functools import partial

import numpy as np

from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo import steps
from epifalcon.privacy.pseudo.blocks import fill_in
from epifalcon.privacy.pseudo.domains import Domains, epidemic_domains
from epifalcon.privacy.pseudo.record import PseudoSettings, PseudoTraces
from epifalcon.privacy.pseudo.shapes import Tables
from epifalcon.privacy.pseudo.tables import lay_out_places, lay_out_ways, require_match
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats


def plausible(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Pseudo traces by a walk on the epidemic domains (see ``Generator``).

    The first place of a copy is drawn from its domain by the visits of that
    slot, each next one by p(r, t -> r', t+1), floor included, over the regions r'
    of the domain that neither the true trace nor an earlier copy is in. Over a
    gap of the true trace the walk stands still and then takes one step.
    """
    require_match(traces, model)
    domains = epidemic_domains(traces.regions, cases, settings.domains, rng)
    copies = settings.pseudo_copies
    return walk_on(domains, traces, model, copies, rng, progress)


def walk_on(
    domains: Domains,
    traces: Traces,
    model: MobilityModel,
    copies: int,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """``copies`` walks by the aggregate mobility model through given domains."""
    tables = tables_of(model, domains)
    return fill_in(traces, copies, partial(steps.walk, tables), rng, progress)


def tables_of(model: MobilityModel, domains: Domains) -> Tables:
    """Visits and moves of the model, laid out by domain."""
    return lay_out_places(domains, model.visits), lay_out_ways(model, domains)
