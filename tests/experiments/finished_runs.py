"""Small runs, finished in a second, for those who read runs."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from epifalcon.epidemic.test_results import TestResults, exclude_people
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.prediction import NewPeople
from epifalcon.experiments.run_folder import (
    FinishedRun,
    RunInputs,
    create_run_folder,
    finish,
)
from epifalcon.experiments.run_methods import TrainingOptions, run_method
from epifalcon.experiments.simulation import prepare, run_epidemics
from epifalcon.federation.training import TrainingTask
from epifalcon.mobility.traces import Traces

SEED = 5
TOWN = (
    "city.people=150",
    "city.regions=30",
    "city.days=5",
    "outbreak.seed_count=20",
    "model.input=status",
    "model.rounds=20",
    "model.learning_rate=0.01",
    "region.training.steps=3",
    "pseudo.domains.least_regions=5",
)


def make_run(folder: Path, *words: str, whole: bool = True) -> RunInputs:
    """A run of a town of 150 people; only begun unless ``whole``."""
    experiment = Experiment.load("hamlet", [*TOWN, *words])
    prepared = prepare("town", experiment, SEED)
    epidemic = next(run_epidemics(experiment, prepared.traces, SEED))
    reported, known = prepared.reported(SEED), epidemic.labels.known
    inputs = RunInputs(folder, prepared, SEED, reported, known, epidemic)
    create_run_folder(inputs)
    if whole:
        for method in (experiment.method, *experiment.beside):
            run_method(inputs, method, TrainingOptions())
        finish(inputs)
    return inputs


def copied_run(inputs: RunInputs, place: str | Path) -> RunInputs:
    """A copy of a run, at ``place`` or beside it under this name."""
    folder = inputs.folder.parent / place
    shutil.copytree(inputs.folder, folder)
    return replace(inputs, folder=folder)


def chosen_people(
    traces: Traces, known: TestResults, people
) -> tuple[Traces, TestResults]:
    """Some people of a city, in any order, and their tests."""
    order = np.asarray(people)
    part = Traces(traces.by_slot[:, order].copy(), traces.clock, traces.regions)
    place = np.full(traces.people, -1, np.int32)
    place[order] = np.arange(len(order))
    kept = place[known.person] >= 0
    tests = TestResults.from_tests(
        len(order), place[known.person[kept]], known.positive[kept], known.slot[kept]
    )
    return part, tests


def again(run: FinishedRun, validation: bool = False) -> NewPeople:
    """The run's own people; with the tests of validation people or without."""
    task = TrainingTask(run.traces, run.known, run.settings, run.seed)
    held_back = task.split.held_back
    known = run.known if validation else exclude_people(run.known, held_back)
    return NewPeople(run.traces, known)


def some(run: FinishedRun, people) -> NewPeople:
    """Some of the run's people as newcomers."""
    return NewPeople(*chosen_people(run.traces, run.known, people))


def one_flipped(people: NewPeople, person: int) -> NewPeople:
    """The same people, one of them with the opposite tests."""
    known = people.known
    positive = known.positive ^ (known.person == person)
    return replace(people, known=replace(known, positive=positive))
