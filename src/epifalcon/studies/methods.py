"""The methods that a run can train or compute, and the settings of Falcon's.

The catalogue of the rivals with Falcon and HGNN in it, which have engine, region
model and ledger behind them. Free of torch: commands that only list or check
settings read it.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from epifalcon.baselines import catalogue
from epifalcon.baselines.catalogue import Entry
from epifalcon.federation.settings import (
    PrivacySettings,
    StoppingSettings,
    ViewSettings,
)
from epifalcon.models.settings import FalconSettings, RegionSettings
from epifalcon.privacy.pseudo.record import PseudoSettings

FALCONS = ("hgnn", "falcon")
"""Trained by the engine, round by round."""
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


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Falcon whole; without region model and privacy it is the HGNN."""

    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings = field(default_factory=RegionSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    view: ViewSettings = field(default_factory=ViewSettings)

    @property
    def macro_cases(self) -> Literal["reported", "all", "none"]:
        """Which cases the region model sees, ``auto`` resolved by the mode."""
        wanted = self.region.macro_cases
        if wanted != "auto":
            return wanted
        return "none" if self.privacy.mode == "local" else "reported"

    def central(self) -> "PredictionSettings":
        """The paper's HGNN: the person model in one place, nothing else."""
        region = replace(self.region, macro_cases="none")
        return replace(
            self, privacy=PrivacySettings(), region=region, view=ViewSettings()
        )
