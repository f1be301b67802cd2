"""Traces: the region of every person at every slot."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import typed
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.settings import as_plain, build
from epifalcon.store import pack_strings, unpack_strings
from epifalcon.types import UNKNOWN, Counts, RegionIds

_KIND = "city"


@dataclass(frozen=True, eq=False)
class Traces:
    """Region of every person at every slot.

    ``by_slot`` (slots, people) int32 holds region ids, -1 where a person was not
    observed; it is made read-only. ``by_person`` (people, slots) is a view of it.
    """

    by_slot: RegionIds
    clock: Clock
    regions: Regions
    names: Sequence[str] | None = None
    """Names of the people if the data were imported."""

    def __post_init__(self) -> None:
        array = self.by_slot
        typed(np.int32, 2, by_slot=array)
        if array.shape[0] != self.clock.slots:
            raise DataError(
                f"traces have {array.shape[0]} slots, the clock has {self.clock.slots}"
            )
        if array.shape[1] == 0:
            raise DataError("traces have no people, expected at least one")
        low, high = int(array.min()), int(array.max())
        if low < UNKNOWN or high >= len(self.regions):
            raise DataError(
                f"region ids are from {low} to {high}, "
                f"expected -1 to {len(self.regions) - 1}"
            )
        if self.names is not None and len(self.names) != array.shape[1]:
            raise DataError(f"{len(self.names)} names for {array.shape[1]} people")
        array.setflags(write=False)

    @property
    def people(self) -> int:
        """Number of people."""
        return int(self.by_slot.shape[1])

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.by_slot.shape[0])

    @property
    def by_person(self) -> RegionIds:
        """Region ids as a view of shape (people, slots)."""
        return self.by_slot.T

    @cached_property
    def observed_days(self) -> int:
        """Number of days up to the last one with an observation, at least 1.

        Tests after that day extend the clock.
        """
        slots = range(self.slots - 1, -1, -1)
        last = next((at for at in slots if (self.by_slot[at] != UNKNOWN).any()), 0)
        return self.clock.day_of_slot(last) + 1

    @cached_property
    def observed_share(self) -> float:
        """Share of (person, slot) pairs of the observed days with a known region."""
        seen = sum(int(np.count_nonzero(row != UNKNOWN)) for row in self.by_slot)
        pairs = self.observed_days * self.clock.slots_per_day * self.people
        return seen / pairs

    def with_days(self, days: int) -> "Traces":
        """Return the traces of the first ``days`` days, later ones not observed."""
        clock = replace(self.clock, days=days)
        more = max(0, clock.slots - self.slots)
        by_slot = self.by_slot[: clock.slots]
        if more:
            by_slot = np.pad(by_slot, ((0, more), (0, 0)), constant_values=UNKNOWN)
        return Traces(by_slot, clock, self.regions, self.names)

    @cached_property
    def names_sha256(self) -> str | None:
        """SHA-256 of the people's names in their order; None without names."""
        if self.names is None:
            return None
        packed = pack_strings("name", self.names)
        digest = hashlib.sha256(packed["name_ends"].tobytes())
        digest.update(packed["name_text"].tobytes())
        return digest.hexdigest()

    def occupancy(self, slot: int) -> Counts:
        """Count the people in each region at ``slot``: (regions,)."""
        here = self.by_slot[slot]
        return np.bincount(here[here != UNKNOWN], minlength=len(self.regions))

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        regions = self.regions
        arrays: dict[str, NDArray[Any]] = {"by_slot": self.by_slot, **regions.pack()}
        if self.names is not None:
            arrays |= pack_strings("person_names", self.names)
        meta = {
            "clock": as_plain(self.clock),
            "kind": regions.kind,
            "people": self.people,
            "regions": len(regions),
        }
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Traces":
        """Read a record written by ``save``; region ids are memory-mapped."""
        stored = store.read(folder, _KIND)
        arrays = stored.arrays
        names = None
        if "person_names_text" in arrays:
            names = unpack_strings("person_names", arrays)
        clock = build(Clock, stored.meta["clock"], "clock")
        regions = Regions.unpack(stored.meta["kind"], arrays)
        return cls(arrays["by_slot"], clock, regions, names)
