"""Runs in worlds of other simulators, as studies compare methods on them.

The traces of a world are the city of a run; its tests, and its history as an
``Outbreak`` record, are the epidemic. Only the oracle reads the history.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter

import numpy as np
import polars as pl

from epifalcon import store
from epifalcon.checks import one_of
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.sellke import Variation
from epifalcon.epidemic.test_kinds import TestReason
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import CityInputs, Epidemic
from epifalcon.settings import as_plain, unknown_name
from epifalcon.studies.own.foreign_worlds import (
    REGIMES,
    SLOT_HOURS,
    WORLDS,
    Days,
    ForeignWorld,
    WorldKind,
    draw_world_tests,
    pair_hazards,
    require_simulators,
    simulate_world,
    world_labels,
)
from epifalcon.types import Floats, Slots


@dataclass(frozen=True, kw_only=True)
class ForeignCity:
    """World and regime of the runs of a cell; people and days are in its settings."""

    kind: WorldKind
    regime: str

    def __post_init__(self) -> None:
        one_of(WORLDS, kind=self.kind)
        if self.regime not in REGIMES:
            raise SettingsError(unknown_name("regime", self.regime, REGIMES))

    @property
    def tested_because(self) -> TestReason:
        """What an analyst would know of why people were tested."""
        rule = REGIMES[self.regime]
        return "unknown" if rule.symptoms or rule.contact else "random"

    def require(self) -> None:
        """Raise ``SettingsError`` without the extra ``foreign``."""
        require_simulators(f"the world {self.kind!r}")

    def city(self, experiment: Experiment, seed: int) -> CityInputs:
        """Return the traces of the world of ``seed``."""
        start, traces = perf_counter(), self._simulated(experiment, seed).traces
        origin = store.Origin.now(as_plain(experiment), seed)
        seconds = perf_counter() - start
        return CityInputs(self.kind, experiment, traces, origin, None, seconds)

    def epidemic(self, experiment: Experiment, seed: int) -> Epidemic:
        """Draw the tests of the regime; the truth of untested people is held out.

        Methods do not get the reason of each test, nor days of onset.
        """
        start, world = perf_counter(), self._simulated(experiment, seed)
        tests = draw_world_tests(world, self.regime, seed=seed)
        tests = tests.with_columns(reason=pl.lit(""), onset=pl.lit(None, pl.Int64))
        labels = world_labels(world, tests, experiment.labels.target)
        outbreak = outbreak_of(world, self.kind, experiment)
        return Epidemic(seed, outbreak, labels, perf_counter() - start)

    def _simulated(self, experiment: Experiment, seed: int) -> ForeignWorld:
        city = experiment.city
        return _world(self.kind, city.people, city.days, seed)

    def settings(self, people: int, days: int) -> tuple[str, ...]:
        """Return the overrides of a cell: the size, and what is assumed."""
        return (
            f"city.people={people}",
            f"city.days={days}",
            f"city.slot_hours={SLOT_HOURS[self.kind]}",
            # As for imported data: the share in the paper.
            "outbreak.seed_share=0.02",
            f"labels.tested_because={self.tested_because}",
        )


@lru_cache(maxsize=1)
def _world(kind: WorldKind, people: int, days: int, seed: int) -> ForeignWorld:
    """Simulate a world once for all regimes, which are planned one after another."""
    return simulate_world(kind, people=people, days=days, seed=seed)


def outbreak_of(
    world: ForeignWorld, kind: WorldKind, experiment: Experiment
) -> Outbreak:
    """Return the history as a record for the oracle.

    An event of a day is in its first slot. The factor of a region turns the hazard of
    the paper's rule (infectious per person present) into Covasim's (per infectious
    contact and day, by kind of place). Unknown to the record are susceptibility by age
    and the infectiousness of single people.
    """
    traces, history, people = world.traces, world.history, world.traces.people
    clock, pathogen = traces.clock, experiment.pathogen

    def slot(day: Days) -> Slots:
        within = (day >= 0) & (day < clock.days)
        return np.where(within, day * clock.slots_per_day, -1).astype(np.int32)

    seeds = history.infected == 0
    nobody = np.full(people, -1, np.int32)
    rule = replace(
        experiment.outbreak,
        seed_count=None,
        seed_share=float(seeds.mean()),
        # Above 0: regions have factors.
        regional_sigma=1.0,
    )
    return Outbreak(
        infection_slot=slot(history.infected),
        infectious_slot=slot(history.infectious),
        onset_slot=slot(history.onset),
        recovery_slot=slot(history.recovered),
        source_person=nobody,
        source_region=nobody,
        seeds=seeds,
        clock=clock,
        pathogen=pathogen,
        settings=rule,
        kappa=1 / (pathogen.beta * clock.slot_days),
        variation=Variation(_factors(world, kind)),
    )


def _factors(world: ForeignWorld, kind: WorldKind) -> Floats:
    """Return the hazard of one infectious contact and slot, times people present."""
    traces, kinds = world.traces, world.region_kind
    present, occupied = np.zeros((2, len(kinds)))
    for here in traces.by_slot:
        count = np.bincount(here[here >= 0], minlength=len(kinds))
        present += count
        occupied += count > 0
    # Contacts of a day count once, however many slots they last.
    day = traces.by_slot[traces.clock.slots_of_day(0)]
    stay = np.arange(traces.people) * len(kinds) + day
    stay, slots = np.unique(stay[day >= 0], return_counts=True)
    of_kind = kinds[stay % len(kinds)]
    size = np.maximum(np.bincount(of_kind, minlength=4), 1)
    slots_of_kind = np.maximum(np.bincount(of_kind, slots, minlength=4) / size, 1)
    hazard = pair_hazards(kind) / slots_of_kind
    return np.asarray(hazard[kinds] * present / np.maximum(occupied, 1))
