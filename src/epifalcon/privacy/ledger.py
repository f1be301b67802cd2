"""The ledger: every receipt before its value leaves, and no release past the budget.

Append-only and hash-chained: each line holds the SHA-256 of the line before it,
the first line the budget, so an edit, a deletion, a swap or a quietly raised
budget shows when the ledger is read. A checkpoint keeps ``head``, the hash of
the last line it knew, which shows a cut end as well.

Composition is exact and cheap: mu^2 of Gaussian releases adds up, so the ledger
keeps one sum for each channel and unit (see ``accounting``).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from epifalcon.checks import non_negative
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    SettingsError,
)
from epifalcon.privacy import chain
from epifalcon.privacy.accounting import DELTA, epsilon_of, mu_for
from epifalcon.privacy.events import (
    UNITS,
    GaussianRelease,
    PseudoTraceRelease,
    Release,
    Unit,
    UnprotectedRelease,
    unprotected,
)
from epifalcon.settings import as_plain, build

_KINDS: dict[str, type[Release]] = {
    "gaussian": GaussianRelease,
    "pseudo-traces": PseudoTraceRelease,
    "unprotected": UnprotectedRelease,
}
_Sense = tuple[str, str]
T = TypeVar("T")
_NAMES = {kind: name for name, kind in _KINDS.items()}
# A sigma calibrated to the whole budget must not fail by the rounding of 500 sums.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most epsilon that may be spent on one visit, one day and one person.

    None sets no limit. Releases without protection have no epsilon; they are
    listed, or with ``refuse_unprotected`` refused.
    """

    visit: float | None = None
    day: float | None = None
    person: float | None = None
    delta: float = DELTA
    refuse_unprotected: bool = False

    def __post_init__(self) -> None:
        for unit in UNITS:
            if (limit := self.limit(unit)) is not None:
                non_negative(**{unit: limit})
                object.__setattr__(self, unit, float(limit))
        mu_for(1.0, self.delta)
        object.__setattr__(self, "delta", float(self.delta))

    def limit(self, unit: Unit) -> float | None:
        """The epsilon granted for ``unit``."""
        granted: float | None = getattr(self, unit)
        return granted


@dataclass(frozen=True, kw_only=True)
class Spend:
    """An epsilon with all that it needs to mean something."""

    unit: Unit
    epsilon: float
    delta: float
    mu: float
    relation: str
    adversary: str


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """What left without protection, and in how many rounds."""

    channel: str
    what: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a run has cost so far, by unit in all and by channel and unit.

    A total over channels with different relations or adversaries names them
    all: it holds for neighbours that are neighbours in each of these senses.
    """

    total: dict[Unit, Spend]
    channels: dict[str, dict[Unit, Spend]]
    unprotected: tuple[Unprotected, ...]

    def epsilon(self) -> dict[Unit, float]:
        """Total epsilon by unit, for a report's line."""
        return {unit: spend.epsilon for unit, spend in self.total.items()}


