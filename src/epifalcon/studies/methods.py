"""The methods that a run can train or compute, and the settings of each.

Free of torch: commands that only list or check settings read it.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from epifalcon.federation.settings import PrivacySettings, StoppingSettings
from epifalcon.models.settings import FalconSettings, RegionSettings
from epifalcon.privacy.pseudo.record import PseudoSettings

Method = Literal["falcon", "hgnn", "contact-tracing"]
METHODS: tuple[Method, ...] = get_args(Method)
TITLES: dict[Method, str] = {
    "falcon": "Falcon",
    "hgnn": "HGNN",
    "contact-tracing": "Contact tracing",
}


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Falcon whole; without region model and privacy it is the HGNN."""

    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings = field(default_factory=RegionSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)

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
        return replace(self, privacy=PrivacySettings(), region=region)
