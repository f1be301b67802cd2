"""Runs in worlds of other simulators, as studies compare methods on them.

The traces of a world are the city of a run; its tests, and its history as an
``Outbreak`` record, are the epidemic. Only the oracle reads the history.
"""

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

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


@dataclass(frozen=True)
class WorldInputs(CityInputs):
    """The city of a run, and the world whose traces it has."""

    world: ForeignWorld
    kind: WorldKind
    seed: int


def prepare_world(kind: WorldKind, experiment: Experiment, seed: int) -> WorldInputs:
    """Simulate the world of ``seed`` with the people and days of the settings."""
    start, size = perf_counter(), experiment.city
    world = simulate_world(kind, people=size.people, days=size.days, seed=seed)
    return WorldInputs(
        name=kind,
        experiment=experiment,
        traces=world.traces,
        city_origin=store.Origin.now(as_plain(experiment), seed),
        city_folder=None,
        seconds=perf_counter() - start,
        world=world,
        kind=kind,
        seed=seed,
    )


def draw_epidemic(city: WorldInputs, regime: str, experiment: Experiment) -> Epidemic:
    """Draw the tests of the regime; the truth of untested people is held out."""
    start, seed = perf_counter(), city.seed
    tests = draw_world_tests(city.world, regime, seed=seed)
    labels = world_labels(city.world, tests, experiment.labels.target)
    outbreak = outbreak_of(city.world, city.kind, experiment)
    return Epidemic(seed, outbreak, labels, perf_counter() - start)


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
