"""A little city for the engines: gaps, people never seen, labels, pseudo places."""

import numpy as np
import torch

from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.privacy_plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PrivacySettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.models.settings import FalconSettings
from tests.oracles.cities import random_traces

CLOCK = Clock(slot_hours=4, days=3)
PAPER = {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1}
CLIPS = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.0}
SMALL = {"width": 6, "rounds": 8, "learning_rate": 0.01}


def traces_of(people: int = 30, seed: int = 3) -> Traces:
    traces = random_traces(seed, people, 7, CLOCK)
    by_slot = traces.by_slot.copy()
    by_slot[:, 4] = -1
    return Traces(by_slot, CLOCK, traces.regions)


def statuses(people: int = 30, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    status = rng.choice([-1, 0, 1], size=people, p=[0.4, 0.3, 0.3]).astype(np.int8)
    status[:3] = 1, 0, -1
    return status


def city(
    people: int = 30, copies: int = 0, states: int = 0, window_slots: int = 1
) -> Cohort:
    """Everybody as one cohort."""
    made = [
        Incidence.of(traces_of(people, 3 + number), window_slots=window_slots)
        for number in range(copies + 1)
    ]
    state = None
    if states:
        generator = torch.Generator().manual_seed(0)
        state = torch.randn(people, states, generator=generator, dtype=torch.float64)
    numbers = np.arange(people)
    return Cohort(numbers, made[0], statuses(people), state, tuple(made[1:]))


def settings_of(**changes: object) -> FalconSettings:
    return FalconSettings(**{**SMALL, **changes})


def plan_of(
    settings: FalconSettings, copies: int = 0, **privacy: object
) -> PrivacyPlan:
    given = PrivacySettings(**privacy)
    return PrivacyPlan.of(given, settings, releases_of(CLOCK), copies)


def engine_of(
    cohort: Cohort, settings: FalconSettings, seed: int = 1, **privacy: object
) -> VectorisedEngine:
    plan = plan_of(settings, len(cohort.pseudo), **privacy)
    return VectorisedEngine(cohort, settings, plan, seed)
