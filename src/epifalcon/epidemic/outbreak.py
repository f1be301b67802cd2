"""Outbreak: what happened to each person, and what can be read off it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon._numba import njit
from epifalcon.checks import same_length, vectors
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.variation import EVEN, Variation
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import Counts, Floats, Mask, PersonIds, RegionIds, Slots

_KIND = "outbreak"
_ARRAYS = (
    "infection_slot",
    "infectious_slot",
    "onset_slot",
    "recovery_slot",
    "source_person",
    "source_region",
    "seeds",
)

STATES: Final = (
    "susceptible",
    "exposed",
    "infectious without symptoms",
    "infectious with symptoms",
    "recovered",
)
"""Names of the states, by their number."""

SUSCEPTIBLE, EXPOSED, ASYMPTOMATIC, SYMPTOMATIC, RECOVERED = range(5)


@dataclass(frozen=True, eq=False)
class Outbreak:
    """One run of a disease through a city; every array is (people,), read-only.

    Slots are those in which something begins, -1 where it did not happen within
    the clock: a person is infected in ``infection_slot``, infects others from
    ``infectious_slot`` until before ``recovery_slot``, and shows symptoms from
    ``onset_slot``. Seeds have infection slot 0 and no source.
    """

    infection_slot: Slots
    infectious_slot: Slots
    onset_slot: Slots
    recovery_slot: Slots
    source_person: PersonIds
    source_region: RegionIds
    seeds: Mask
    clock: Clock
    pathogen: Pathogen
    settings: OutbreakSettings
    kappa: float
    """The factor on every hazard that was used, as a number."""
    variation: Variation = EVEN
    """By how much regions and people differed: for ceilings, never for methods."""

    def __post_init__(self) -> None:
        arrays = self._arrays()
        types = {name: np.bool_ if name == "seeds" else np.int32 for name in arrays}
        vectors(types, **arrays)
        self._check_values()
        self.variation.require_asked_for(self.settings)
        # Of the regions the record knows no number.
        regions = len(self.variation.factors(0))
        self.variation.require_fit(self.people, regions)

    def _check_values(self) -> None:
        if not self.people:
            raise DataError("an outbreak needs people")
        for name in _ARRAYS[:5]:
            array = getattr(self, name)
            end = self.clock.slots if name.endswith("_slot") else self.people
            low, high = int(array.min()), int(array.max())
            if low < -1 or high >= end:
                raise DataError(
                    f"{name} runs from {low} to {high}, expected -1 to {end - 1}"
                )

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.infection_slot)

    @property
    def infected_share(self) -> float:
        """Share of people infected by the end, seeds included."""
        return float(self.ever_infected().mean())

    def ever_infected(self, by_slot: int | None = None) -> Mask:
        """Who was infected in ``by_slot`` or before (default: by the end)."""
        last = self.clock.slots - 1 if by_slot is None else self._slot(by_slot)
        return _happened(self.infection_slot, last)

    def state_at(self, slot: int) -> NDArray[np.int8]:
        """State of each person at the end of ``slot``: (people,), see ``STATES``.

        Infections of the slot are included. The SIR model has no exposed
        state: a person is infectious as soon as the slot of infection is over.
        """
        slot = self._slot(slot)
        newly = ASYMPTOMATIC if self.settings.model == "sir" else EXPOSED
        state = np.zeros(self.people, np.int8)
        state[_happened(self.infection_slot, slot)] = newly
        state[_happened(self.infectious_slot, slot)] = ASYMPTOMATIC
        state[_happened(self.onset_slot, slot)] = SYMPTOMATIC
        state[_happened(self.recovery_slot, slot)] = RECOVERED
        return state

    def state_at_end_of_day(self, day: int) -> NDArray[np.int8]:
        """State of each person when ``day`` ends: (people,); a stage cut."""
        return self.state_at(self.clock.slots_of_day(day).stop - 1)

    def counts_by_day(self) -> Counts:
        """People in each state at the end of each day: (days, 5)."""
        return np.stack(
            [
                np.bincount(self.state_at_end_of_day(day), minlength=len(STATES))
                for day in range(self.clock.days)
            ]
        )

    def new_cases_by_day(self) -> Counts:
        """People infected on each day, seeds left out: (days,)."""
        slots = self.infection_slot[self._spread()]
        days = slots // self.clock.slots_per_day
        return np.bincount(days, minlength=self.clock.days)

    def secondary_cases(self) -> Counts:
        """How many people each person infected by the end: (people,).

        Cut off at the end of the clock: who is still infectious then would
        infect more. ``followed`` tells whose count is final.
        """
        sources = self.source_person[self.source_person >= 0]
        return np.bincount(sources, minlength=self.people)

    def followed(self) -> Mask:
        """Who was infected and has recovered by the end: count is final."""
        return self.recovery_slot >= 0

    def infections_by_region(self, regions: int) -> Counts:
        """How many people were infected in each region: (regions,), no seeds."""
        return np.bincount(self.source_region[self._spread()], minlength=regions)

    def attack_rate_by_region(self, home: RegionIds, regions: int) -> Floats:
        """Share infected of the people who belong to each region: (regions,).

        ``home`` (people,) is any region per person, -1 for none. NaN where
        nobody belongs.
        """
        same_length(home=home, infection_slot=self.infection_slot)
        known = home >= 0
        everybody = np.bincount(home[known], minlength=regions)
        infected = np.bincount(home[known & self.ever_infected()], minlength=regions)
        share = np.full(regions, np.nan)
        np.divide(infected, everybody, out=share, where=everybody > 0)
        return share

    def infectious_by_region_and_day(self, traces: Traces) -> Counts:
        """Person-slots spent infectious in each region on each day: (regions, days).

        Divide by the slots of a day for the mean number of infectious people.
        """
        if traces.people != self.people or traces.slots != self.clock.slots:
            raise DataError(
                f"traces of {traces.people} people and {traces.slots} slots, the "
                f"outbreak has {self.people} and {self.clock.slots}"
            )
        ends = np.where(self.recovery_slot < 0, self.clock.slots, self.recovery_slot)
        return _count_infectious(
            traces.by_slot,
            (len(traces.regions), self.clock.days),
            self.infectious_slot,
            ends,
        )

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        meta = {
            "clock": as_plain(self.clock),
            "pathogen": as_plain(self.pathogen),
            "settings": as_plain(self.settings),
            "kappa": self.kappa,
        }
        arrays = {**self._arrays(), **self.variation.arrays()}
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Outbreak":
        """Read what ``save`` wrote; older records had no variation."""
        stored = store.read(folder, _KIND)
        try:
            arrays: dict[str, Any] = {name: stored.arrays[name] for name in _ARRAYS}
            return cls(
                **arrays,
                clock=build(Clock, stored.meta["clock"], "clock"),
                pathogen=build(Pathogen, stored.meta["pathogen"], "pathogen"),
                settings=build(OutbreakSettings, stored.meta["settings"], "settings"),
                kappa=float(stored.meta["kappa"]),
                variation=Variation(
                    stored.arrays.get("regional_factor"),
                    stored.arrays.get("infectiousness"),
                ),
            )
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in _ARRAYS}

    def _spread(self) -> Mask:
        return (self.infection_slot >= 0) & ~self.seeds

    def _slot(self, slot: int) -> int:
        slots = self.clock.slots
        if not -slots <= slot < slots:
            raise SettingsError(f"slot={slot} must lie between 0 and {slots - 1}")
        return slot % slots


def _happened(began: Slots, slot: int) -> Mask:
    return (began >= 0) & (began <= slot)


@njit
def _count_infectious(
    by_slot: RegionIds, shape: tuple[int, int], begins: Slots, ends: Slots
) -> Counts:
    counts = np.zeros(shape, np.int64)
    slots = by_slot.shape[0]
    cases = np.flatnonzero(begins >= 0)
    for slot in range(slots):
        day = slot * shape[1] // slots
        for person in cases:
            region = by_slot[slot, person]
            if begins[person] <= slot < ends[person] and region >= 0:
                counts[region, day] += 1
    return counts
