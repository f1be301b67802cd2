"""Generators of pseudo traces: the paper's method, a variant and three baselines.

- ``plausible`` (paper, "Transforming Traces into Epidemic Domain" and "Sampling Trace
  from the Epidemic Domain"; algorithm 2, PseudoLocGenerate): the true trace becomes a
  trace of epidemic domains, and a pseudo trace is a walk by the aggregate mobility
  model that is in the same domain at every slot. Its exposure is similar to the true
  one.
- ``recurring``: walks seldom return to a place on another day, while people do. Here
  each true region of the person has one pseudo region in the same domain, visited
  whenever the true one is. It is drawn when the true region first occurs, from some
  steps of the walk, weighted by the probability of all moves between it and the pseudo
  regions drawn before. While the domain has regions left, it is none of the person's
  true regions and no two true regions share one.
- ``uniform``, ``aggregate``, ``walk`` (paper, "Evaluation of Privacy and Utility"):
  independent draws, uniform or by visits; a walk over all regions. They do not use
  the cases.

Every (copy, person) has a separate random stream, so results depend neither on
threads nor on blocks of people. All draws are exact: from the named distribution
conditioned on regions that the person has not claimed yet.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon._random import State, start, uniform
from epifalcon.errors import DataError
from epifalcon.mobility.mobility_model import (
    MobilityModel,
    Transitions,
    add_distance_weights,
    distance_weight,
    find_move,
)
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_traces import (
    DomainSettings,
    Method,
    PseudoSettings,
    PseudoTraces,
)
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Floats, Mask, RegionIds

_BLOCK_PEOPLE = 256
_TRIES = 12
_NOT_MET = -2
_LEAST_CHANCE = 1e-30

Domains = NDArray[np.int32]
"""Epidemic domain of each region, (regions,), numbered from 0 without gaps."""

Generator = Callable[..., PseudoTraces]
"""Function with the arguments of ``generate``."""


@dataclass(frozen=True)
class SampledTraces:
    """A generator that samples person by person with a compiled function."""

    fill: Callable[..., None]
    """Compiled function, ``fill_walks`` or ``fill_recurring``."""
    option: int
    """Last argument of ``fill``: 1 or 0 for walks with or without memory, or the number
    of candidates for a recurring place."""
    by_domain: bool = False
    """True to draw places from the epidemic domain of the true place."""
    by_visits: bool = True
    """True to draw places without a predecessor by visits, False uniformly."""

    def __call__(
        self,
        traces: Traces,
        model: MobilityModel,
        cases: Floats,
        settings: PseudoSettings,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> PseudoTraces:
        """Generate pseudo traces for everybody (see ``generate``)."""
        regions = len(traces.regions)
        model.require_match(regions, traces.clock.slots_per_day, "the traces")
        domains = np.zeros(regions, np.int32)
        if self.by_domain:
            domains = epidemic_domains(traces.regions, cases, settings.domains, rng)
        weight = model.visits if self.by_visits else np.ones(model.visits.shape)
        tables = make_tables(model, domains, weight)
        copies = settings.pseudo_copies
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


def generate(
    traces: Traces,
    model: MobilityModel,
    cases: Floats,
    settings: PseudoSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Generate everybody's pseudo traces (algorithm 2 of the paper, PseudoLocGenerate).

    ``cases`` (regions, days) are reported cases. With equal seeds, more copies extend
    fewer ones. Pseudo traces must be drawn once and stored: two draws for one person
    would have only the true places in common.
    """
    return GENERATORS[settings.method](traces, model, cases, settings, rng, progress)


