"""A log of what each release was computed from, so that it is released only once.

Before an answer is sent, the digest of all that led to it is stored. The same release
with another digest is refused: the difference of two answers may contain no noise.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from epifalcon.errors import BudgetExceededError, CorruptFileError, SettingsError
from epifalcon.privacy.ledger import Journal
from epifalcon.privacy.spending import SpendingRecord

T = TypeVar("T")


def open_journal(path: Path, parse: Callable[[Any], T]) -> tuple[Journal, list[T]]:
    """Open a journal; return it with its parsed lines."""
    journal = Journal(path)
    try:
        listed = [parse(json.loads(line)) for line in journal.read().splitlines()]
    except (ValueError, TypeError, AttributeError, SettingsError):
        raise CorruptFileError(f"{path}: holds an invalid line") from None
    return journal, listed


class ReplayError(BudgetExceededError):
    """A release was requested again with different values; nothing was released."""


class ReplayLog:
    """Request digest of each release; stored in ``path`` before ``require`` returns.

    A log that lacks entries which the site's ``record`` counts is refused.
    """

    def __init__(
        self, path: Path | None = None, record: SpendingRecord | None = None
    ) -> None:
        self._journal, self._known = None, dict[tuple[int, str], str]()
        self._record = record
        if path is not None:
            self._journal, listed = open_journal(path, _parse_digest)
            self._known = dict(listed)
            self._append([])

    def __contains__(self, release: object) -> bool:
        return release in self._known

    def require(self, number: int, phase: str, found: str) -> None:
        """Store the digest ``found`` of a release; refuse a different one."""
        self.refuse_other(number, phase, found)
        if (number, phase) not in self._known:
            self._append([found], json.dumps([number, phase, found]))
            self._known[number, phase] = found

    def _append(self, heads: list[str], *lines: str) -> None:
        if self._journal is None:
            return
        with contextlib.ExitStack() as stack:
            if self._record is not None:
                known, path = ["", *self._known.values()], self._journal.path
                name = f"runs/{path.parent.name}"
                stack.enter_context(self._record.appending(name, known, path))
                known.extend(heads)
            if lines:
                self._journal.append(lines)

    def refuse_other(self, number: int, phase: str, found: str) -> None:
        """Raise ``ReplayError`` if a different digest of this release is stored."""
        if self._known.get((number, phase), found) != found:
            step = f"round {number}, {phase}"
            raise ReplayError(f"{step}: released before for other values")


def _parse_digest(line: Any) -> tuple[tuple[int, str], str]:  # noqa: ANN401
    number, phase, value = line
    if not (isinstance(number, int) and isinstance(phase, str) and len(value) == 64):
        raise ValueError
    return (number, phase), str(value)
