"""Settings of Falcon Field's inference."""

from dataclasses import dataclass

from epifalcon.checks import non_negative, positive, unit_interval, whole


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """How often people and places exchange, and how much of the old is kept."""

    sweeps: int = 15
    """Exchanges: each one message of everybody for all its places, and the answer."""
    evidence_bound: float = 16.0
    """Evidence is sent within -1 and this; with 4 as good as nothing is lost."""
    renewed: float = 0.7
    """Share of new evidence in the evidence in force, in the last slot."""
    caution: float = 0.7
    """How much less in earlier slots: the growth of the outbreak from there to the
    end, to the power of minus this. What is thought of those who came first comes
    back from all whom they infected; renewed as fast, it would swing."""
    slower: float = 0.7
    """What ``renewed`` is multiplied with each time the evidence turns back."""

    def __post_init__(self) -> None:
        whole(1, sweeps=self.sweeps)
        positive(evidence_bound=self.evidence_bound, renewed=self.renewed)
        positive(slower=self.slower)
        unit_interval(renewed=self.renewed, slower=self.slower)
        non_negative(caution=self.caution)