def epidemic_domains(
    regions: Regions, cases: Floats, settings: DomainSettings, rng: np.random.Generator
) -> Domains:
    """Cluster the regions by their reported cases (regions, days) and location.

    Paper, "Epidemic Clustering", where the similarity of two regions is

        sim(r, r') = sum_t (x_t - x'_t) + gamma d(r, r')^-2

    with x_t the new cases. As written the first term is signed, so it depends on
    the order of the pair and grows with the difference. Here both terms are minus
    a squared distance, each divided by its mean square in the city:

        sim(r, r') = - sum_t (sqrt x_t - sqrt x'_t)^2 - gamma |r - r'|^2.

    This similarity is Euclidean, so k-means (scikit-learn) finds the clusters without
    a table of all pairs. Square roots stabilise the variance of counts. The paper
    sums over all days, so a region has one domain for the whole time.

    Clusters smaller than ``least_regions`` are merged, smallest first, into the
    nearest others. A region with unknown location is placed at the centre of the city.
    """
    if cases.ndim != 2 or len(cases) != len(regions) or cases.shape[1] == 0:
        raise DataError(
            f"cases have shape {cases.shape}, expected ({len(regions)}, days) by region"
        )
    if not (np.isfinite(cases).all() and (cases >= 0).all()):
        raise DataError("cases must be numbers of 0 or more")
    points = features(regions, cases, settings.gamma)
    count = min(settings.count, len(np.unique(points, axis=0)))
    seed = int(rng.integers(2**32))
    from sklearn.cluster import KMeans  # slow to import

    found = KMeans(count, n_init=1, random_state=seed).fit(points)
    label, apart = found.labels_.copy(), found.transform(points)
    while len(left := np.unique(label)) > 1:
        size = np.bincount(label, minlength=count)
        gone = left[size[left].argmin()]
        if size[gone] >= settings.least_regions:
            break
        apart[:, gone] = np.inf
        moved = label == gone
        label[moved] = apart[moved].argmin(axis=1)
    return np.unique(label, return_inverse=True)[1].astype(np.int32)


def features(regions: Regions, cases: Floats, gamma: float) -> Floats:
    """Return points (regions, days + 2) with sim = minus their squared distance."""
    place = regions.centre_km
    known = np.isfinite(place[:, 0]) & np.isfinite(place[:, 1])
    middle = place[known].mean(axis=0) if known.any() else np.zeros(2)
    ground = _unit_spread(np.where(known[:, None], place, middle))
    history = _unit_spread(np.sqrt(cases.astype(np.float64)))
    return np.hstack([history, np.sqrt(gamma) * ground])


def _unit_spread(columns: Floats) -> Floats:
    """Centre columns and scale to a mean squared row norm of 1; zeros if all equal."""
    around = columns - columns.mean(axis=0)
    spread = np.sqrt(np.mean((around * around).sum(axis=1)))
    return np.asarray(around / spread if spread > 0 else np.zeros(around.shape))


class Tables(NamedTuple):
    """Visits and moves of a mobility model, arranged for draws within a domain."""

    domain: NDArray[np.int32]
    """Domain of each region, (regions,)."""
    member: RegionIds
    """Region ids sorted by domain, (regions,)."""
    begins: NDArray[np.int64]
    """First position of each domain in ``member``, (domains + 1,)."""
    visits: Floats
    """Weight of each ``member`` without a predecessor, (slots per day, regions)."""
    running: Floats
    """Cumulative sums of ``visits`` within each domain, (slots per day, regions)."""
    nearness: Floats
    """Epsilon times the sum of max(1, d)^-2 over a domain, (regions, domains)."""
    moves: Transitions


def make_tables(model: MobilityModel, domains: Domains, weight: Floats) -> Tables:
    """Build sampling tables by domain; ``weight`` is (slots per day, regions)."""
    moves = model.transitions
    member = np.argsort(domains, kind="stable").astype(np.int32)
    begins = np.concatenate([[0], np.cumsum(np.bincount(domains))])
    visits = np.ascontiguousarray(weight[:, member])
    running = np.empty(visits.shape)
    for low, past in pairwise(begins.tolist()):
        running[:, low:past] = np.cumsum(visits[:, low:past], axis=1)
    nearness = np.zeros((len(domains), len(begins) - 1))
    if model.epsilon > 0:
        group = domains.astype(np.int64)
        add_distance_weights(moves.point_km, moves.spherical, group, nearness)
    nearness *= model.epsilon
    return Tables(domains, member, begins, visits, running, nearness, moves)


