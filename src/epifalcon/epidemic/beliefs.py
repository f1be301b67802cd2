"""What methods are told of a disease, which need not be the truth.

Health offices publish rates; that regions or people differ, and by how much, no
office knows. A method is therefore given the believed pathogen and the believed
rule, never those that the simulator followed.
"""

from dataclasses import dataclass, replace

from epifalcon.checks import positive
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings


@dataclass(frozen=True, kw_only=True)
class BeliefSettings:
    """By how much the published rates differ from the true ones."""

    beta_factor: float = 1.0
    """Believed over true transmission rate."""

    def __post_init__(self) -> None:
        positive(beta_factor=self.beta_factor)

    def pathogen(self, true: Pathogen) -> Pathogen:
        """The rates that methods are told."""
        return replace(true, beta=true.beta * self.beta_factor)

    def rule(self, true: OutbreakSettings) -> OutbreakSettings:
        """The rule that methods are told: all regions and all people alike."""
        return replace(true, regional_sigma=0.0, dispersion=None)
