"""Calibration: the kappa for a wished infected share, and R0 by counting cases.

The kappa for a wished hazard R0 has a closed form: ``kappa_for_r0`` in
``hazard``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epifalcon.checks import at_least, positive, unit_interval
from epifalcon.epidemic.hazard import resolve_kappa
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import replay
from epifalcon.epidemic.sellke import Draws, whole_slots
from epifalcon.epidemic.spread import expected_cases
from epifalcon.epidemic.variation import (
    Variation,
    draw_factors,
    draw_infectiousness,
)
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import Counts, Floats, PersonIds

_HIGHEST_KAPPA = 2.0**20
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class ShareGoal:
    """The mean infected share wished for, and how well to reach it."""

    share: float
    """Share of people infected by the end, seeds included."""
    runs: int = 5
    """Outbreaks to take the mean over."""
    tolerance: float = 0.002
    """Distance from ``share`` that is good enough."""

    def __post_init__(self) -> None:
        unit_interval(share=self.share)
        at_least(1, runs=self.runs)
        positive(tolerance=self.tolerance)

    def miss(self, found: "Calibration") -> float:
        """How far the mean share of ``found`` is from the goal."""
        return abs(found.mean_share - self.share)


@dataclass(frozen=True, eq=False)
class Calibration:
    """The kappa found and the infected shares it gave, (runs,)."""

    kappa: float
    infected_shares: Floats

    @property
    def mean_share(self) -> float:
        """Mean infected share over the runs."""
        return float(self.infected_shares.mean())


def kappa_for_share(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    goal: ShareGoal,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Calibration:
    """The kappa whose mean infected share is the goal's, by halving.

    Every kappa is tried on the same draws (common random numbers), so that
    the share differs by kappa alone and not by luck. Raises ``SettingsError``
    when the share is below what the seeds alone make, or above what any kappa
    reaches.
    """
    draws = [
        (
            Draws.sample(traces.people, pathogen, settings, traces.clock, rng),
            Variation.after(traces, settings, rng),
        )
        for _ in range(goal.runs)
    ]

    def run(kappa: float) -> Calibration:
        outbreaks = (
            replay(traces, pathogen, settings, each, kappa, variation)
            for each, variation in draws
        )
        shares = np.array([outbreak.infected_share for outbreak in outbreaks])
        return Calibration(kappa, shares)

    low, high = _bracket(run, goal)
    best = min(low, high, key=goal.miss)
    for step in range(_HALVINGS):
        if goal.miss(best) <= goal.tolerance:
            break
        middle = run((low.kappa + high.kappa) / 2)
        low, high = (middle, high) if middle.mean_share < goal.share else (low, middle)
        best = min(best, middle, key=goal.miss)
        progress("kappa", step + 1, _HALVINGS)
    return best


def _bracket(
    run: Callable[[float], Calibration], goal: ShareGoal
) -> tuple[Calibration, Calibration]:
    """Two runs with the goal between them, by doubling kappa."""
    low, high = run(0.0), run(1.0)
    if goal.share < low.mean_share - goal.tolerance:
        raise SettingsError(
            f"share={goal.share:g} is less than the seeds alone: {low.mean_share:.4g}"
        )
    while high.mean_share < goal.share and high.kappa < _HIGHEST_KAPPA:
        low, high = high, run(high.kappa * 2)
    if high.mean_share < goal.share - goal.tolerance:
        raise SettingsError(
            f"share={goal.share:g} cannot be reached: "
            f"the most on these traces is {high.mean_share:.4g}"
        )
    return low, high


@dataclass(frozen=True, eq=False)
class CountedR0:
    """Secondary cases of single index people, (index people,) each."""

    index_person: PersonIds
    secondary_cases: Floats
    """Expected number of people infected by this index person alone."""

    @property
    def mean(self) -> float:
        """The counted R0."""
        return float(self.secondary_cases.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of ``mean`` over the index people."""
        spread = (
            self.secondary_cases.std(ddof=1) if len(self.secondary_cases) > 1 else 0
        )
        return float(spread / np.sqrt(len(self.secondary_cases)))


def counted_r0(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    rng: np.random.Generator,
    index_people: int = 500,
    progress: Progress = silent,
) -> CountedR0:
    """R0 by counting: whom one case would infect where nobody else is infected.

    For each of ``index_people`` people drawn at random, alone infectious from
    a random slot until recovery, the expected number of others it infects.
    The traces are repeated from their start when the infectious time outlasts
    them, so nothing is cut off. It is below the hazard R0 because the same
    people are met again. Both contact laws; kappa as the settings say. Where
    regions or people differ, every index person lives in a city drawn anew.
    """
    at_least(1, index_people=index_people)
    clock, kappa = traces.clock, resolve_kappa(traces, pathogen, settings)
    person = rng.integers(traces.people, size=index_people).astype(np.int32)
    start = rng.integers(traces.slots, size=index_people)
    duration, onset = (
        whole_slots(rng.exponential(size=index_people), rate, settings.chance, clock)
        for rate in (pathogen.mu, settings.onset_rate)
    )
    symptomatic = rng.random(index_people) < settings.symptomatic_share
    silent_for = np.where(symptomatic, np.minimum(duration, onset), duration)
    force = kappa * pathogen.beta * clock.slot_days
    force_of = force * draw_infectiousness(index_people, settings, rng)
    rule = (
        settings.asymptomatic_weight,
        settings.chance == "linear",
        settings.contact == "I/S",
    )
    cases = np.empty(index_people)
    for index in range(index_people):
        factor = draw_factors(len(traces.regions), settings, rng)
        later = (np.arange(traces.slots) - start[index]) % traces.slots
        visits = _visits(later, duration[index], silent_for[index])
        cases[index] = expected_cases(
            traces.by_slot, person[index], visits, (force_of[index], *rule), factor
        )
        progress("counted R0", index + 1, index_people)
    return CountedR0(person, cases)


def _visits(later: Counts, duration: float, silent_for: float) -> Floats:
    """How often each slot is lived through infectious, without and with symptoms.

    ``later`` (slots,) is how many slots after the start each slot comes first;
    it comes again with every repetition of the traces. Shape (2, slots).
    """
    whole, without = (
        np.maximum(np.ceil((wait - later) / len(later)), 0)
        for wait in (duration, silent_for)
    )
    return np.stack([without, whole - without])