@compiled
def fill_walks(
    tables: Tables,
    true: RegionIds,
    pseudo: RegionIds,
    first: int,
    seeds: NDArray[np.uint64],
    memory: int,
) -> None:
    """Fill pseudo traces with walks that stay in the domain of the true region.

    ``true`` (people, slots) are the traces of people ``first`` and following;
    ``pseudo`` (copies, people, slots), -1 on input, is filled; ``seeds`` is (copies,).
    Over a gap of the true trace the walk pauses and then takes one step.
    Without ``memory`` (0) each place is drawn independently.
    """
    state, taken = np.zeros(1, np.uint64), np.zeros(len(tables.domain), np.bool_)
    for person in range(len(true)):
        for copy in range(len(pseudo)):
            start(state, seeds[copy], first + person)
            last = UNKNOWN
            for slot in range(true.shape[1]):
                here = true[person, slot]
                if here == UNKNOWN:
                    continue
                _mark(taken, here, pseudo[:copy, person, slot], True)
                domain = tables.domain[here]
                made = _draw_next(tables, slot, last, domain, taken, state)
                pseudo[copy, person, slot] = made
                if memory and made != UNKNOWN:
                    last = made
                _mark(taken, here, pseudo[:copy, person, slot], False)


@compiled
def fill_recurring(
    tables: Tables,
    true: RegionIds,
    pseudo: RegionIds,
    first: int,
    seeds: NDArray[np.uint64],
    candidates: int,
) -> None:
    """Fill pseudo traces that map each true region to one pseudo region.

    Arguments as for ``fill_walks``; ``candidates`` is the number of steps of the walk
    among which a pseudo region is chosen. It excludes all true and pseudo regions of
    the person; if none is left, only those of the same slot.
    """
    regions = len(tables.domain)
    state, choice = np.zeros(1, np.uint64), np.empty(candidates, np.int32)
    taken, narrow = np.zeros(regions, np.bool_), np.zeros(regions, np.bool_)
    for person in range(len(true)):
        trace = true[person]
        _mark(taken, UNKNOWN, trace, True)
        for copy in range(len(pseudo)):
            start(state, seeds[copy], first + person)
            image = np.full(regions, _NOT_MET, np.int32)
            last = UNKNOWN
            for slot in range(len(trace)):
                here = trace[slot]
                if here == UNKNOWN:
                    continue
                if image[here] == _NOT_MET:
                    made = _choose_image(
                        tables, trace, slot, last, image, taken, choice, state
                    )
                    if made == UNKNOWN:
                        _mark(narrow, here, pseudo[:copy, person, slot], True)
                        domain = tables.domain[here]
                        made = _draw_next(tables, slot, last, domain, narrow, state)
                        _mark(narrow, here, pseudo[:copy, person, slot], False)
                    image[here] = made
                    if made != UNKNOWN:
                        taken[made] = True
                pseudo[copy, person, slot] = image[here]
                last = last if image[here] == UNKNOWN else image[here]
        taken[:] = False


@compiled
def _choose_image(
    tables: Tables,
    trace: RegionIds,
    slot: int,
    last: int,
    image: RegionIds,
    taken: Mask,
    choice: RegionIds,
    state: State,
) -> int:
    """Choose a pseudo region for the true region of ``slot``; -1 if none is free.

    Candidates are steps of the walk. One is drawn by the probability of the moves
    between it and the pseudo regions chosen before (importance resampling).
    """
    here, domain = trace[slot], tables.domain[trace[slot]]
    for number in range(len(choice)):
        choice[number] = _draw_next(tables, slot, last, domain, taken, state)
        if choice[number] == UNKNOWN:
            return UNKNOWN
    score = np.zeros(len(choice))
    for after in range(1, len(trace)):
        one, other = trace[after - 1], trace[after]
        if after == slot or one == UNKNOWN or other == UNKNOWN:
            continue
        if here not in (one, other):
            continue
        if (one != here and image[one] < 0) or (other != here and image[other] < 0):
            continue
        for number in range(len(choice)):
            begin = choice[number] if one == here else image[one]
            end = choice[number] if other == here else image[other]
            score[number] += _log_move(tables, after - 1, begin, end)
    best, total, chosen = score.max(), 0.0, 0
    for number in range(len(choice)):
        weight = np.exp(score[number] - best)
        total += weight
        if uniform(state) * total < weight:
            chosen = number
    return int(choice[chosen])


