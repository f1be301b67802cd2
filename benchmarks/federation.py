"""A round over 1, 2, 4 and 8 sites at Larger size, against the round in one process.

A real server and real sites over mutual TLS on loopback; the sites share the cores of
one machine. Without privacy and in the default precision. The fastest rounds are
compared, since other work disturbs some of them. Before results are reported,
parameters and scores must agree with those of one process in single precision.
"""

import tempfile
from pathlib import Path
from typing import Any

from epifalcon.federation.settings import SiteRules
from epifalcon.studies.federation_rehearsal import (
    Rehearsal,
    federated_experiment,
    rehearse,
)

_ROUNDS = 12
_SITES = (1, 2, 4, 8)
_MOST_APART = 1e-4
# The region model is fitted once by the server and is not part of a round.
_OVERRIDES = ("region.macro_cases=none",)


def run(preset: str = "larger-sars") -> dict[str, Any]:
    """Seconds and bytes of a round by number of sites."""
    found = {str(sites): _one(preset, sites) for sites in _SITES}
    four = found["4"]
    return {
        "name": "federation",
        "ours": four["seconds"],
        "peer": four["in_process_seconds"],
        "ratio": four["in_process_seconds"] / four["seconds"],
        "unit": "s per round",
        "times_in_process": four["seconds"] / four["in_process_seconds"],
        "sites": found,
    }


def _one(preset: str, sites: int) -> dict[str, float]:
    experiment = federated_experiment(preset, "falcon", _OVERRIDES, rounds=_ROUNDS)
    rules = SiteRules(least_sites=sites)
    rehearsal = Rehearsal(experiment=experiment, sites=sites, rules=rules)
    with tempfile.TemporaryDirectory() as folder:
        found = rehearse(rehearsal, Path(folder))
    if found["max_difference_to_in_process"] > _MOST_APART:
        raise SystemExit(f"{sites} sites: results differ, nothing to compare")
    return {
        "seconds": found["fastest_round_seconds"],
        "in_process_seconds": found["in_process_fastest_round_seconds"],
        "mb": found["bytes_per_round"] / 1e6,
        "site_share": found["site_share"],
    }