class Ledger:
    """All releases of one run, in order, within one budget.

    A pair (round, channel) is taken once: its noise is fixed by the pair, and a
    second value under it would be a second release.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget if budget is not None else Budget()
        self._limits = {
            unit: mu_for(limit, self.budget.delta) ** 2
            for unit in UNITS
            if (limit := self.budget.limit(unit)) is not None
        }
        self._lines = [chain.first_line(as_plain(self.budget))]
        self._head = chain.sha256(self._lines[0])
        self._releases: list[Release] = []
        self._taken: set[tuple[int, str]] = set()
        self._sums: dict[Unit, float] = dict.fromkeys(UNITS, 0.0)
        self._by_channel: dict[str, dict[Unit, float]] = {}
        self._senses: dict[str, dict[_Sense, None]] = {}
        self._bare: dict[tuple[str, str], int] = defaultdict(int)
        self._repeatable: dict[tuple[int, str], Release] = {}
        self._journal: chain.Journal | None = None

    @property
    def head(self) -> str:
        """SHA-256 that stands for the whole history; a checkpoint keeps it."""
        return self._head

    @property
    def releases(self) -> tuple[Release, ...]:
        """Every release recorded, in order."""
        return tuple(self._releases)

    def record(self, *releases: Release) -> None:
        """Enter all of ``releases``, or none of them and raise.

        Call it before the values leave. ``BudgetExceededError`` says that a
        limit would be passed or that a (round, channel) was taken before; the
        ledger is then as it was. With a journal the entry is on the disk when
        this returns.
        """
        fresh = [one for one in releases if not self._is_repeat(one)]
        self._refuse_taken(fresh)
        self._refuse_past_budget(fresh)
        lines, head = [], self._head
        for offset, release in enumerate(fresh):
            index = len(self._releases) + offset
            head, line = chain.next_line(index, head, _plain(release))
            lines.append(line)
        if self._journal is not None and lines:
            self._journal.append(lines)
        self._enter(fresh, lines, head)
        for release in releases:
            self._repeatable.pop(_key(release), None)

    def spent(self, delta: float | None = None) -> Spent:
        """What has been spent, at ``delta`` (the budget's where none is given)."""
        delta = self.budget.delta if delta is None else delta
        senses = [sense for listed in self._senses.values() for sense in listed]
        return Spent(
            total=_spends(self._sums, senses, delta),
            channels={
                channel: _spends(sums, self._senses[channel], delta)
                for channel, sums in self._by_channel.items()
            },
            unprotected=tuple(
                Unprotected(channel=channel, what=what, rounds=rounds)
                for (channel, what), rounds in self._bare.items()
            ),
        )

    def to_lines(self) -> str:
        """The ledger as JSON lines, for a checkpoint; ``from_lines`` undoes it."""
        return "".join(f"{line}\n" for line in self._lines)

    @classmethod
    def from_lines(
        cls, text: str, *, head: str | None = None, replay_from: int | None = None
    ) -> "Ledger":
        """Read a ledger, every line checked; the budget is the one it was made with.

        ``head`` is what the checkpoint kept: it must stand in the chain, or the
        end was cut off. Entries after it were spent after the checkpoint and
        stay spent. Those of round ``replay_from`` or later may each be recorded
        once more, if equal, without being counted again: right only where the
        resumed run draws the same noise for the same (round, channel), as keyed
        noise does. The round says it, not the head: a checkpoint of a run that
        was itself resumed may know of rounds that are still to be done again.
        """
        first, *others = chain.split_lines(text)
        ledger = cls(_rebuild(Budget, chain.read_first(first)))
        # A checkpoint that knew nothing but the budget is known too.
        known = head in (None, ledger.head)
        for index, line in enumerate(others):
            content, entry_head = chain.read_next(line, index, ledger.head)
            release = _release(content)
            ledger._readmit(release, line, entry_head)
            known = known or entry_head == head
        if not known:
            raise CorruptFileError(
                "ledger: lacks the entry that the checkpoint saw last: "
                "its end was cut off, or it belongs to another run"
            )
        if replay_from is not None:
            ledger._repeatable = {
                _key(release): release
                for release in ledger._releases
                if release.terms.round >= replay_from
            }
        return ledger

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        budget: Budget | None = None,
        head: str | None = None,
        replay_from: int | None = None,
    ) -> "Ledger":
        """The ledger kept in the file ``path``, made if missing.

        Every entry reaches the disk before ``record`` returns. A line left half
        written by a crash is dropped: ``record`` had not returned, so nothing
        had left. A ``budget`` other than the file's is refused.
        """
        journal = chain.Journal(path)
        text = journal.read()
        if not text and head is None:
            ledger = cls(budget)
            journal.append(ledger._lines)
        else:
            ledger = cls.from_lines(text, head=head, replay_from=replay_from)
        if budget is not None and budget != ledger.budget:
            raise SettingsError(
                f"{path}: was begun with {ledger.budget}; it cannot go on with {budget}"
            )
        ledger._journal = journal
        return ledger

    def _is_repeat(self, release: Release) -> bool:
        return self._repeatable.get(_key(release)) == release

    def _refuse_taken(self, releases: Sequence[Release]) -> None:
        taken = set(self._taken)
        for release in releases:
            if _key(release) in taken:
                raise BudgetExceededError(
                    f"round {release.terms.round} of {release.terms.channel!r} was "
                    "released before; a second release was not granted"
                )
            taken.add(_key(release))

    def _refuse_past_budget(self, releases: Sequence[Release]) -> None:
        for release in releases:
            what = unprotected(release)
            if what is not None and self.budget.refuse_unprotected:
                raise BudgetExceededError(
                    f"{release.terms.channel!r} would release {what} without "
                    "protection, which the budget refuses: nothing was released"
                )
        for unit, limit in self._limits.items():
            wanted = self._sums[unit] + sum(_squared_mu(one, unit) for one in releases)
            if wanted > limit * (1 + _ROUNDING):
                raise BudgetExceededError(self._refusal(unit, wanted, releases))

    def _refusal(self, unit: Unit, wanted: float, releases: Sequence[Release]) -> str:
        delta = self.budget.delta
        named = ", ".join(
            f"{one.terms.channel!r} in round {one.terms.round}" for one in releases
        )
        return (
            f"{named} would bring epsilon of one {unit} from "
            f"{epsilon_of(math.sqrt(self._sums[unit]), delta):.4g} to "
            f"{epsilon_of(math.sqrt(wanted), delta):.4g} at delta {delta:g}; "
            f"granted are {self.budget.limit(unit):g}: nothing was released"
        )

    def _readmit(self, release: Release, line: str, head: str) -> None:
        try:
            self._refuse_taken([release])
            self._refuse_past_budget([release])
        except BudgetExceededError as error:
            raise CorruptFileError(
                f"ledger: could not have been made: {error}"
            ) from None
        self._enter([release], [line], head)

    def _enter(
        self, releases: Sequence[Release], lines: Sequence[str], head: str
    ) -> None:
        for release in releases:
            self._taken.add(_key(release))
            channel = release.terms.channel
            if (what := unprotected(release)) is not None:
                self._bare[channel, what] += 1
            if isinstance(release, GaussianRelease):
                self._add_up(release)
        self._releases.extend(releases)
        self._lines.extend(lines)
        self._head = head

    def _add_up(self, release: GaussianRelease) -> None:
        terms = release.terms
        senses = self._senses.setdefault(terms.channel, {})
        senses[terms.relation, terms.adversary] = None
        sums = self._by_channel.setdefault(terms.channel, dict.fromkeys(UNITS, 0.0))
        for unit in UNITS:
            part = release.squared_mu(unit)
            sums[unit] += part
            self._sums[unit] += part