@compiled
def _log_move(tables: Tables, slot: int, here: int, there: int) -> float:
    """Compute the log probability of a move, at least log(1e-30)."""
    moves = tables.moves
    row = slot % len(tables.visits) * len(tables.domain) + here
    near = distance_weight(moves.point_km, moves.spherical, here, there)
    value = moves.epsilon * near
    past = moves.first[row + 1]
    cell = find_move(moves.there, moves.first[row], past, there)
    if cell < past and moves.there[cell] == there:
        value += moves.weight[cell]
    total = moves.total[row]
    share = value / total if total > 0 else 0.0
    return float(np.log(max(share, _LEAST_CHANCE)))


@compiled
def _draw_next(
    tables: Tables, slot: int, last: int, domain: int, taken: Mask, state: State
) -> int:
    """Draw a free region of ``domain`` at ``slot``, weighted by moves from ``last``.

    Weighted by visits of the slot if there is no last region, or if no move leads from
    it to a free region (only if epsilon is 0). Returns -1 if no region is free.
    Weighted draws use one pass: each item replaces the previous choice with the
    probability of its share of the total so far.
    """
    if last == UNKNOWN:
        return _draw_place(tables, slot, domain, taken, state)
    moves = tables.moves
    row = (slot - 1) % len(tables.visits) * len(tables.domain) + last
    total, made = 0.0, UNKNOWN
    for cell in range(moves.first[row], moves.first[row + 1]):
        region = moves.there[cell]
        if tables.domain[region] == domain and not taken[region]:
            total += moves.weight[cell]
            if uniform(state) * total < moves.weight[cell]:
                made = region
    # The distance term of all regions of the domain bounds that of the free ones,
    # which is summed only if the draw may fall on it.
    bound = tables.nearness[last, domain]
    if uniform(state) * (total + bound) < total:
        return made
    spread, far = 0.0, UNKNOWN
    for spot in range(tables.begins[domain], tables.begins[domain + 1]):
        region = tables.member[spot]
        if bound > 0 and not taken[region]:
            near = distance_weight(moves.point_km, moves.spherical, last, region)
            weight = moves.epsilon * near
            spread += weight
            if uniform(state) * spread < weight:
                far = region
    if total + spread <= 0:
        return _draw_place(tables, slot, domain, taken, state)
    if uniform(state) * bound < spread or uniform(state) * (total + spread) < spread:
        return far
    return made


@compiled
def _draw_place(
    tables: Tables, slot: int, domain: int, taken: Mask, state: State
) -> int:
    """Draw a free region of ``domain`` by its weight at ``slot``; -1 if none.

    All free regions are equally likely if none has a weight. First tries a few draws
    from all regions; if none of them is free, draws among the free ones.
    """
    low, past = tables.begins[domain], tables.begins[domain + 1]
    of_day = slot % len(tables.visits)
    running = tables.running[of_day, low:past]
    if running[-1] > 0:
        for _ in range(_TRIES):
            target = uniform(state) * running[-1]
            spot = np.searchsorted(running, target, side="right")
            made = tables.member[low + spot]
            if not taken[made]:
                return int(made)
    total, made, count, alike = 0.0, UNKNOWN, 0, UNKNOWN
    for spot in range(low, past):
        if not taken[tables.member[spot]]:
            count += 1
            if uniform(state) * count < 1:
                alike = tables.member[spot]
            weight = tables.visits[of_day, spot]
            total += weight
            if uniform(state) * total < weight:
                made = tables.member[spot]
    return int(alike) if made == UNKNOWN else int(made)


@compiled
def _mark(taken: Mask, region: int, others: RegionIds, value: bool) -> None:
    if region != UNKNOWN:
        taken[region] = value
    for other in others:
        if other != UNKNOWN:
            taken[other] = value


GENERATORS: Mapping[Method, Generator] = {
    "plausible": SampledTraces(fill_walks, 1, by_domain=True),
    "recurring": SampledTraces(fill_recurring, 8, by_domain=True),
    "uniform": SampledTraces(fill_walks, 0, by_visits=False),
    "aggregate": SampledTraces(fill_walks, 0),
    "walk": SampledTraces(fill_walks, 1),
}
