"""The ledger: records every receipt before its release and enforces the budget.

A ledger is a file of JSON lines. The first line holds the budget, each other line the
SHA-256 of the previous one, so reading detects edits, deletions, swaps and a raised
budget. A checkpoint stores ``head``, the hash of its last line, which also detects
truncation. A ``SpendingRecord`` outside of the run folder detects older copies.
Composition is exact: mu^2 of Gaussian releases adds up (``accounting``).
"""

import contextlib
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from epifalcon import store
from epifalcon.checks import Checked, NonNegative
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
    WriteError,
)
from epifalcon.privacy.accounting import DELTA, Delta, epsilon_of, mu_for
from epifalcon.privacy.events import (
    UNITS,
    GaussianRelease,
    PseudoTraceRelease,
    Release,
    Unit,
    UnprotectedRelease,
    unprotected,
)
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.settings import as_plain, build
from epifalcon.types import Plain

FORMAT = "epifalcon-ledger"
VERSION = 1
_LOG = "ledger"
"""Name of a ledger in its ``SpendingRecord``."""
_KINDS: dict[str, type[Release]] = {
    "gaussian": GaussianRelease,
    "pseudo-traces": PseudoTraceRelease,
    "unprotected": UnprotectedRelease,
}
T = TypeVar("T")
_NAMES = {kind: name for name, kind in _KINDS.items()}
# A sigma calibrated to the whole budget must not fail by rounding over 500 sums.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """Maximum epsilon for one visit, one day and one person; None for no limit.

    Releases without protection have no epsilon; they are listed, or refused with
    ``refuse_unprotected``.
    """

    visit: NonNegative | None = None
    day: NonNegative | None = None
    person: NonNegative | None = None
    delta: Delta = DELTA
    refuse_unprotected: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*UNITS, "delta"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))


@dataclass(frozen=True, kw_only=True)
class Spend:
    """Epsilon with its delta, unit, neighbouring relation and adversary."""

    unit: Unit
    epsilon: float
    delta: float
    mu: float
    relation: str
    adversary: str


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """A value released without protection, and the number of rounds of its release."""

    channel: str
    what: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Privacy cost of a run so far, in total and by channel.

    A total over channels with different relations or adversaries lists them all; it
    holds for data sets that are neighbours under each relation.
    """

    total: dict[Unit, Spend]
    channels: dict[str, dict[Unit, Spend]]
    unprotected: tuple[Unprotected, ...]

    def epsilon(self) -> dict[Unit, float]:
        """Return the total epsilon by unit."""
        return {unit: spend.epsilon for unit, spend in self.total.items()}


