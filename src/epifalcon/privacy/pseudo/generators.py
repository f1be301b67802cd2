"""Generators of pseudo traces: the paper's, a recurring variant and three rivals.

- ``plausible`` (paper, "Transforming Traces into Epidemic Domain" and "Sampling Trace
  from the Epidemic Domain"; algorithm 2, PseudoLocGenerate): the true trace becomes a
  trace of epidemic domains, and a pseudo trace is a walk by the aggregate mobility
  model that is in the same domain at every slot. It meets an epidemic like the true
  one.
- ``recurring``: the walk has no memory, so its traces seldom return to a place on
  another day, while people do. Here each true region of the person has one pseudo
  region in the same domain, visited whenever the true one is: a pseudo life has a home
  and a place of work at the same hours as the true one. A pseudo region is drawn when
  its true region is first met: among some steps of the walk one by the probability of
  all moves between it and the pseudo regions drawn before. While the domain has
  regions left, it is none of the person's true regions and no two true regions share
  one.
- ``uniform``, ``aggregate``, ``walk`` (paper, "Evaluation of Privacy and Utility"):
  independent draws, all regions alike or by visits; a walk over all regions. They do
  not read the cases.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import get_num_threads

from epifalcon.errors import DataError
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo import sampling
from epifalcon.privacy.pseudo.domains import Domains, epidemic_domains
from epifalcon.privacy.pseudo.record import Method, PseudoSettings, PseudoTraces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Floats

_BLOCK_PEOPLE = 256


class Generator(Protocol):
    """Interface of all generators of pseudo traces.

    ``cases`` (regions, days) are reported cases; only the generators on epidemic
    domains read them. Equal arguments and an equal state of ``rng`` give the same
    result, and more copies begin with the fewer ones. Pseudo traces must be drawn
    once and stored: two draws for one person have only the true places in common.
    """

    def __call__(
        self,
        traces: Traces,
        model: MobilityModel,
        cases: Floats,
        settings: PseudoSettings,
        rng: np.random.Generator,
        progress: Progress = ...,
    ) -> PseudoTraces: ...


@dataclass(frozen=True)
class SampledTraces:
    """A generator that samples person by person with a compiled function."""

    fill: Callable[..., None]
    """``sampling.fill_walks`` or ``sampling.fill_recurring``."""
    option: int
    """Last argument of ``fill``: whether walks have a memory, or the number of
    candidates for a recurring place."""
    by_domain: bool = False
    """Whether places stay within the epidemic domain of the true one."""
    by_visits: bool = True
    """Whether places without a past are drawn by visits; otherwise all alike."""

    def __call__(
        self,
        traces: Traces,
        model: MobilityModel,
        cases: Floats,
        settings: PseudoSettings,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> PseudoTraces:
        """Make pseudo traces for everybody (see ``Generator``)."""
        domains = Domains.single(len(traces.regions))
        _require_match(traces, model)
        if self.by_domain:
            domains = epidemic_domains(traces.regions, cases, settings.domains, rng)
        return self.within(
            domains, traces, model, settings.pseudo_copies, rng, progress
        )

    def within(
        self,
        domains: Domains,
        traces: Traces,
        model: MobilityModel,
        copies: int,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> PseudoTraces:
        """Make pseudo traces within given domains.

        One seed per copy is drawn from ``rng``, so that more copies begin with the
        fewer ones.
        """
        weight = model.visits if self.by_visits else np.ones(model.visits.shape)
        tables = sampling.make_tables(model, domains, weight)
        seeds = rng.integers(0, 2**63, size=copies, dtype=np.uint64)
        made = np.empty((copies, *traces.by_slot.shape), np.int32)

        def run(first: int) -> int:
            last = min(first + _BLOCK_PEOPLE, traces.people)
            # The compiled part reads and writes one person at a time.
            true = np.ascontiguousarray(traces.by_slot[:, first:last].T)
            rows = np.full((copies, *true.shape), UNKNOWN, np.int32)
            self.fill(tables, true, rows, first, seeds, self.option)
            made[:, :, first:last] = rows.transpose(0, 2, 1)
            return last

        with ThreadPoolExecutor(get_num_threads()) as pool:
            for last in pool.map(run, range(0, traces.people, _BLOCK_PEOPLE)):
                progress("pseudo traces", last, traces.people)
        return PseudoTraces(traces, made)


GENERATORS: Mapping[Method, Generator] = {
    "plausible": SampledTraces(sampling.fill_walks, 1, by_domain=True),
    "recurring": SampledTraces(sampling.fill_recurring, 8, by_domain=True),
    "uniform": SampledTraces(sampling.fill_walks, 0, by_visits=False),
    "aggregate": SampledTraces(sampling.fill_walks, 0),
    "walk": SampledTraces(sampling.fill_walks, 1),
}


def generate(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Make pseudo traces for everybody by the generator that ``settings`` names.

    ``cases`` (regions, days) are reported cases; see ``Generator``. Algorithm 2 of
    the paper, PseudoLocGenerate.
    """
    chosen = GENERATORS[settings.method]
    return chosen(traces, model, cases, settings, rng, progress)


def _require_match(traces: Traces, model: MobilityModel) -> None:
    pairs = {
        "regions": (len(model.regions), len(traces.regions)),
        "slots per day": (model.slots_per_day, traces.clock.slots_per_day),
    }
    for name, (of_model, of_traces) in pairs.items():
        if of_model != of_traces:
            raise DataError(
                f"the mobility model has {of_model} {name}, the traces {of_traces}"
            )
