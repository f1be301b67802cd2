"""Compare cities with filled gaps to the data released by the authors.

In the authors' data, people are observed at irregular times, and gaps are filled with
the last place. The observed share is not known. This script runs several shares of
observed half-hours on seeds that no table reports, and prints values that can be
compared with the released files: the share of people ever infected, infectious people
on the first and last day, their concentration in regions, the number of regions with
infectious people; and the AUC of HGNN under the authors' protocol.

    scripts/filled_share.py --shares 0.006 0.0125 0.025 0.05 1 --seeds 100
"""

import argparse
import sys

import numpy as np

from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.federation.preparation import Selection
from epifalcon.federation.training import TrainingTask, fit
from epifalcon.mobility.traces import Traces

RELEASED = (
    "released  regions/person      ?  infected .221  infectious 173 to 2271  "
    "gini .866  top 1 % .29  regions touched 543 to 2136  HGNN .751 (paper)"
)


def main() -> None:
    """Print the released values, then one line per share and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0125])
    parser.add_argument("--seeds", nargs="+", type=int, default=[100])
    given = parser.parse_args()
    sys.stdout.write(f"{RELEASED}\n")
    for share in given.shares:
        for seed in given.seeds:
            sys.stdout.write(f"{share:<8g}  {_measure(share, seed)}\n")
            sys.stdout.flush()


def _measure(share: float, seed: int) -> str:
    overrides = [f"city.observed_share={share}"]
    experiment = Experiment.load("larger-sars+authors", overrides)
    traces = make_city(experiment, seed)
    epidemic = next(run_epidemics(experiment, traces, seed))
    slots = epidemic.outbreak.infectious_by_region_and_day(traces)
    people = slots / traces.clock.slots_per_day
    last = np.sort(people[:, -1])
    top = last[-(len(last) // 100) :].sum() / last.sum()
    touched = (slots[:, [0, -1]] > 0).sum(axis=0)
    truth = epidemic.labels.hidden.open("choosing the round on test people")
    chosen = Selection(truth.person, truth.infected)
    settings = experiment.prediction.central()
    task = TrainingTask(
        traces, epidemic.labels.known, settings, seed, test_people=chosen
    )
    return (
        f"regions/person {_regions_per_person(traces):6.2f}  "
        f"infected {epidemic.outbreak.infected_share:.3f}  "
        f"infectious {people[:, 0].sum():.0f} to {last.sum():.0f}  "
        f"gini {_gini(last):.3f}  top 1 % {top:.2f}  "
        f"regions touched {touched[0]} to {touched[1]}  "
        f"HGNN {fit(task).validation_auc:.3f}"
    )


def _regions_per_person(traces: Traces) -> float:
    ordered = np.sort(traces.by_slot, axis=0)
    new = (np.diff(ordered, axis=0) > 0) & (ordered[1:] >= 0)
    return float((new.sum(axis=0) + (ordered[0] >= 0)).mean())


def _gini(ordered: np.ndarray) -> float:
    rank = 2 * np.arange(1, len(ordered) + 1) - len(ordered) - 1
    return float(rank @ ordered / (len(ordered) * ordered.sum()))


if __name__ == "__main__":
    main()
