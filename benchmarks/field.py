"""Falcon Field in a city: the whole fit, compared with HBP, and one sweep.

The fit includes folds, the choice of the transmission model and calibration; HBP is
the same engine with the pathogen's rate and without calibration.
"""

import json
import sys
from dataclasses import replace
from typing import Any

from benchmarks.measuring import peak_mb, run_in_subprocess, timed
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.federation.field.settings import FalconFieldSettings
from epifalcon.methods.base import Context
from epifalcon.methods.falcon_field import FalconField
from epifalcon.methods.hbp import Hbp


def run(preset: str = "larger-sars") -> dict[str, Any]:
    """Seconds of a fit, ours and HBP's, and milliseconds of a sweep."""
    found: dict[str, Any] = run_in_subprocess("field", preset)
    return found


def _run(preset: str) -> dict[str, Any]:
    settings = Experiment.load(preset)
    traces = make_city(settings, seed=0)
    known = next(run_epidemics(settings, traces, seed=0)).labels.known
    context = Context(pathogen=settings.pathogen, rule=settings.outbreak)
    method_settings = FalconFieldSettings()
    region = replace(method_settings.field.region, transmission="regional")
    once = replace(
        method_settings, field=replace(method_settings.field, folds=0, region=region)
    )
    # The first fit also loads or compiles the kernels.
    FalconField(replace(once, field=replace(once.field, sweeps=3))).fit(
        traces, known, context
    )
    seconds, _ = timed(lambda: FalconField(once).fit(traces, known, context))
    ours, method = timed(lambda: FalconField().fit(traces, known, context))
    peer, _ = timed(lambda: Hbp().fit(traces, known, context))
    return {
        "name": "field",
        "preset": preset,
        "ours": ours,
        "peer": peer,
        "ratio": peer / ours,
        "unit": "s",
        "sweeps": method.scores.steps,
        "seconds_of_one_run": seconds,
        "ms_per_sweep": 1e3 * seconds / method_settings.field.sweeps,
        "peak_mb": peak_mb(),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
