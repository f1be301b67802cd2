"""The methods that a run can train or compute.

The catalogue of the rivals with Falcon and HGNN in it, which have engine, region
model and ledger behind them. Free of torch: commands that only list or check
settings read it.
"""

from epifalcon.baselines import catalogue
from epifalcon.baselines.catalogue import Entry

FALCONS = ("hgnn", "falcon")
"""Trained by the engine, round by round."""
FIELD = "falcon-field"
"""Has tables of settings and promises of its own."""
_HOME = "epifalcon.studies.falcon_method"
catalogue.add(
    Entry("hgnn", "HGNN", "paper", "The person model alone.", f"{_HOME}:Hgnn")
)
catalogue.add(
    Entry(
        "falcon",
        "Falcon",
        "paper",
        "The paper's method: detached propagation, noise, pseudo traces, region model.",
        f"{_HOME}:Falcon",
    )
)
