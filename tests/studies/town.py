"""A town of 80 people on which every method trains in a moment."""

from dataclasses import replace
from functools import cache

import numpy as np

from epifalcon.epidemic.cases import all_cases
from epifalcon.epidemic.test_results import TestResults
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import RunInputs
from epifalcon.experiments.simulation import make_city, prepare, run_epidemics
from epifalcon.federation.settings import (
    PredictionSettings,
    PrivacySettings,
    StoppingSettings,
)
from epifalcon.federation.training import TrainingTask
from epifalcon.models.settings import (
    DcrnnSettings,
    FalconSettings,
    RegionSettings,
    TrainingSettings,
)
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings

SEED = 5
FALCON = PredictionSettings(
    model=FalconSettings(rounds=6, width=4, learning_rate=0.001),
    region=RegionSettings(
        training=TrainingSettings(steps=2), network=DcrnnSettings(hidden_width=4)
    ),
    pseudo=PseudoSettings(domains=DomainSettings(count=2, least_regions=4)),
    stopping=StoppingSettings(check_every=2),
)
CENTRAL = FALCON.central()


@cache
def experiment():
    """The settings of the town, those of ``FALCON`` among them."""
    words = ["city.people=80", "city.regions=20", "city.days=5"]
    return replace(
        Experiment.load("hamlet", [*words, "outbreak.seed_count=12"]),
        **{name: getattr(FALCON, name) for name in vars(FALCON)},
    )


@cache
def traces(seed=SEED):
    return make_city(experiment(), seed)


@cache
def epidemic():
    return next(run_epidemics(experiment(), traces(), SEED))


def known():
    return epidemic().labels.known


def task(settings=FALCON, tests=None, seed=3):
    """The training of ``settings`` on the town, by default with its own tests."""
    cases = None
    if settings.macro_cases == "all":
        cases = all_cases(epidemic().outbreak, traces()).by_region_and_day
    return TrainingTask(
        traces(), known() if tests is None else tests, settings, seed, cases
    )


def with_mode(mode, **more):
    """Falcon in a privacy mode; ``more`` are settings of the person model."""
    model = replace(FALCON.model, **more)
    return replace(FALCON, model=model, privacy=PrivacySettings(mode=mode))


def with_cases(macro_cases):
    return replace(FALCON, region=replace(FALCON.region, macro_cases=macro_cases))


def flipped(tests, people):
    """The same tests, those of ``people`` with the opposite result."""
    positive = tests.positive.copy()
    positive[np.isin(tests.person, people)] ^= True
    return TestResults(tests.people, tests.person, positive, tests.slot)


@cache
def prepared():
    """The town as a run starts from it; every run of it shares these records."""
    return prepare("town", experiment(), SEED)


def inputs(folder, **changes):
    """A run of the town that is to stand in ``folder``; ``changes`` of settings."""
    start = prepared()
    if changes:
        start = replace(start, experiment=replace(start.experiment, **changes))
    tests = epidemic().labels.known
    return RunInputs(
        folder, start, SEED, start.reported(SEED), tests, epidemic(), None, True
    )