def _key(release: Release) -> tuple[int, str]:
    return release.terms.round, release.terms.channel


def _squared_mu(release: Release, unit: Unit) -> float:
    return release.squared_mu(unit) if isinstance(release, GaussianRelease) else 0.0


def _spends(
    sums: dict[Unit, float], senses: Collection[_Sense], delta: float
) -> dict[Unit, Spend]:
    relation = " and ".join(sorted({relation for relation, _ in senses})) or "none"
    adversary = " and ".join(sorted({seen for _, seen in senses})) or "none"
    return {
        unit: Spend(
            unit=unit,
            epsilon=epsilon_of(math.sqrt(sums[unit]), delta),
            delta=delta,
            mu=math.sqrt(sums[unit]),
            relation=relation,
            adversary=adversary,
        )
        for unit in UNITS
    }


def _plain(release: Release) -> dict[str, Any]:
    return {"kind": _NAMES[type(release)], "release": as_plain(release)}


def _release(content: dict[str, Any]) -> Release:
    kind = content.get("kind")
    if kind not in _KINDS:
        raise CorruptFileError(f"ledger: {kind!r} is no kind of release")
    return _rebuild(_KINDS[kind], content.get("release"))


def _rebuild(kind: type[T], values: object) -> T:
    if not isinstance(values, dict):
        raise CorruptFileError("ledger: a record is missing")
    try:
        return build(kind, values)
    except SettingsError as error:
        raise CorruptFileError(f"ledger: cannot have been written: {error}") from None
