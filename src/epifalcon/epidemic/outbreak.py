"""Record of an outbreak: infection history of each person, with summary statistics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import vectors
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.sellke import HOMOGENEOUS, Variation
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import Counts, Mask, PersonIds, RegionIds, Slots

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
    """Result of one outbreak simulation; every array is (people,), read-only.

    Slots are those in which an event occurs, -1 if it did not occur within the
    clock: a person is infected in ``infection_slot``, infects others from
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
    """Factor on every hazard; the setting "r0" is replaced by its value."""
    variation: Variation = HOMOGENEOUS
    """Variation between regions and people; used by the oracle, never by methods."""

    def __post_init__(self) -> None:
        arrays = self._arrays()
        types = {name: np.bool_ if name == "seeds" else np.int32 for name in arrays}
        vectors(types, **arrays)
        if not self.people:
            raise DataError("an outbreak needs at least one person")
        for name in _ARRAYS[:5]:
            end = self.clock.slots if name.endswith("_slot") else self.people
            low, high = int(arrays[name].min()), int(arrays[name].max())
            if low < -1 or high >= end:
                raise DataError(
                    f"{name} has values from {low} to {high}, expected -1 to {end - 1}"
                )
        self.variation.require_fit(self.settings, self.people)

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.infection_slot)

    @property
    def infected_share(self) -> float:
        """Share of people infected by the end, seeds included."""
        return float(self.ever_infected().mean())

    def ever_infected(self) -> Mask:
        """Return a mask of people infected by the end, seeds included: (people,)."""
        return self.infection_slot >= 0

    def state_at(self, slot: int) -> NDArray[np.int8]:
        """Return each person's state at the end of ``slot``, as index of ``STATES``."""
        slots = self.clock.slots
        if not -slots <= slot < slots:
            raise SettingsError(f"slot={slot} must lie between 0 and {slots - 1}")
        slot %= slots
        newly = ASYMPTOMATIC if self.settings.model == "sir" else EXPOSED
        state = np.zeros(self.people, np.int8)
        for began, number in (
            (self.infection_slot, newly),
            (self.infectious_slot, ASYMPTOMATIC),
            (self.onset_slot, SYMPTOMATIC),
            (self.recovery_slot, RECOVERED),
        ):
            state[(began >= 0) & (began <= slot)] = number
        return state

    def counts_by_day(self) -> Counts:
        """Count the people in each state at the end of each day: (days, 5)."""
        per_day, count = self.clock.slots_per_day, len(STATES)
        ends = range(per_day - 1, self.clock.slots, per_day)
        states = (self.state_at(slot) for slot in ends)
        return np.stack([np.bincount(state, minlength=count) for state in states])

    def new_cases_by_day(self) -> Counts:
        """Count the people infected on each day, without seeds: (days,)."""
        cases = self.ever_infected() & ~self.seeds
        days = self.infection_slot[cases] // self.clock.slots_per_day
        return np.bincount(days, minlength=self.clock.days)

    def secondary_cases(self) -> Counts:
        """Count the people whom each person infected by the end: (people,)."""
        sources = self.source_person[self.source_person >= 0]
        return np.bincount(sources, minlength=self.people)

    def infectious_by_region_and_day(self, traces: Traces) -> Counts:
        """Count infectious person-slots by region and day: (regions, days)."""
        counts = np.zeros((len(traces.regions), self.clock.days), np.int64)
        case = np.flatnonzero(self.infectious_slot >= 0)
        begins, ends = self.infectious_slot[case], self.recovery_slot[case]
        ends = np.where(ends < 0, self.clock.slots, ends)
        for slot, here in enumerate(traces.by_slot):
            region = here[case[(begins <= slot) & (slot < ends)]]
            day = self.clock.day_of_slot(slot)
            counts[:, day] += np.bincount(region[region >= 0], minlength=len(counts))
        return counts

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
        """Read a record written by ``save``; older records have no variation."""
        stored = store.read(folder, _KIND)
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

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in _ARRAYS}
