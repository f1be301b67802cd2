"""A small data set in the table format of the PETs Prize: a week of 240 people."""

import csv
import gzip

import numpy as np

DAYS, HOURS = 28, 24
ACTIVITIES = ("hid", "pid", "activity_number", "activity_type", "start_time")
ACTIVITIES += ("duration", "lid")


def write_tables(folder, people=240, seed=1):
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

    def stay(person, kind, day, hour, hours, lid):
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


def _write(path, header, rows):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        csv.writer(file).writerows([header, *rows])
