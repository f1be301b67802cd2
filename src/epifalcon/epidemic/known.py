"""Known: all that a method may see of who is infected."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import at_least, same_length, vectors
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Mask, PersonIds, Slots

_KIND = "known"
UNTESTED = -1


@dataclass(frozen=True, eq=False)
class Known:
    """Test results, one entry per test, in order of person, then slot.

    ``person``, ``positive`` and ``slot`` are (tests,) and read-only. Nothing
    here comes from anybody who was not tested.
    """

    people: int
    """Number of people in the city, tested or not."""
    person: PersonIds
    positive: Mask
    slot: Slots
    """Slot in which the test was taken."""
    who: str | None = None
    """``Traces.who`` of the people, where they have names."""

    def __post_init__(self) -> None:
        at_least(1, people=self.people)
        vectors(
            {"person": np.int32, "positive": np.bool_, "slot": np.int32},
            person=self.person,
            positive=self.positive,
            slot=self.slot,
        )
        self._check_values()

    def _check_values(self) -> None:
        if not len(self.person):
            return
        low, high = int(self.person.min()), int(self.person.max())
        if low < 0 or high >= self.people:
            raise DataError(
                f"tested people run from {low} to {high}, "
                f"expected 0 to {self.people - 1}"
            )
        if self.slot.min() < 0:
            raise DataError(f"a test in slot {self.slot.min()}, expected 0 or later")
        step, wait = np.diff(self.person), np.diff(self.slot)
        if ((step < 0) | ((step == 0) & (wait < 0))).any():
            raise DataError("tests must stand in order of person, then slot")

    @classmethod
    def from_tests(
        cls,
        people: int,
        person: PersonIds,
        positive: Mask,
        slot: Slots,
        who: str | None = None,
    ) -> "Known":
        """The record of tests that come in any order."""
        same_length(person=person, positive=positive, slot=slot)
        order = np.lexsort((positive, slot, person))
        return cls(
            people,
            person[order].astype(np.int32),
            positive[order].astype(np.bool_),
            slot[order].astype(np.int32),
            who,
        )

    def require_people_of(self, traces: Traces) -> None:
        """Raise ``DataError`` unless these can be tests of the people of ``traces``."""
        if self.people != traces.people:
            raise DataError(
                f"tests among {self.people:,} people, but traces of {traces.people:,}"
            )
        if None not in (self.who, traces.who) and self.who != traces.who:
            raise DataError(
                "the tests are of people with other names, or in another order, than "
                "the traces: import visits and tests together"
            )
        last = int(self.slot.max(initial=-1))
        if last >= traces.slots:
            raise DataError(
                f"a test in slot {last}, but the traces end with slot "
                f"{traces.slots - 1}"
            )

    def of_people(self, wanted: Mask) -> "Known":
        """The tests of the people marked in ``wanted`` (people,) alone."""
        kept = wanted[self.person]
        return Known(
            self.people,
            self.person[kept],
            self.positive[kept],
            self.slot[kept],
            self.who,
        )

    def since(self, first_slot: int) -> "Known":
        """The same tests on a clock that begins with ``first_slot``.

        A test from before counts for the first slot: its result is known there.
        """
        slot = np.maximum(self.slot - first_slot, 0).astype(np.int32)
        return Known(self.people, self.person, self.positive, slot, self.who)

    @cached_property
    def status(self) -> NDArray[np.int8]:
        """(people,): 1 any positive test, 0 only negative ones, -1 not tested."""
        status = np.full(self.people, UNTESTED, np.int8)
        status[self.person] = 0
        status[self.person[self.positive]] = 1
        status.setflags(write=False)
        return status

    @property
    def tested(self) -> Mask:
        """Who was tested: (people,)."""
        return np.not_equal(self.status, UNTESTED)

    @cached_property
    def first_positive_slot(self) -> Slots:
        """Slot of each person's first positive test, -1 for none: (people,)."""
        first = np.full(self.people, -1, np.int32)
        # Later assignments win, so the earliest test must come last.
        first[self.person[self.positive][::-1]] = self.slot[self.positive][::-1]
        first.setflags(write=False)
        return first

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        arrays = {"person": self.person, "positive": self.positive, "slot": self.slot}
        meta: dict[str, object] = {"people": self.people}
        if self.who is not None:
            meta["who"] = self.who
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Known":
        """Read what ``save`` wrote."""
        stored = store.read(folder, _KIND)
        try:
            return cls(
                int(stored.meta["people"]),
                stored.arrays["person"],
                stored.arrays["positive"],
                stored.arrays["slot"],
                stored.meta.get("who"),
            )
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None
