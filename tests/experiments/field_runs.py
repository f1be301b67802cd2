"""Runs of Falcon Field on the town of 80, and files of what happens in it."""

from dataclasses import replace

from epifalcon.experiments.run_folder import create_run_folder
from epifalcon.experiments.run_methods import TrainingOptions, run_method
from tests.studies import town

OPTIONS = TrainingOptions()


def made(folder, beside=(), **privacy):
    """A finished run of the field on the town of 80."""
    start = town.experiment()
    region = replace(start.field.region, transmission="regional-strong")
    settings = replace(start.field, sweeps=6, folds=2, region=region)
    noise = replace(start.field_privacy, **privacy)
    changes = {"field": settings, "field_privacy": noise, "method": "falcon-field"}
    inputs = town.inputs(folder, beside=beside, **changes)
    create_run_folder(inputs)
    methods = ("falcon-field", *beside)
    return inputs, [run_method(inputs, method, OPTIONS) for method in methods]


def write_visits(run, path, people, first_day, days, names=None):
    """Some people's traces as a file, one row a slot, as those of later days."""
    clock, rows = run.traces.clock, ["person,day,hour,region"]
    for person in people:
        name = person if names is None else names[person]
        for slot in range(days * clock.slots_per_day):
            region = run.traces.by_slot[slot, person]
            day, hour = first_day + clock.day_of_slot(slot), clock.hour_of_slot(slot)
            if region >= 0:
                rows.append(f"{name},{day},{hour},{region}")
    path.write_text("\n".join(rows) + "\n")


def write_tests(run, path, people):
    known, clock = run.known, run.traces.clock
    results = [
        (person, slot, positive)
        for person, slot, positive in zip(
            known.person, known.slot, known.positive, strict=True
        )
        if person in people
    ]
    rows = [
        f"{person},{clock.day_of_slot(slot) + 1},{clock.hour_of_slot(slot)},{positive}"
        for person, slot, positive in results
    ]
    path.write_text("\n".join(["person,day,hour,result", *rows]) + "\n")
    return results