class Journal:
    """An append-only file with one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0

    def read(self) -> str:
        """Return all complete lines; an incomplete last line is truncated."""
        if not self.path.exists():
            return ""
        try:
            content = self.path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(self.path, len(whole))
        except OSError as error:
            raise CorruptFileError(
                f"{self.path}: cannot be read: {error.strerror}"
            ) from None
        self._size = len(whole)
        try:
            return whole.decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptFileError(f"{self.path}: is not UTF-8 text") from None

    def append(self, lines: Iterable[str]) -> None:
        """Write complete lines and sync; after an error the file is unchanged."""
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            with self.path.open("ab", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self._size:
                    raise CorruptFileError(
                        f"{self.path}: was changed by another process"
                    )
                self._write(file.fileno(), data)
            if not self._size:
                # Sync the directory entry of the new file.
                store.flush(self.path.parent)
        except OSError as error:
            raise WriteError(
                f"{self.path}: cannot be written: {error.strerror}"
            ) from None
        self._size += len(data)

    def _write(self, handle: int, data: bytes) -> None:
        try:
            if os.write(handle, data) != len(data):
                raise OSError(0, "the disk accepted only a part")
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, self._size)
            raise


class Ledger:
    """All releases of one run, in order, within one budget.

    A pair (round, channel) is released once, since it fixes the noise.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget if budget is not None else Budget()
        self._limits = {
            unit: mu_for(limit, self.budget.delta) ** 2
            for unit in UNITS
            if (limit := getattr(self.budget, unit)) is not None
        }
        self._lines = [_first_line(as_plain(self.budget))]
        self._heads = [_sha256(self._lines[0])]
        self._releases: list[Release] = []
        self._taken: set[tuple[int, str]] = set()
        self._sums: dict[Unit, float] = dict.fromkeys(UNITS, 0.0)
        self._repeatable: dict[tuple[int, str], Release] = {}
        self._journal: Journal | None = None
        self._record: SpendingRecord | None = None

    @property
    def head(self) -> str:
        """SHA-256 of the whole history, stored in checkpoints."""
        return self._heads[-1]

    @property
    def releases(self) -> tuple[Release, ...]:
        """All recorded releases, in order."""
        return tuple(self._releases)

    def record(self, *releases: Release) -> None:
        """Record all of ``releases``, or none of them and raise.

        Call it before the values are released. Raises ``BudgetExceededError`` if a
        limit would be exceeded or a (round, channel) was recorded before. With a
        journal the entry is on disk when this returns.
        """
        fresh = [one for one in releases if self._repeatable.get(_key(one)) != one]
        self._refuse_taken(fresh)
        self._refuse_past_budget(fresh)
        lines, heads = [], [self.head]
        for offset, release in enumerate(fresh):
            index = len(self._releases) + offset
            head, line = _next_line(index, heads[-1], _plain(release))
            lines.append(line)
            heads.append(head)
        if lines:
            self._append(lines, heads[1:])
        self._enter(fresh, lines, heads[1:])
        for release in releases:
            self._repeatable.pop(_key(release), None)

    def spent(self, delta: float | None = None) -> Spent:
        """Return the privacy cost so far at ``delta``, by default the budget's."""
        delta = self.budget.delta if delta is None else delta
        noised = [one for one in self._releases if isinstance(one, GaussianRelease)]
        channels: dict[str, list[GaussianRelease]] = {}
        for one in noised:
            channels.setdefault(one.terms.channel, []).append(one)
        bare = Counter(
            (one.terms.channel, what)
            for one in self._releases
            if (what := unprotected(one)) is not None
        )
        return Spent(
            total=_spends(noised, delta),
            channels={
                name: _spends(listed, delta) for name, listed in channels.items()
            },
            unprotected=tuple(
                Unprotected(channel=channel, what=what, rounds=rounds)
                for (channel, what), rounds in bare.items()
            ),
        )

    def to_lines(self) -> str:
        """Return the ledger as JSON lines; the inverse of ``from_lines``."""
        return "".join(f"{line}\n" for line in self._lines)

    @classmethod
    def from_lines(
        cls, text: str, *, head: str | None = None, replay_from: int | None = None
    ) -> "Ledger":
        """Read a ledger with its budget and verify every line.

        ``head`` is the hash stored in the checkpoint: it must be in the chain, else the
        file was truncated. Entries after it remain spent. Those of round
        ``replay_from`` or later may each be recorded once more, if equal, without being
        counted again. This is correct only if the resumed run draws the same noise for
        the same (round, channel), as keyed noise does. ``head`` alone does not suffice:
        a checkpoint of a resumed run may include rounds that are still to be repeated.
        """
        first, *others = text.split("\n")
        if not others or others.pop():
            raise CorruptFileError("ledger: is empty or its last line is incomplete")
        ledger = cls(_rebuild(Budget, _read_first(first)))
        # The head of a checkpoint before the first release is that of the budget.
        known = head in (None, ledger.head)
        for index, line in enumerate(others):
            ledger._readmit(line, index)
            known = known or ledger.head == head
        if not known:
            raise CorruptFileError(
                "ledger: lacks the last entry of the checkpoint: "
                "it was truncated, or it belongs to another run"
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
        record: SpendingRecord | None = None,
    ) -> "Ledger":
        """Open the ledger in the file ``path``, created if missing.

        A line half written before a crash is dropped: ``record`` had not returned, so
        nothing was released. Raises if ``budget`` differs from that of the file, or if
        the file lacks entries that ``record`` counts.
        """
        journal = Journal(path)
        text = journal.read()
        is_new = not text and head is None
        if is_new:
            ledger = cls(budget)
        else:
            ledger = cls.from_lines(text, head=head, replay_from=replay_from)
        if budget is not None and budget != ledger.budget:
            raise SettingsError(
                f"{path}: has the budget {ledger.budget}, not the given {budget}"
            )
        ledger._journal, ledger._record = journal, record
        ledger._append(ledger._lines if is_new else [], [])
        return ledger

    def _append(self, lines: Sequence[str], heads: Sequence[str]) -> None:
        """Write lines to the journal, then count them; both before a release."""
        if self._journal is None:
            return
        with contextlib.ExitStack() as stack:
            if self._record is not None:
                path, known = self._journal.path, [*self._heads]
                stack.enter_context(self._record.appending(_LOG, known, path))
                known.extend(heads)
            if lines:
                self._journal.append(lines)

    def _refuse_taken(self, releases: Sequence[Release]) -> None:
        taken = set(self._taken)
        for release in releases:
            if _key(release) in taken:
                raise BudgetExceededError(
                    f"round {release.terms.round} of {release.terms.channel!r} was "
                    "already released; nothing was released again"
                )
            taken.add(_key(release))

    def _refuse_past_budget(self, releases: Sequence[Release]) -> None:
        for release in releases:
            what = unprotected(release)
            if what is not None and self.budget.refuse_unprotected:
                raise BudgetExceededError(
                    f"{release.terms.channel!r} would release {what} without "
                    "protection, which the budget forbids: nothing was released"
                )
        for unit, limit in self._limits.items():
            wanted = self._sums[unit] + sum(_squared_mu(one, unit) for one in releases)
            if wanted > limit * (1 + _ROUNDING):
                delta = self.budget.delta
                before, after = (
                    epsilon_of(math.sqrt(one), delta)
                    for one in (self._sums[unit], wanted)
                )
                named = ", ".join(
                    f"{one.terms.channel!r} in round {one.terms.round}"
                    for one in releases
                )
                raise BudgetExceededError(
                    f"{named} would bring epsilon of one {unit} from {before:.4g} to "
                    f"{after:.4g} at delta {delta:g}; the budget is "
                    f"{getattr(self.budget, unit):g}: nothing was released"
                )

    def _readmit(self, line: str, index: int) -> None:
        """Verify a stored line and add its release to the ledger."""
        where = f"ledger line {index + 2}"
        content = _parse(line, where)
        for name in ("index", "previous", "sha256"):
            content.pop(name, None)
        head, expected = _next_line(index, self.head, content)
        if line != expected:
            raise CorruptFileError(
                f"{where}: does not match its SHA-256 or the previous line: "
                "edited, removed or out of order"
            )
        kind = content.get("kind")
        if kind not in _KINDS:
            raise CorruptFileError(f"ledger: unknown kind of release {kind!r}")
        release = _rebuild(_KINDS[kind], content.get("release"))
        try:
            self._refuse_taken([release])
            self._refuse_past_budget([release])
        except BudgetExceededError as error:
            raise CorruptFileError(f"ledger: invalid entry: {error}") from None
        self._enter([release], [line], [head])

    def _enter(
        self, releases: Sequence[Release], lines: Sequence[str], heads: Sequence[str]
    ) -> None:
        self._taken.update(map(_key, releases))
        for release in releases:
            for unit in UNITS:
                self._sums[unit] += _squared_mu(release, unit)
        self._releases.extend(releases)
        self._lines.extend(lines)
        self._heads.extend(heads)


