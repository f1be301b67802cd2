#!/usr/bin/env python
"""Simulate a population with Covasim and write it as files for epifalcon import.

    scripts/foreign_world.py towns mixed --people 2000 --seed 1 --out towns
    epifalcon import --visits towns/visits.csv --kind stays --slot-hours 8 \
        --tests towns/tests.csv --out towns-city
    epifalcon run --city towns-city --pathogen sars-cov-2 --out towns-run

towns/truth.csv has the true course of each infection, for comparison afterwards.
"""

import argparse
import sys
from pathlib import Path

from epifalcon.errors import EpifalconError
from epifalcon.studies.own.foreign_worlds import (
    REGIMES,
    WORLDS,
    draw_world_tests,
    simulate_world,
    write_world,
)


def main() -> None:
    """Write visits.csv, tests.csv and truth.csv; print what they hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("regime", choices=REGIMES)
    parser.add_argument("--people", type=int, default=2000)
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"--out {given.out} exists already")
    try:
        world = simulate_world(
            given.world, people=given.people, days=given.days, seed=given.seed
        )
    except EpifalconError as error:
        parser.error(str(error))
    tests = draw_world_tests(world, given.regime, seed=given.seed)
    write_world(world, tests, given.out)
    ever = world.history.target("ever", given.days - 1).mean()
    sys.stdout.write(
        f"{given.people:,} people, {ever:.1%} infected in {given.days} days; "
        f"{len(tests):,} tests, {tests['result'].sum():,} positive; "
        f"{world.lost_contacts:.2%} of the contacts are lost\n"
        f"Written to {given.out}; slots of {world.traces.clock.slot_hours:g} h\n"
    )


if __name__ == "__main__":
    main()
