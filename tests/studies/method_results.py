"""Figures that methods might have earned, made up by a seed."""

from dataclasses import replace

import numpy as np

from epifalcon.evaluation.calibration import fit_isotonic, fit_platt
from epifalcon.evaluation.metrics import curve, evaluate, sums_by_bin
from epifalcon.experiments.run_folder import (
    SCALINGS,
    MethodResult,
    precision_at_recalls,
)
from epifalcon.studies.study import Plan
from epifalcon.studies.worker import calibrated
from tests.studies import town


def method_result(seed, skill=1.0, title="Method", left_raw=None, people=600):
    """A method of some skill on the people of a seed, too sure of itself."""
    rng = np.random.default_rng(seed)
    infected = rng.random(people) < 0.22
    odds = skill * (infected - 0.5) + rng.normal(0, 1, people) - 1.3
    risk = 1 / (1 + np.exp(-2 * odds))
    half = people // 2
    ranked = dict.fromkeys(SCALINGS, curve(risk[half:], infected[half:]))
    if left_raw is None:
        for name, fit in (("platt", fit_platt), ("isotonic", fit_isotonic)):
            mended = fit(risk[:half], infected[:half])(risk[half:])
            ranked[name] = curve(mended, infected[half:])
    return MethodResult(
        title=title,
        metrics=evaluate(risk[half:], infected[half:], 0.8).as_plain(),
        seconds=2.0 + seed,
        cpu_seconds=4.0,
        peak_rss_mb=300.0 + seed,
        recalibrated={name: calibrated(one) for name, one in ranked.items()},
        masked=half,
        left_raw=left_raw,
        source_sha256=None,
        precision=precision_at_recalls(ranked["raw"]),
        reliability=np.stack(
            [sums_by_bin(ranked[one], 20, "width") for one in SCALINGS]
        ),
    )


def plan(folder, methods, seeds=(0, 1, 2), name="hamlet"):
    return Plan(folder, name, town.experiment(), tuple(methods), tuple(seeds))


def trained(given, method, values):
    """``found`` with (learning rate, steps, at limit) by seed for one method."""
    by_seed = {
        seed: replace(
            given[method][seed],
            training={"learning_rate": rate, "steps": steps, "at_limit": at_limit},
        )
        for seed, (rate, steps, at_limit) in values.items()
    }
    return {**given, method: {**given[method], **by_seed}}


def found(skills, seeds=(0, 1, 2)):
    """By method of the given skill and by seed."""
    return {
        method: {seed: method_result(seed, skill, method.upper()) for seed in seeds}
        for method, skill in skills.items()
    }