def _key(release: Release) -> tuple[int, str]:
    return release.terms.round, release.terms.channel


def _squared_mu(release: Release, unit: Unit) -> float:
    return release.squared_mu(unit) if isinstance(release, GaussianRelease) else 0.0


def _spends(releases: Sequence[GaussianRelease], delta: float) -> dict[Unit, Spend]:
    relations = sorted({one.terms.relation for one in releases})
    adversaries = sorted({one.terms.adversary for one in releases})
    found: dict[Unit, Spend] = {}
    for unit in UNITS:
        mu = math.sqrt(sum(one.squared_mu(unit) for one in releases))
        found[unit] = Spend(
            unit=unit,
            epsilon=epsilon_of(mu, delta),
            delta=delta,
            mu=mu,
            relation=" and ".join(relations) or "none",
            adversary=" and ".join(adversaries) or "none",
        )
    return found


def _plain(release: Release) -> dict[str, Any]:
    return {"kind": _NAMES[type(release)], "release": as_plain(release)}


def _rebuild(kind: type[T], values: object) -> T:
    if not isinstance(values, dict):
        raise CorruptFileError("ledger: a record is missing")
    try:
        return build(kind, values)
    except SettingsError as error:
        raise CorruptFileError(f"ledger: invalid record: {error}") from None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(budget: Plain) -> str:
    """Return the first line of a ledger, which contains format, version and budget."""
    return _canonical({"format": FORMAT, "version": VERSION, "budget": budget})


def _next_line(index: int, previous: str, content: Plain) -> tuple[str, str]:
    """Return the SHA-256 of entry ``index``, and its JSON line."""
    values = {"index": index, "previous": previous, **content}
    digest = _sha256(_canonical(values))
    return digest, _canonical({**values, "sha256": digest})


def _read_first(line: str) -> dict[str, Any]:
    """Parse the first line of a ledger and return its budget as plain values."""
    values = _parse(line, "ledger line 1")
    if values.get("format") != FORMAT:
        raise DataError("not a ledger of epifalcon")
    if values.get("version") != VERSION:
        raise DataError(
            f"ledger: version {values.get('version')}, this program reads {VERSION}"
        )
    budget = values.get("budget")
    if not isinstance(budget, dict) or line != _first_line(budget):
        raise CorruptFileError("ledger line 1: does not match its SHA-256")
    return budget


def _canonical(values: Plain) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise CorruptFileError(f"{where}: is not JSON") from None
    if not isinstance(values, dict):
        raise CorruptFileError(f"{where}: is not a record")
    return values
