"""A run over sites done in one process: what a rehearsal is compared with.

The same preparation and the same engines on the same people, without any message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import Engine
from epifalcon.federation.exchange import CohortEngine
from epifalcon.federation.plan import PrivacyPlan, RunSeeds, releases_of
from epifalcon.federation.preparing import (
    Household,
    StateMoments,
    StateScaling,
    Surrounding,
    cohort_of,
    divide,
    raw_state,
)
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.run import Order
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.markov import MobilityModelSettings
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import Mask


@dataclass(frozen=True, eq=False)
class Prepared:
    """The people of all sites as they enter the rounds."""

    cohorts: tuple[Cohort, ...]
    plan: PrivacyPlan
    held_back: Mask
    """(people,) of all sites in their order."""


def split(traces: Traces, known: Known, sites: int) -> list[Household]:
    """A city's people dealt out to sites, in their order, as evenly as can be."""
    if not 1 <= sites <= traces.people:
        raise SettingsError(f"sites={sites} must be 1 to {traces.people:,}, the people")
    homes = []
    for people in np.array_split(np.arange(traces.people), sites):
        first, end = int(people[0]), int(people[-1]) + 1
        inside = (known.person >= first) & (known.person < end)
        tests = Known(
            end - first,
            (known.person[inside] - first).astype(np.int32),
            known.positive[inside],
            known.slot[inside],
        )
        some = Traces(
            np.ascontiguousarray(traces.by_slot[:, first:end]),
            traces.clock,
            traces.regions,
        )
        homes.append(Household(some, tests, first))
    return homes


def prepare(
    homes: Sequence[Household], order: Order, progress: Progress = silent
) -> Prepared:
    """Do what sites and server do before the rounds."""
    settings, seed = order.settings, order.seed
    clock, regions = homes[0].traces.clock, homes[0].traces.regions
    divisions = [divide(home, settings, seed) for home in homes]
    tally = tallies.total(
        [
            tallies.count(home, part, settings)
            for home, part in zip(homes, divisions, strict=True)
        ]
    )
    mobility = None
    if tally.mobility is not None:
        mobility = tally.mobility.model(regions, MobilityModelSettings().epsilon)
    cases = None if tally.reported is None else tally.reported.cases
    around = Surrounding(mobility, cases)
    if tallies.needs_region_model(settings):
        states, _ = tallies.fit_region_states(tally, clock, settings, seed, progress)
        moments = [
            StateMoments.of(raw_state(home, part, settings, states))
            for home, part in zip(homes, divisions, strict=True)
        ]
        scaling = StateScaling.of_moments(sum(moments[1:], moments[0]))
        around = Surrounding(mobility, cases, states, scaling)
    cohorts = []
    for home, part in zip(homes, divisions, strict=True):
        rng = RunSeeds(seed).pseudo(home.first)
        cohorts.append(cohort_of(home, part, settings, around, rng))
    plan = PrivacyPlan.of(
        settings.privacy, settings.model, releases_of(clock), len(cohorts[0].pseudo)
    )
    held = [
        np.isin(np.arange(len(one.people)), part.held_back)
        for one, part in zip(cohorts, divisions, strict=True)
    ]
    return Prepared(tuple(cohorts), plan, np.concatenate(held))


def engine_of(prepared: Prepared, order: Order) -> Engine:
    """The fast engine or, where each upload has noise of its own, that of cohorts."""
    plan, model, seed = prepared.plan, order.settings.model, order.seed
    noisy = plan.upload is not None and plan.upload.sigma > 0
    noisy = noisy or (plan.gradient is not None and plan.gradient.sigma > 0)
    if noisy or plan.presence is not None:
        return CohortEngine(prepared.cohorts, model, plan, seed)
    return VectorisedEngine(joined(prepared.cohorts), model, plan, seed)


def joined(cohorts: Sequence[Cohort]) -> Cohort:
    """All people as one cohort, in the order of the cohorts."""
    state = None
    if cohorts[0].state is not None:
        state = torch.cat([one.state for one in cohorts if one.state is not None])
    copies = zip(*(one.pseudo for one in cohorts), strict=True)
    return Cohort.of_city(
        Incidence.joined([one.incidence for one in cohorts]),
        np.concatenate([one.status for one in cohorts]),
        state,
        [Incidence.joined(parts) for parts in copies],
    )
