"""What a run of the field leaves behind: what places told at last, and how to read it.

From it anybody can be told the own risk at home, without any exchange: people of the
run with the messages that they hold at home, newcomers with their trace alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import CorruptFileError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import Rates
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City, Places, told_by
from epifalcon.models.field.tables import Singles, Told
from epifalcon.models.field.transmission import Factor
from epifalcon.settings import as_plain, build
from epifalcon.types import Floats

KIND = "field"
_CELLS = ("crowd", "infectious", "evidence", "present")


@dataclass(frozen=True, eq=False)
class PublishedField:
    """The sums in force at the end, and what else everybody may know."""

    city: City
    places: Places
    factor: Factor
    """By which transmission differs from the pathogen's."""
    rates: Rates
    errors: TestErrors

    def told(self) -> Told:
        """What the places tell people of the run, whose own part is in the sums."""
        return told_by(self.city, self.places, self.factor)

    def told_to_newcomers(self) -> Told:
        """What the places tell somebody who was not counted in any sum.

        There is one more where the newcomer is, who makes the place fuller and
        finds no message of its own. Behind noise nobody can tell, and a newcomer
        reads like anybody else.
        """
        if not self.city.own_in_sums:
            return self.told()
        city = replace(self.city, present=self.city.present + 1, own_in_sums=False)
        places = replace(self.places, crowd=self.places.crowd + 1)
        return told_by(city, places, self.factor)

    def people(
        self, traces: Traces, known: Known, messages: "Messages | None" = None
    ) -> Cohort:
        """People at home who know their tests, and the messages that they sent."""
        cohort = Cohort.of(traces, known, self.rates, self.errors)
        if messages is None:
            return cohort
        # A sweep renews them in place: what was read from disk is copied.
        home = cohort.home._replace(
            infectious=np.require(messages.infectious, requirements="W"),
            evidence=np.require(messages.evidence, requirements="W"),
        )
        return replace(cohort, home=home)

    def in_order(self, regions: NDArray[np.int64]) -> "PublishedField":
        """The same with the region at place k under the number ``regions[k]``."""

        def back(told: Floats) -> Floats:
            found = told.copy()
            found[:, 1 + regions] = told[:, 1:]
            return found

        places = self.places
        return replace(
            self,
            city=replace(self.city, present=back(self.city.present)),
            places=Places(
                back(places.crowd), back(places.infectious), back(places.evidence)
            ),
            factor=self.factor.each(back),
        )

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``, cells where nobody was left out."""
        city, places = self.city, self.places
        tables = (places.crowd, places.infectious, places.evidence, city.present)
        cells = np.flatnonzero(np.any([table.ravel() != 0 for table in tables], axis=0))
        arrays: dict[str, NDArray[Any]] = {
            name: table.ravel()[cells]
            for name, table in zip(_CELLS, tables, strict=True)
        }
        arrays |= {"cell": cells, "factor": np.stack(self.factor)}
        meta = {
            "clock": as_plain(city.clock),
            "force": city.force,
            "chance": city.chance,
            "over_susceptible": city.over_susceptible,
            "own_in_sums": city.own_in_sums,
            "rates": self.rates._asdict(),
            "errors": as_plain(self.errors),
        }
        store.write(folder, KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "PublishedField":
        """Read what ``save`` wrote."""
        kept = store.read(folder, KIND)
        meta, arrays = kept.meta, kept.arrays
        try:
            clock = build(Clock, meta["clock"], "clock")
            factor = Factor(*np.array(arrays["factor"]))
            edges = factor.mean.shape[1]
            crowd, infectious, evidence, present = (
                _filled(arrays["cell"], arrays[name], (clock.slots, edges))
                for name in _CELLS
            )
            city = City(
                clock,
                meta["force"],
                meta["chance"],
                present,
                meta["over_susceptible"],
                meta["own_in_sums"],
            )
            places = Places(crowd, infectious, evidence)
            errors = build(TestErrors, meta["errors"], "errors")
            return cls(city, places, factor, Rates(**meta["rates"]), errors)
        except (KeyError, TypeError, IndexError) as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None


def _filled(cell: NDArray[np.int64], value: Floats, shape: tuple[int, int]) -> Floats:
    table = np.zeros(shape)
    table.ravel()[cell] = value
    return table


@dataclass(frozen=True, eq=False)
class Messages:
    """What people hold at home of their own last messages, (slots, people) each."""

    infectious: Singles
    evidence: Singles

    def of(self, person: int) -> "Messages":
        """Those of one person, in memory."""
        own = slice(person, person + 1)
        return Messages(self.infectious[:, own].copy(), self.evidence[:, own].copy())

    def in_order(self, people: NDArray[np.int64]) -> "Messages":
        """The same with the person at place k under the number ``people[k]``."""

        def back(held: Singles) -> Singles:
            found = np.empty_like(held)
            found[:, people] = held
            return found

        return Messages(back(self.infectious), back(self.evidence))

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``."""
        arrays = {"infectious": self.infectious, "evidence": self.evidence}
        store.write(folder, "messages", arrays, meta={}, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Messages":
        """Read what ``save`` wrote; the numbers stay on disk, memory-mapped."""
        arrays = store.read(folder, "messages").arrays
        try:
            return cls(arrays["infectious"], arrays["evidence"])
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None
