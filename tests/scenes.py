"""Traces, seed and context in one record, for tests that fit methods on one scene."""

from dataclasses import dataclass

from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.methods.base import Context
from epifalcon.mobility.traces import Traces


@dataclass(frozen=True, eq=False, kw_only=True)
class _Scene(Context):
    traces: Traces
    seed: int


def Scene(traces, seed=0, pathogen=SARS_COV_2, rule=None, **more):
    """Return a context with the traces and the seed."""
    rule = OutbreakSettings() if rule is None else rule
    # Simulated people: scores are reproducible, also with noise.
    more = {"insecure_seed": True, **more}
    return _Scene(traces=traces, seed=seed, pathogen=pathogen, rule=rule, **more)


def placed(cls, scene, settings=None):
    """Return a method whose ``fit`` takes the tests alone."""
    method = cls(settings, seed=scene.seed)
    fit = method.fit
    method.fit = lambda known: fit(scene.traces, known, scene)
    return method
