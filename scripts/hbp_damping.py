"""How much of its evidence HBP should renew in a sweep, by tested people alone.

Every candidate is run on the same cities; shown are the log loss of the tested
people whose results were left out (no hidden person is looked at), how many
sweeps it took and by how much a sweep would still have moved the risks.

    scripts/hbp_damping.py --presets hamlet larger-sars larger-omicron --seeds 2
"""

import argparse
import sys
from dataclasses import replace

import numpy as np
from sklearn.metrics import log_loss

from epifalcon.baselines.hbp import Hbp, HbpSettings
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import prepare, run_epidemics

CANDIDATES = tuple(
    HbpSettings(damping=start, least_renewed=least, most_renewed=most)
    for start, least, most in (
        (0.95, 0.02, 0.1),
        (0.95, 0.02, 0.3),
        (0.9, 0.02, 0.3),
        (0.9, 0.02, 0.6),
        (0.7, 0.02, 0.3),
        (0.7, 0.02, 0.6),
        (0.3, 0.1, 0.7),
    )
)


def main() -> None:
    """Print a line for each candidate, preset and seed, then the means."""
    asked = _arguments()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    cities = {(p, s): _city(p, s) for p in asked.presets for s in seeds}
    lost: dict[HbpSettings, list[float]] = {}
    _tell("damping least most preset seed log_loss sweeps moved")
    for settings in CANDIDATES:
        for (preset, seed), (scene, known) in cities.items():
            found = Hbp(replace(scene, seed=seed), settings).fit(known).found
            truth = known.status[found.masked] == 1
            loss = float(log_loss(truth, found.masked_risk))
            lost.setdefault(settings, []).append(loss)
            told = f"{found.told['sweeps']} {found.told['moved']:.4f}"
            _tell(*_words(settings), preset, seed, f"{loss:.5f}", told)
    _tell("damping least most mean_log_loss, best first")
    for settings in sorted(lost, key=lambda one: float(np.mean(lost[one]))):
        _tell(*_words(settings), f"{np.mean(lost[settings]):.5f}")


def _tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _words(settings: HbpSettings) -> tuple[float, float, float]:
    return settings.damping, settings.least_renewed, settings.most_renewed


def _city(preset: str, seed: int) -> tuple[Scene, Known]:
    experiment = Experiment.load(preset)
    prepared = prepare(preset, experiment, seed)
    epidemic = next(run_epidemics(experiment, prepared.traces, seed))
    scene = Scene(
        traces=prepared.traces,
        seed=seed,
        pathogen=experiment.believed_pathogen,
        rule=experiment.believed_rule,
    )
    return scene, epidemic.labels.known


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["hamlet"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    main()
