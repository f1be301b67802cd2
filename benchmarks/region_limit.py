"""How well region-specific transmission can be estimated from tests.

In a scenario with region-specific transmission (``larger-sars+regional-1.5``), three
fields are compared on hidden people: equal regions, our estimate, and the true
factors. The peer is a Gibbs sampler with additional information: it uses the field of
the true factors and the form of their prior, and draws the factors of all regions from
their posterior given the same tests, with the place of each infection as a latent
variable. A person's risk is the mean over its draws. ``ours`` and ``peer`` are the
gains over equal regions, in thousandths of AUC: a ratio near 1 means that tests contain
no more information than we use. ``sampled_unhelped`` is the same sampler on the field
of our own estimate.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln
from scipy.stats import poisson

from benchmarks.measuring import run_in_subprocess
from epifalcon.belief_propagation.settings import FieldSettings, TransmissionModel
from epifalcon.belief_propagation.transmission import TransmissionFactor
from epifalcon.epidemic.labels import Labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.test_results import TestResults
from epifalcon.evaluation.metrics import auc, curve
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.federation.field.inference_schedule import (
    InferenceSchedule,
    run_in_process,
)
from epifalcon.federation.field.settings import FalconFieldSettings, FieldTask
from epifalcon.federation.field.site_people import FieldSite
from epifalcon.types import Floats, Probabilities

SEEDS = (200, 201, 202)
_DRAWS, _BURN_IN, _THINNING = 600, 200, 4
_STEP = 0.2


def run(preset: str = "larger-sars+regional-1.5") -> dict[str, Any]:
    """AUC on hidden people by field, mean of three cities."""
    rows = [run_in_subprocess("region_limit", preset, str(seed)) for seed in SEEDS]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    ours, peer = (1000 * (mean[name] - mean["alike"]) for name in ("found", "sampled"))
    return {
        "name": "region-limit",
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer,
        "unit": "thousandths of AUC",
        "preset": preset,
        **mean,
        "by_seed": dict(zip(map(str, SEEDS), rows, strict=True)),
    }


class _World:
    """One outbreak in a city, and inference on it."""

    def __init__(self, preset: str, seed: int) -> None:
        settings = Experiment.load(preset)
        self.traces = make_city(settings, seed=seed)
        epidemic = next(run_epidemics(settings, self.traces, seed=seed))
        self.labels: Labels = epidemic.labels
        self.known: TestResults = epidemic.labels.known
        self.truth: Outbreak = epidemic.outbreak
        pathogen = settings.beliefs.pathogen(settings.pathogen)
        rule = settings.beliefs.rule(settings.outbreak)
        self.rule, self.pathogen = rule, pathogen

    def inferred(
        self, transmission: TransmissionModel, factor: TransmissionFactor | None = None
    ) -> tuple[FieldSite, InferenceSchedule]:
        """Infer with one model of transmission, or with the true factors."""
        region = replace(FieldSettings().region, transmission=transmission)
        field = FieldSettings(folds=0, region=region)
        settings = FalconFieldSettings(field=field)
        task = FieldTask.of(settings, self.pathogen, self.rule)
        return run_in_process(task, self.traces, self.known, seed=0, factor=factor)

    def auc(self, risk: Probabilities) -> float:
        hidden = self.labels.hidden.open("the benchmark region-limit")
        return float(auc(curve(risk[hidden.person], hidden.infected)))

    def exposure(self, people: FieldSite, schedule: InferenceSchedule) -> sp.csr_array:
        """Return (people, regions) hazards of each person in each region at b = 1."""
        assert schedule.result.state is not None
        graph = schedule.graph
        edges = graph.messages(schedule.result.state.sums, graph.no_factor).edges
        site, parts = people.cohort.state, []
        for slot, here in enumerate(self.traces.by_slot):
            force, others, ill, _ = edges[slot, here + 1].T
            some = np.maximum(others, 1)
            mean = np.clip((ill - site.infectious[slot]) / some, 0, 1)
            hazard = -some * np.log1p(-force * mean)
            met = np.flatnonzero((here >= 0) & (hazard > 0))
            parts.append((hazard[met], met, here[met]))
        hazard, person, region = (
            np.concatenate(one) for one in zip(*parts, strict=True)
        )
        shape = (self.traces.people, len(self.traces.regions))
        return sp.csr_array((hazard, (person, region)), shape=shape)


def sampled(exposure: sp.csr_array, known: TestResults, seeded: float) -> Probabilities:
    """Return mean risks (people,) over draws of the factors of all regions.

    The number of infectious contacts of a positive person is Poisson, conditioned to
    be positive; each is assigned to a region with weight b X. Given the counts, b is
    gamma distributed; mean and shape of the prior are sampled as well.
    """
    rng = np.random.default_rng(0)
    positive = sp.csr_array(exposure[np.flatnonzero(known.status == 1)])
    exposed = np.asarray(exposure[np.flatnonzero(known.tested)].sum(axis=0)).ravel()
    seen, factor, shape, mean = exposed > 0, np.ones(len(exposed)), 1.0, 1.0
    risk, samples = np.zeros(exposure.shape[0]), 0
    for draw in range(_DRAWS):
        count = _infections(positive, factor, seeded, rng)
        factor = np.maximum(
            rng.gamma(shape + count, 1 / (shape / mean + exposed)), 1e-9
        )
        rate = rng.gamma(shape * seen.sum(), 1 / factor[seen].sum())
        mean = shape / rate
        other = shape * np.exp(_STEP * rng.normal())
        tallies = count[seen], exposed[seen], mean
        gain = _likelihood(other, *tallies) - _likelihood(shape, *tallies)
        shape = other if np.log(rng.random()) < gain else shape
        if draw >= _BURN_IN and draw % _THINNING == 0:
            risk -= np.expm1(-(exposure @ factor + seeded))
            samples += 1
    return risk / samples


def _infections(
    positive: sp.csr_array, factor: Floats, seeded: float, rng: np.random.Generator
) -> Floats:
    """Draw the number of infections of each region: (regions,)."""
    weight = positive.data * factor[positive.indices]
    so_far = np.concatenate([[0.0], np.cumsum(weight)])
    begin = so_far[positive.indptr[:-1]]
    whole = so_far[positive.indptr[1:]] - begin + seeded
    none = np.exp(-whole)
    times = poisson.ppf(none + rng.random(len(whole)) * (1 - none), whole)
    who = np.repeat(np.arange(len(whole)), np.maximum(times, 1).astype(int))
    at = rng.random(len(who)) * whole[who]
    # The others were infected before the traces start.
    here = at < (whole - seeded)[who]
    cell = np.searchsorted(so_far, (begin[who] + at)[here], side="right") - 1
    return np.bincount(positive.indices[cell], minlength=len(factor)).astype(float)


def _likelihood(shape: float, count: Floats, exposed: Floats, mean: float) -> float:
    """Return the log likelihood of the counts with the factors integrated out."""
    rate = shape / mean
    found = gammaln(shape + count) - gammaln(shape) + shape * np.log(rate)
    return float((found - (shape + count) * np.log(rate + exposed)).sum())


def _run(preset: str, seed: int) -> dict[str, float]:
    world = _World(preset, seed)
    regions = len(world.traces.regions)
    mean = np.append(1.0, world.truth.variation.factors(regions))
    by_day = np.tile(mean, (world.traces.clock.days, 1))
    true = TransmissionFactor(by_day, np.ones_like(by_day), by_day)
    found = {"alike": world.inferred("fixed")[0].risk}
    runs: list[tuple[TransmissionModel, TransmissionFactor | None, str, str]] = [
        ("regional", None, "found", "sampled_unhelped"),
        ("fixed", true, "true", "sampled"),
    ]
    for transmission, factor, name, by_draws in runs:
        site, schedule = world.inferred(transmission, factor)
        found[name] = site.risk
        exposure = world.exposure(site, schedule)
        found[by_draws] = sampled(exposure, world.known, site.rates.seeded)
    return {name: world.auc(risk) for name, risk in found.items()}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2]))))
