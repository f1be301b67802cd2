"""People and days that a run has not seen, brought into the run's own regions."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.results import read_day_tests
from epifalcon.errors import DataError
from epifalcon.experiments.simulation import REPORTED, city_folder
from epifalcon.mobility.ingest.visits import read_day_visits
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_model import regions_sha256
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, Mask

_KNOWN = "known"
# FNV-1a takes in the regions one by one; splitmix64's end spreads the bits.
_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3
_SPREAD = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True, eq=False)
class Newcomers:
    """Where new people were, in a run's regions, and what tests told of them."""

    traces: Traces
    known: Known

    def __post_init__(self) -> None:
        self.known.require_people_of(self.traces)

    @classmethod
    def of(cls, traces: Traces, known: Known | None, like: Traces) -> "Newcomers":
        """People in the regions and slots of ``like``, the traces of a run.

        Regions must be the same ones in the same order, or have names by which
        each is found among those of ``like``. Nobody may have been elsewhere.
        """
        if traces.clock.slot_minutes != like.clock.slot_minutes:
            raise DataError(
                f"slots of {traces.clock.slot_hours:g} hours, but the run learnt from "
                f"slots of {like.clock.slot_hours:g}: import with --slot-hours "
                f"{like.clock.slot_hours:g}"
            )
        if known is None:
            nobody = np.zeros(0, np.int32)
            known = Known(traces.people, nobody, np.zeros(0, np.bool_), nobody)
        return cls(_in_regions(traces, like.regions), known)

    @classmethod
    def read(cls, city: Path, known: Path | None, like: Traces) -> "Newcomers":
        """The people of a folder made by city, import or run, and their tests.

        Of a run's folder the reported traces are taken, which is what a method
        sees. ``known`` is a folder of tests, or a folder with one in it.
        """
        reported = city / REPORTED
        place = reported if reported.is_dir() else city_folder(city)
        tests = None
        if known is not None:
            inner = known / _KNOWN
            tests = Known.load(inner if inner.is_dir() else known)
        try:
            return cls.of(Traces.load(place), tests, like)
        except DataError as error:
            where = str(city) if known is None else f"{city} with tests of {known}"
            raise DataError(f"{where}: {error}") from None

    @classmethod
    def from_files(cls, visits: Path, tests: Path | None, like: Traces) -> "Newcomers":
        """People of files, (person, day, hour, region) and (person, day, result).

        On the days and in the regions of ``like``, the traces of a run.
        """
        traces = read_day_visits(visits, like.clock, like.regions)
        if tests is None:
            return cls.of(traces, None, like)
        told = read_day_tests(tests, like.clock)
        place = {name: at for at, name in enumerate(traces.names or ())}
        for name in told.name:
            if name not in place:
                raise DataError(f"{tests}: person {name!r} has no visit in {visits}")
        person = np.array([place[name] for name in told.name], np.int32)
        slot = told.slot.astype(np.int32)
        known = Known.from_tests(traces.people, person, told.positive, slot, traces.who)
        return cls(traces, known)

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """(people,) the fold of each tested person, -1 for everybody else.

        Drawn by the person's own trace: neither the order of people, nor who
        else is among them, nor any test moves a person to another fold.
        """
        start = Streams(seed).seed_for("folds of new people")
        found = np.full(self.traces.people, start ^ _OFFSET, np.uint64)
        for regions in self.traces.by_slot:
            found ^= (regions + 2).astype(np.uint64)
            found *= np.uint64(_PRIME)
        for shift, factor in _SPREAD:
            found ^= found >> np.uint64(shift)
            found *= np.uint64(factor)
        fold = (found % np.uint64(count)).astype(np.int64)
        return np.where(self.known.tested, fold, -1)


def _in_regions(traces: Traces, regions: Regions) -> Traces:
    """The same places under the numbers that they have among ``regions``."""
    if regions_sha256(traces.regions) == regions_sha256(regions):
        return _renamed(traces, traces.by_slot, regions)
    number = _found(traces.regions, regions)
    visited = np.zeros(len(number), np.bool_)
    for row in traces.by_slot:
        visited[row[row != UNKNOWN]] = True
    if (strange := visited & (number == UNKNOWN)).any():
        raise DataError(_strange(traces.regions, strange, regions))
    # -1, not observed, finds the entry at the end.
    by_slot = np.append(number, np.int32(UNKNOWN))[traces.by_slot]
    return _renamed(traces, by_slot, regions)


def _renamed(traces: Traces, by_slot: NDArray[np.int32], regions: Regions) -> Traces:
    return Traces(by_slot, traces.clock, regions, traces.names)


def _found(own: Regions, among: Regions) -> NDArray[np.int32]:
    """The number of each region among others, by name and place; -1 for none."""
    if own.names is None or among.names is None:
        return np.full(len(own), UNKNOWN, np.int32)
    place = {name: number for number, name in enumerate(among.names)}
    number = np.array([place.get(name, UNKNOWN) for name in own.names], np.int32)
    here, there = own.lonlat, among.lonlat
    if here is None or there is None:
        here, there = own.centre_km, among.centre_km
    same = np.isclose(here, there[number], rtol=0, atol=1e-9, equal_nan=True)
    return np.where(same.all(axis=1), number, np.int32(UNKNOWN))


def _strange(own: Regions, strange: Mask, among: Regions) -> str:
    first = own.name(int(np.flatnonzero(strange)[0]))
    return (
        f"people were in {strange.sum():,} of its {len(own):,} regions, such as "
        f"{first!r}, which are none of the run's {len(among):,} regions or lie "
        "elsewhere: a model of one city cannot tell of another"
    )
