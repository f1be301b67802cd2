"""Test results, the only infection data available to methods, and their splits."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import at_least, same_length, vectors
from epifalcon.epidemic.test_kinds import EVER, IGNORABLE, REASONS, TestKind, TestReason
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import Mask, PersonIds, Slots

_KIND = "known"
UNTESTED = -1
NOT_GIVEN = -1
_PER_TEST = ("person", "positive", "slot", "kind", "reason", "onset")


@dataclass(frozen=True, eq=False)
class TestResults:
    """Test results, one entry per test, in order of person, then slot.

    ``person``, ``positive``, ``slot``, ``kind``, ``reason`` and ``onset`` are (tests,)
    and read-only. The record contains nothing about people who were not tested.
    """

    # Not a class of tests: pytest must not collect it.
    __test__ = False

    people: int
    """Number of people in the city, tested or not."""
    person: PersonIds
    positive: Mask
    slot: Slots
    """Slot in which the test was taken."""
    names_sha256: str | None = None
    """Hash of the people's names, see ``Traces.names_sha256``; None without names."""
    kind: NDArray[np.int8] = None  # type: ignore[assignment]
    """Index of each test's kind in ``kinds``; by default all are of the first."""
    kinds: tuple[TestKind, ...] = (EVER,)
    reason: NDArray[np.int8] = None  # type: ignore[assignment]
    """Index in ``REASONS``; -1 where none is given, so that the reason assumed for the
    whole run applies."""
    onset: Slots = None  # type: ignore[assignment]
    """First slot of the first day of symptoms reported with the test; -1 where none is
    given."""

    def __post_init__(self) -> None:
        at_least(1, people=self.people)
        tests = len(self.person)
        defaults = {
            "kind": np.zeros(tests, np.int8),
            "reason": np.full(tests, NOT_GIVEN, np.int8),
            "onset": np.full(tests, NOT_GIVEN, np.int32),
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        vectors(
            {
                "person": np.int32,
                "positive": np.bool_,
                "slot": np.int32,
                "kind": np.int8,
                "reason": np.int8,
                "onset": np.int32,
            },
            person=self.person,
            positive=self.positive,
            slot=self.slot,
            kind=self.kind,
            reason=self.reason,
            onset=self.onset,
        )
        outside = self.person[(self.person < 0) | (self.person >= self.people)]
        if len(outside):
            raise DataError(
                f"tested person {outside[0]} must lie between 0 and {self.people - 1}"
            )
        if (first := self.slot.min(initial=0)) < 0:
            raise DataError(f"a test is in slot {first}, expected 0 or later")
        unknown = self.reason[(self.reason < NOT_GIVEN) | (self.reason >= len(REASONS))]
        if len(unknown):
            raise DataError(
                f"reason {unknown[0]} of a test must lie between {NOT_GIVEN} and "
                f"{len(REASONS) - 1}"
            )
        wrong = (self.onset < NOT_GIVEN) | (self.onset > self.slot)
        if wrong.any():
            raise DataError(
                f"a test in slot {self.slot[wrong][0]} has symptoms from slot "
                f"{self.onset[wrong][0]} on, expected {NOT_GIVEN} (none), or a slot "
                "that is not after the test"
            )
        step, wait = np.diff(self.person), np.diff(self.slot)
        if ((step < 0) | ((step == 0) & (wait < 0))).any():
            raise DataError("tests must be sorted by person, then slot")

    @classmethod
    def from_tests(
        cls,
        people: int,
        person: PersonIds,
        positive: Mask,
        slot: Slots,
        names_sha256: str | None = None,
        kind: NDArray[np.integer[Any]] | None = None,
        kinds: tuple[TestKind, ...] = (EVER,),
        reason: NDArray[np.integer[Any]] | None = None,
        onset: NDArray[np.integer[Any]] | None = None,
    ) -> "TestResults":
        """Create the record from tests in any order."""
        same_length(person=person, positive=positive, slot=slot)
        order = np.lexsort((positive, slot, person))
        optional = {"kind": kind, "reason": reason, "onset": onset}
        given = {name: one for name, one in optional.items() if one is not None}
        same_length(person=person, **given)
        types = {"kind": np.int8, "reason": np.int8, "onset": np.int32}
        chosen: dict[str, Any]
        chosen = {name: one[order].astype(types[name]) for name, one in given.items()}
        return cls(
            people,
            person[order].astype(np.int32),
            positive[order].astype(np.bool_),
            slot[order].astype(np.int32),
            names_sha256,
            kinds=kinds,
            **chosen,
        )

    def require_people_of(self, traces: Traces) -> None:
        """Raise ``DataError`` if people or slots do not match ``traces``."""
        if self.people != traces.people:
            raise DataError(
                f"the tests are of {self.people:,} people, but the traces have "
                f"{traces.people:,}: import visits and tests together"
            )
        mine, theirs = self.names_sha256, traces.names_sha256
        if None not in (mine, theirs) and mine != theirs:
            raise DataError(
                "the tests are of people with other names, or in another order, than "
                "the traces: import visits and tests together"
            )
        last = int(self.slot.max(initial=-1))
        if last >= traces.slots:
            raise DataError(
                f"a test is in slot {last}, but the last slot of the traces is "
                f"{traces.slots - 1}"
            )

    def of_people(self, wanted: Mask) -> "TestResults":
        """Select the tests of the people marked in ``wanted`` (people,)."""
        return self.select(wanted[self.person])

    def select(self, chosen: Mask) -> "TestResults":
        """Select the tests marked in ``chosen`` (tests,)."""
        tests = {name: getattr(self, name)[chosen] for name in _PER_TEST}
        return replace(self, **tests)

    def joined(self, other: "TestResults", people: int) -> "TestResults":
        """Return the tests of both as those of a city of ``people`` people."""
        kinds = tuple(dict.fromkeys((*self.kinds, *other.kinds)))
        both = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in _PER_TEST
        }
        number = np.array([kinds.index(kind) for kind in other.kinds])
        both["kind"] = np.concatenate([self.kind, number[other.kind]])
        return TestResults.from_tests(
            people,
            both["person"],
            both["positive"],
            both["slot"],
            kind=both["kind"],
            kinds=kinds,
            reason=both["reason"],
            onset=both["onset"],
        )

    def renumbered(self, number: NDArray[np.int32], people: int) -> "TestResults":
        """Return the tests of person p as those of person ``number[p]``."""
        return TestResults.from_tests(
            people,
            number[self.person],
            self.positive,
            self.slot,
            kind=self.kind,
            kinds=self.kinds,
            reason=self.reason,
            onset=self.onset,
        )

    def of_range(self, first: int, end: int) -> "TestResults":
        """Select people ``first`` to ``end`` - 1, numbered from 0."""
        own = self.select((self.person >= first) & (self.person < end))
        person = own.person - np.int32(first)
        return replace(own, people=end - first, person=person, names_sha256=None)

    def since(self, first_slot: int) -> "TestResults":
        """Shift slots so that ``first_slot`` is 0; earlier ones move to slot 0."""
        slot = np.maximum(self.slot - first_slot, 0).astype(np.int32)
        onset = np.maximum(self.onset - first_slot, 0).astype(np.int32)
        onset = np.where(self.onset < 0, np.int32(NOT_GIVEN), onset)
        return replace(self, slot=slot, onset=onset)

    @cached_property
    def status(self) -> NDArray[np.int8]:
        """Status, (people,): 1 any positive test, 0 only negative ones, -1 untested."""
        status = np.full(self.people, UNTESTED, np.int8)
        status[self.person] = 0
        status[self.person[self.positive]] = 1
        status.setflags(write=False)
        return status

    def with_reason(self, assumed: TestReason) -> "TestResults":
        """Return the tests with ``assumed`` where some reasons, but not all, are given.

        Without any reason the record is returned as it is.
        """
        given = self.reason != NOT_GIVEN
        if not given.any():
            return self
        reason = np.where(given, self.reason, np.int8(REASONS.index(assumed)))
        return replace(self, reason=reason)

    def reasons(self, assumed: TestReason) -> list[TestReason]:
        """Return the reasons of all tests, ``assumed`` where none is given."""
        found = {REASONS[one] if one >= 0 else assumed for one in {*self.reason}}
        return [reason for reason in REASONS if reason in found]

    def because(self, assumed: TestReason) -> TestReason:
        """Return the common reason of all tests, ``assumed`` where none is given.

        It is ``unknown`` if being tested is evidence for some tests only.
        """
        found = {*self.reasons(assumed)}
        if not found or found <= {*IGNORABLE}:
            return "random" if found else assumed
        return found.pop() if len(found) == 1 else "unknown"

    @property
    def tested(self) -> Mask:
        """Mask of the tested people, (people,)."""
        return np.not_equal(self.status, UNTESTED)

    @property
    def is_exact(self) -> bool:
        """True if every result says whether the person was ever infected before."""
        return all(kind.is_exact for kind in self.kinds)

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
        arrays = {name: getattr(self, name) for name in _PER_TEST}
        meta: dict[str, object] = {"people": self.people}
        meta["kinds"] = [as_plain(kind) for kind in self.kinds]
        if self.names_sha256 is not None:
            meta["who"] = self.names_sha256
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "TestResults":
        """Read a record written by ``save``."""
        stored = store.read(folder, _KIND)
        kinds = tuple(build(TestKind, kind) for kind in stored.meta.get("kinds", ()))
        # Older records lack some of these.
        tests: dict[str, Any] = {name: stored.arrays.get(name) for name in _PER_TEST}
        return cls(
            people=int(stored.meta["people"]),
            names_sha256=stored.meta.get("who"),
            kinds=kinds or (EVER,),
            **tests,
        )


