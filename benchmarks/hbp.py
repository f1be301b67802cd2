"""One sweep of belief propagation on the hypergraph: ours against plain NumPy.

Both do the same steps over everybody, slot by slot, and their risks must agree
before anything is timed. Beside the sweep stand the seconds of a whole inference,
from the tests to risks at rest. Times are the best of several, the two taken in
turn, in one process on two threads; on a busy machine the ratio of CPU times is
the steadier one.
"""

import json
import sys
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import (
    THREADS,
    best,
    compared,
    in_a_process_of_its_own,
    peak_mb,
    timed,
)
from epifalcon.baselines.field import Field
from epifalcon.baselines.hbp import Hbp, HbpSettings
from epifalcon.baselines.method import Scene
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from tests.oracles.numpy_field import NumpyField

_OURS, _THEIRS = 12, 3
_AGREE = 1e-3
_DAMPING = 0.9, 0.3


def run(preset: str = "larger-sars") -> dict[str, Any]:
    """Milliseconds of a sweep, ours and NumPy's, and seconds of an inference."""
    found: dict[str, Any] = in_a_process_of_its_own("hbp", preset)
    return found


def _run(preset: str) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    settings = Experiment.load(preset)
    traces = make_city(settings, seed=0)
    known = next(run_epidemics(settings, traces, seed=0)).labels.known
    scene = Scene(traces, 0, settings.pathogen, settings.outbreak)
    ours, theirs = Field(scene, traces, known), NumpyField(scene, traces, known)
    for field in (ours, theirs):
        field.sweep(*_DAMPING)
    apart = float(np.abs(ours.risk - theirs.risk).max())
    if apart > _AGREE:
        raise SystemExit(f"risks differ by {apart:.2g}: nothing to compare")
    took = best(
        {
            "ours": (lambda: ours.sweep(*_DAMPING), _OURS),
            "peer": (lambda: theirs.sweep(*_DAMPING), _THEIRS),
        }
    )
    alone = Hbp(scene, HbpSettings(folds=0))
    seconds, _ = timed(lambda: alone.fit(known))
    with_folds, _ = timed(lambda: Hbp(scene).fit(known))
    return {
        **compared("hbp", preset, took["ours"], took["peer"]),
        "ns_per_visit": 1e9 * took["ours"].wall / traces.by_slot.size,
        "ns_per_visit_cpu": 1e9 * took["ours"].busy / traces.by_slot.size,
        "sweeps": alone.found.steps,
        "seconds_to_rest": seconds,
        "seconds_with_four_folds": with_folds,
        "risks_apart": apart,
        "peak_mb": peak_mb(),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1]), indent=2))
