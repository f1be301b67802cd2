"""The record of pseudo traces, and the settings that all generators share."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from epifalcon.checks import (
    Checked,
    Count,
    CountOrZero,
    NonNegative,
    PositiveShare,
    shaped,
    typed,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, RegionIds

Method = Literal["plausible", "recurring", "uniform", "aggregate", "walk"]


@dataclass(frozen=True, kw_only=True)
class DomainSettings(Checked):
    """Settings of the clustering of regions into epidemic domains."""

    count: Count = 5
    """Requested number of domains; small ones are merged, so there may be fewer. With
    more domains the cases at pseudo places are closer to those at the true ones, but
    pseudo traces are easier to detect: see docs/explanation-falcon.md."""
    gamma: NonNegative = 1.0
    """Weight of the location relative to the cases; 0 uses cases only."""
    least_regions: Count = 20
    """Minimum number of regions per domain, unless there is only one domain. Knowing
    the domains does not narrow a place to fewer regions than this."""


@dataclass(frozen=True, kw_only=True)
class PseudoSettings(Checked):
    """Number of pseudo traces per person, and their generator."""

    method: Method = "plausible"
    """Generator: the paper's walk on epidemic domains, its variant with recurring
    places, or one of the paper's three baselines."""
    pseudo_copies: CountOrZero = 2
    """Number of pseudo traces per person, the paper's n_p; 0 for none."""
    people_share: PositiveShare = 1.0
    """Share of the people, sampled at random, to whose traces the mobility model is
    fitted."""
    domains: DomainSettings = field(default_factory=DomainSettings)
    """Clustering into epidemic domains, used by ``plausible`` and ``recurring``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domains.least_regions <= self.pseudo_copies:
            raise SettingsError(
                f"domains.least_regions={self.domains.least_regions} must be greater "
                f"than pseudo_copies={self.pseudo_copies}: the true place and each "
                "copy need distinct regions"
            )

    @property
    def reads_cases(self) -> bool:
        """True if pseudo places depend on the reported cases."""
        return self.method in {"plausible", "recurring"}


@dataclass(frozen=True, eq=False)
class PseudoTraces:
    """True traces of all people with their pseudo traces.

    ``pseudo`` (copies, slots, people) int32 has the layout of
    ``Traces.by_slot`` and is made read-only. In one slot the true region and all
    pseudo regions of a person differ, so nobody claims a place twice. -1 means that
    the true region was not observed, or that a domain has no region left; the copy
    then sends nothing.
    """

    true: Traces
    pseudo: RegionIds

    def __post_init__(self) -> None:
        array, true = self.pseudo, self.true.by_slot
        typed(np.int32, 3, pseudo=array)
        shaped((len(array), *true.shape), pseudo=array)
        for slot in range(len(true)):
            _require_distinct(array[:, slot], true[slot], len(self.true.regions), slot)
        array.setflags(write=False)

    @property
    def copies(self) -> int:
        """Number of pseudo traces per person."""
        return len(self.pseudo)

    def copy(self, number: int) -> Traces:
        """Return one pseudo trace of each person as ``Traces``, sharing memory."""
        if not 0 <= number < self.copies:
            raise DataError(f"copy {number} must lie between 0 and {self.copies - 1}")
        true = self.true
        return Traces(self.pseudo[number], true.clock, true.regions, true.names)


def _require_distinct(
    pseudo: RegionIds, true: RegionIds, regions: int, slot: int
) -> None:
    """Raise ``DataError`` for invalid claims of one slot, (copies, people)."""
    known = true != UNKNOWN
    for number, claimed in enumerate(pseudo):
        made = claimed != UNKNOWN
        if (made & ~known).any():
            raise DataError(
                f"copy {number} claims a place in slot {slot}, which was not observed"
            )
        if not ((claimed >= UNKNOWN) & (claimed < regions)).all():
            raise DataError(f"region ids of copy {number} must be -1 to {regions - 1}")
        if (made & (claimed == true)).any():
            raise DataError(f"copy {number} claims a true place in slot {slot}")
        for earlier in pseudo[:number]:
            if (made & (claimed == earlier)).any():
                raise DataError(f"two copies claim one place in slot {slot}")