def draw_validation_people(
    known: TestResults, share: float, rng: np.random.Generator
) -> PersonIds:
    """Draw validation people stratified by test result; ids are ascending.

    Raises ``DataError`` if a result has fewer than two people, and ``SettingsError`` if
    none of them would be left for training.
    """
    parts = []
    for wanted, word in ((1, "positive"), (0, "negative")):
        people = np.flatnonzero(known.status == wanted)
        count = max(1, round(share * len(people)))
        if len(people) < 2:
            raise DataError(
                f"{len(people)} people tested {word}: at least 2 are needed, "
                "one for training and one for validation"
            )
        if count == len(people):
            raise SettingsError(
                f"validation_share={share} takes all {count} people tested {word}: "
                "choose a smaller share, so that some are left for training"
            )
        parts.append(rng.permutation(people)[:count])
    return np.sort(np.concatenate(parts)).astype(np.int32)


def exclude_people(known: TestResults, people: PersonIds) -> TestResults:
    """Return the tests without those of ``people``."""
    rest = np.ones(known.people, np.bool_)
    rest[people] = False
    return known.of_people(rest)


def random_folds(
    known: TestResults, folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a fold for each tested person, not stratified: (people,), -1 for others."""
    fold = np.full(known.people, -1, np.int64)
    dealt = rng.permutation(np.flatnonzero(known.tested))
    fold[dealt] = np.arange(len(dealt)) % folds
    return fold


def data_warnings(known: TestResults, traces: Traces) -> tuple[str, ...]:
    """Return warnings about data that limit how informative risks are."""
    found = []
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    if not tested:
        found.append("Nobody was tested: risks follow from the assumed outbreak alone.")
    elif positive in (0, tested):
        kind = "positive" if not positive else "negative only"
        found.append(
            f"Of {_people(tested, 'tested ')} nobody is {kind}: the size of "
            "the outbreak follows from assumed rates, so use risks for ranking only."
        )
    if known.tested.all():
        found.append(
            "Everybody was tested: nobody is left to predict, and each risk excludes "
            "the person's own result."
        )
    first = known.first_positive_slot[known.person]
    after = ~known.positive & (first >= 0) & (known.slot >= first)
    if known.is_exact and (people := len(np.unique(known.person[after]))):
        found.append(
            f"{_people(people)} tested negative at or after a positive test: the first "
            "positive test counts, unless tests have errors (--test-kind)."
        )
    if unseen := int((traces.by_slot < 0).all(axis=0).sum()):
        whose = "has no trace: its" if unseen == 1 else "have no trace: their"
        found.append(
            f"{_people(unseen)} {whose} risk follows from the assumed outbreak alone."
        )
    return tuple(found)


def _people(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'person' if count == 1 else 'people'}"
