"""The record of pseudo traces, and the settings that all generators share."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from epifalcon.checks import Checked, Count, CountOrZero, NonNegative, PositiveShare
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, RegionIds

Method = Literal["plausible", "recurring", "uniform", "aggregate", "walk"]


@dataclass(frozen=True, kw_only=True)
class DomainSettings(Checked):
    """How regions are put together into epidemic domains."""

    count: Count = 5
    """Domains wished for; small ones are dissolved, so there may be fewer. More of
    them keep pseudo places closer to the true ones' cases, and make pseudo
    traces easier to tell: see docs/explanation-falcon.md."""
    gamma: NonNegative = 1.0
    """Weight of the place against the cases: 0 is cases alone."""
    least_regions: Count = 20
    """A domain has at least so many regions, or is the only one. Whoever knows
    the domains cannot narrow a place further down than this by them."""


@dataclass(frozen=True, kw_only=True)
class PseudoSettings(Checked):
    """How many pseudo traces each person gets, and how they are made."""

    method: Method = "plausible"
    """The paper's walk on epidemic domains, the same with places that recur, or
    one of the paper's three rivals."""
    pseudo_copies: CountOrZero = 2
    """Pseudo traces a person: the paper's n_p. 0 makes none."""
    people_share: PositiveShare = 1.0
    """Share of the people, sampled at random, whose traces the mobility model is
    fitted on."""
    domains: DomainSettings = field(default_factory=DomainSettings)
    """The epidemic clustering; ``plausible`` and ``recurring`` read it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domains.least_regions <= self.pseudo_copies:
            raise SettingsError(
                f"domains.least_regions={self.domains.least_regions} must be greater "
                f"than pseudo_copies={self.pseudo_copies}: the true place and each "
                "copy need a region of their own"
            )

    @property
    def reads_cases(self) -> bool:
        """Whether pseudo places depend on where cases were reported."""
        return self.method in {"plausible", "recurring"}


@dataclass(frozen=True, eq=False)
class PseudoTraces:
    """True traces and the pseudo traces beside them.

    ``pseudo`` (copies, slots, people) int32 lies slot by slot like
    ``Traces.by_slot`` and is made read-only. In one slot the true region and
    all pseudo regions of a person differ, so nobody claims a place twice. -1
    stands where the true region was not observed, and where no region was left
    to be claimed (``missing``): the copy sends nothing then.
    """

    true: Traces
    pseudo: RegionIds

    def __post_init__(self) -> None:
        array, true = self.pseudo, self.true.by_slot
        if array.ndim != 3 or array.dtype != np.int32:
            raise DataError(
                f"pseudo is {array.dtype} of {array.ndim} axes, expected int32 of 3"
            )
        if array.shape[1:] != true.shape:
            raise DataError(
                f"pseudo has shape {array.shape}, expected (copies, slots, people) "
                f"with slots, people = {true.shape}"
            )
        for slot in range(len(true)):
            _require_distinct(array[:, slot], true[slot], len(self.true.regions), slot)
        array.setflags(write=False)

    @property
    def copies(self) -> int:
        """Pseudo traces a person."""
        return len(self.pseudo)

    @cached_property
    def missing(self) -> int:
        """How many (copy, slot, person) lack a pseudo region though the true is known.

        Not 0 only where a domain has no region left: in a city of fewer regions
        than a person needs.
        """
        made = int(np.count_nonzero(self.pseudo != UNKNOWN))
        seen = int(np.count_nonzero(self.true.by_slot != UNKNOWN))
        return self.copies * seen - made

    def copy(self, number: int) -> Traces:
        """One pseudo trace of everybody as ``Traces``, on the same memory."""
        if not 0 <= number < self.copies:
            raise DataError(f"copy {number} must lie between 0 and {self.copies - 1}")
        true = self.true
        return Traces(self.pseudo[number], true.clock, true.regions, true.names)


def _require_distinct(
    pseudo: RegionIds, true: RegionIds, regions: int, slot: int
) -> None:
    """Refuse the claims of one slot, (copies, people), that break the promise."""
    known = true != UNKNOWN
    for number, claimed in enumerate(pseudo):
        made = claimed != UNKNOWN
        if (made & ~known).any():
            raise DataError(f"copy {number} claims a place in slot {slot}: none is due")
        if not ((claimed >= UNKNOWN) & (claimed < regions)).all():
            raise DataError(f"region ids of copy {number} must be -1 to {regions - 1}")
        if (made & (claimed == true)).any():
            raise DataError(f"copy {number} claims a true place in slot {slot}")
        for earlier in pseudo[:number]:
            if (made & (claimed == earlier)).any():
                raise DataError(f"two copies claim one place in slot {slot}")
