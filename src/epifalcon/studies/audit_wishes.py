"""What an audit shall try."""

from dataclasses import dataclass

from epifalcon.checks import whole
from epifalcon.evaluation.audit.field_canaries import FieldAuditSettings
from epifalcon.evaluation.audit.releases import AuditSettings


@dataclass(frozen=True, kw_only=True)
class AuditWish:
    """What to try beside the attacks that need no further run."""

    canaries: AuditSettings | None = None
    """Of Falcon; None for the defaults."""
    field_canaries: FieldAuditSettings | None = None
    """Of Falcon Field; None for the defaults."""
    people: int = 100
    """Whose messages of Falcon Field are attacked, drawn at random."""
    shadow_runs: int = 0
    """Of the method, for membership and label inference; 0 leaves those out. They
    are kept in the method's folder, so that they need not be made again."""
    seed: int = 0

    def __post_init__(self) -> None:
        whole(0, seed=self.seed, shadow_runs=self.shadow_runs)
        whole(1, people=self.people)
