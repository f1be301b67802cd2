"""The places that people claim, as a server sees them: true among pseudo ones."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import same_length, whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.types import UNKNOWN, Counts, Floats, RegionIds

_PEOPLE_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Candidates:
    """For each person and window the regions claimed, one of which may be true.

    Rows are (person, window), person by person; row i holds the claims from
    ``start[i]`` to ``start[i + 1]``, in ascending order of region, so that the
    position of a claim says nothing. A person without observation in a window
    has an empty row there. Every array about claims (evidence, probabilities,
    guesses) lies in this order.

    With windows of several slots a claim is a region claimed at some slot of
    the window, and several claims of a row may be true. Attacks then name one
    region a window, and are right if the person was there at any of its slots.
    """

    people: int
    regions: int
    clock: Clock
    window_slots: int
    start: NDArray[np.int64]
    """(people * windows + 1,)"""
    region: RegionIds
    """(claims,)"""

    def __post_init__(self) -> None:
        _require_windows(self.clock, self.window_slots)
        whole(1, people=self.people, regions=self.regions)
        start, region = self.start, self.region
        if start.dtype != np.int64 or start.shape != (self.people * self.windows + 1,):
            raise DataError(
                f"start is {start.dtype} of shape {start.shape}, expected int64 of "
                f"shape ({self.people * self.windows + 1},)"
            )
        if region.dtype != np.int32 or region.ndim != 1:
            raise DataError(
                f"region is {region.dtype} of {region.ndim} axes, expected int32 of 1"
            )
        if start[0] != 0 or start[-1] != len(region) or (np.diff(start) < 0).any():
            raise DataError(f"start must rise from 0 to the {len(region)} claims")
        if len(region) and (region.min() < 0 or region.max() >= self.regions):
            raise DataError(
                f"regions run from {region.min()} to {region.max()}, "
                f"expected 0 to {self.regions - 1}"
            )
        falls = np.flatnonzero(np.diff(region) <= 0) + 1
        if not np.isin(falls, start).all():
            raise DataError("the claims of a row must be different and in order")
        start.setflags(write=False)
        region.setflags(write=False)

    @classmethod
    def of_claims(
        cls,
        person: NDArray[np.integer[Any]],
        key: NDArray[np.integer[Any]],
        shape: tuple[int, int],
        clock: Clock,
        window_slots: int = 1,
    ) -> "Candidates":
        """From flat claims in any order: who, and the number of the place.

        ``key`` is window * regions + region, as in ``Incidence.edge_key``;
        ``shape`` is (people, regions). A claim made twice is refused. ``where``
        tells where each flat claim went, for evidence that lies beside them.
        """
        _require_windows(clock, window_slots)
        same_length(person=person, key=key)
        people, regions = shape
        places = clock.slots // window_slots * regions
        _require_range("person", person, people)
        _require_range("key", key, places)
        flat = np.sort(person.astype(np.int64) * places + key)
        if len(flat) and (np.diff(flat) == 0).any():
            raise DataError("a person claims a place twice")
        row = np.arange(people * (places // regions) + 1, dtype=np.int64)
        start = np.searchsorted(flat, row * regions)
        return cls(
            people,
            regions,
            clock,
            window_slots,
            start.astype(np.int64),
            (flat % regions).astype(np.int32),
        )

    @classmethod
    def of_pseudo(cls, made: PseudoTraces, window_slots: int = 1) -> "Candidates":
        """What the devices of everybody would send: true and pseudo places, sorted.

        For trying an attack without running the federation.
        """
        true = made.true
        _require_windows(true.clock, window_slots)
        sizes, regions = [], []
        for first in range(0, true.people, _PEOPLE_AT_ONCE):
            part = slice(first, first + _PEOPLE_AT_ONCE)
            claims = np.concatenate(
                [true.by_slot[None, :, part], made.pseudo[..., part]]
            )
            by_person = np.moveaxis(claims, 0, -1).swapaxes(0, 1)
            width = window_slots * len(claims)
            rows = np.sort(by_person.reshape(-1, width), axis=1)
            new = rows != UNKNOWN
            new[:, 1:] &= rows[:, 1:] != rows[:, :-1]
            sizes.append(new.sum(axis=1))
            regions.append(rows[new])
        start = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
        return cls(
            true.people,
            len(true.regions),
            true.clock,
            window_slots,
            start,
            np.concatenate(regions).astype(np.int32, copy=False),
        )

    @property
    def windows(self) -> int:
        """Windows in all."""
        return self.clock.slots // self.window_slots

    @property
    def windows_per_day(self) -> int:
        """Windows of a day; raises ``SettingsError`` where days cut through one."""
        if self.clock.slots_per_day % self.window_slots:
            raise SettingsError(
                f"window_slots={self.window_slots} must divide the day of "
                f"{self.clock.slots_per_day} slots to compare days"
            )
        return self.clock.slots_per_day // self.window_slots

    @property
    def claims(self) -> int:
        """Claims in all."""
        return len(self.region)

    @cached_property
    def size(self) -> Counts:
        """Claims of each person in each window: (people, windows)."""
        return np.diff(self.start).reshape(self.people, self.windows)

    @property
    def key(self) -> NDArray[np.int64]:
        """Number of each claim's place, window * regions + region: (claims,)."""
        window = np.tile(np.arange(self.windows), self.people)
        return np.asarray(
            np.repeat(window, np.diff(self.start)) * self.regions + self.region
        )

    def of_people(self, count: int) -> "Candidates":
        """The claims of the first ``count`` people."""
        start = self.start[: count * self.windows + 1].copy()
        return replace(
            self, people=count, start=start, region=self.region[: start[-1]].copy()
        )

    def where(
        self, person: NDArray[np.integer[Any]], key: NDArray[np.integer[Any]]
    ) -> NDArray[np.int64]:
        """The position here of each flat claim; raises ``DataError`` if it is not."""
        same_length(person=person, key=key)
        places = self.windows * self.regions
        _require_range("person", person, self.people)
        _require_range("key", key, places)
        row = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        flat = row * self.regions + self.region
        wanted = person.astype(np.int64) * places + key
        found = np.searchsorted(flat, wanted)
        missing = found == len(flat)
        missing[~missing] = flat[found[~missing]] != wanted[~missing]
        if missing.any():
            raise DataError(f"{np.count_nonzero(missing)} claims are not among these")
        return found

    def about_claims(self, name: str, values: NDArray[Any]) -> Floats:
        """``values`` as float64 for kernels; ``DataError`` unless one a claim."""
        if values.shape != self.region.shape:
            raise DataError(
                f"{name} has shape {values.shape}, expected ({self.claims},): "
                "one value a claim"
            )
        made = np.ascontiguousarray(values, dtype=np.float64).view(np.ndarray)
        # Kernels are compiled for read-only arrays only.
        made.setflags(write=False)
        return made


def _require_windows(clock: Clock, window_slots: int) -> None:
    whole(1, window_slots=window_slots)
    if clock.slots % window_slots:
        raise SettingsError(
            f"window_slots={window_slots} must divide the trace of {clock.slots} slots"
        )


def _require_range(name: str, values: NDArray[Any], count: int) -> None:
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"{name} must be a list of whole numbers")
    if len(values) and (values.min() < 0 or values.max() >= count):
        raise DataError(
            f"{name} runs from {values.min()} to {values.max()}, "
            f"expected 0 to {count - 1}"
        )
