#!/usr/bin/env python
"""Write a small data set in the table format of the PETs Prize, or evaluate one.

    scripts/pets_example.py write va --people 600
    scripts/pets_example.py evaluate va --method falcon-field

The second command prints the AUPRC for "infected in the last 7 days" of any folder
that epifalcon.studies.own.pets.read_pets reads.
"""

import argparse
import csv
import gzip
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import epifalcon as ef
from epifalcon.errors import DataError, EpifalconError
from epifalcon.experiments.experiment import OWN_DATA_METHOD
from epifalcon.methods.registry import method_class
from epifalcon.studies.own.foreign_worlds import known_tests
from epifalcon.studies.own.pets import read_pets

DAYS, HOURS = 28, 24
ACTIVITIES = ("hid", "pid", "activity_number", "activity_type", "start_time")
ACTIVITIES += ("duration", "lid")


def write_tables(
    folder: Path, people: int = 240, seed: int = 1
) -> tuple[NDArray[Any], NDArray[Any], list[tuple[Any, ...]]]:
    """Write the four tables; return ids, regions (people, hours of a week), outcomes.

    Regions are named as the importer does. Work or school is from 9 to 17 on five days,
    a place in the evening at random; the rest of the time is at home. The disease is
    SIR in steps of a day: each contact of an hour infects with probability 0.003.
    """
    rng = np.random.default_rng(seed)
    pid = 1000 + rng.permutation(people)
    hid = 7 + np.arange(people) // 3
    age = rng.integers(3, 80, people)
    rows = []
    where = np.array([[f"home-{at}"] * 7 * HOURS for at in hid], dtype=object)

    def stay(person: int, kind: int, day: int, hour: int, hours: int, lid: int) -> None:
        start = (day * HOURS + hour) * 3600
        rows.append((hid[person], pid[person], 0, kind, start, hours * 3600, lid))
        if kind != 1:
            at = day * HOURS + hour
            where[person, at : at + hours] = f"place-{lid}"

    for person in range(people):
        job = 500 + rng.integers(people // 6)
        kind = 5 if age[person] < 19 else 2
        for day in range(7):
            stay(person, 1, day, 0, 8, 10**9 + hid[person])
            if day < 5:
                stay(person, kind, day, 9, 8, job)
            if rng.random() < 0.5:
                stay(person, 4, day, 18, 2, 900 + rng.integers(20))
    state = np.full(people, "S")
    until = np.zeros(people)
    start = rng.choice(people, 6, replace=False)
    outcome = []
    for day in range(DAYS):
        state[(state == "I") & (until <= day)] = "R"
        if day == 0:
            state[start], until[start] = "I", 7
        hours = where[:, day % 7 * HOURS : (day % 7 + 1) * HOURS]
        for here in hours.T:
            for place in sorted(set(here[state == "I"])):
                there = (here == place) & (state == "S")
                there &= (
                    rng.random(people) < 0.003 * (state[here == place] == "I").sum()
                )
                until[there] = day + 8
                state = np.where(there, "E", state)
        outcome += [
            (day, pid[at], "S" if s == "E" else s) for at, s in enumerate(state)
        ]
        state[state == "E"] = "I"
    _write(
        folder / "va_person.csv.gz",
        ("pid", "hid", "age"),
        zip(pid, hid, age, strict=True),
    )
    _write(
        folder / "va_household.csv",
        ("hid", "rlid"),
        ((at, at) for at in np.unique(hid)),
    )
    _write(folder / "va_activity_location_assignment.csv", ACTIVITIES, rows)
    outcome = [outcome[at] for at in rng.permutation(len(outcome))]
    _write(folder / "va_disease_outcome_training.csv", ("day", "pid", "state"), outcome)
    return pid, where, outcome


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        csv.writer(file).writerows([header, *rows])


def evaluate(folder: Path, method: str, slot_hours: float) -> str:
    """Fit ``method`` on all but the last week; return its accuracy in that week."""
    data = read_pets(folder, slot_hours=slot_hours)
    model = method_class(method)()
    model.fit(data.traces, known_tests(data.traces, data.tests))
    found = ef.evaluate(model.predict_proba(), data.truth)
    if found.auc is None:
        raise DataError(f"{folder}: nobody or everybody is infected in the last 7 days")
    return (
        f"{found.people:,} people not infected before the last 7 days, "
        f"{found.infected:,} of them infected in these\n"
        f"{method}: AUPRC {found.average_precision:.3f} (chance: "
        f"{found.prevalence:.3f}), AUC {found.auc:.3f}\n"
    )


def main() -> None:
    """Write the tables, or print the accuracy of a method on them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "evaluate"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--people", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", default=OWN_DATA_METHOD)
    parser.add_argument("--slot-hours", type=float, default=2.0)
    given = parser.parse_args()
    if given.action == "write":
        if given.folder.exists():
            parser.error(f"{given.folder} exists already")
        if given.people < 6:
            parser.error(f"--people {given.people}: expected 6 or more")
        given.folder.mkdir(parents=True)
        write_tables(given.folder, given.people, given.seed)
        names = ", ".join(sorted(path.name for path in given.folder.iterdir()))
        sys.stdout.write(f"{given.people:,} people, {DAYS} days: {names}\n")
        return
    try:
        sys.stdout.write(evaluate(given.folder, given.method, given.slot_hours))
    except EpifalconError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
