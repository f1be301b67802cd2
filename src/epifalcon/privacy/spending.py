"""Records of how much was spent, outside of the folder that holds a ledger or log.

A copied or restored folder holds a ledger that lacks later entries. So their number and
the hash of the last one are also stored in a record, authenticated by a secret of the
run or site. A ledger that its record is ahead of is refused.

In one process the records of a user are in ``$XDG_STATE_HOME/epifalcon/budgets`` (by
default ``~/.local/state``). They protect against accidents, not against the user, who
can delete both. A site has one record of its budget and of all runs.
"""

import contextlib
import hmac
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epifalcon import store
from epifalcon.errors import BudgetExceededError, CorruptFileError, SettingsError
from epifalcon.locks import FileLock
from epifalcon.settings import json_text
from epifalcon.streams import derived_secret

_STATE, _BUDGETS = "XDG_STATE_HOME", "epifalcon/budgets"
Entries = tuple[int, str]
"""Number of entries of a log, and the hash after the last one."""


@dataclass(frozen=True)
class SpendingRecord:
    """The newest states of some ledgers and logs, by name, in the file ``path``."""

    path: Path
    key: bytes
    """Secret that authenticates the record."""

    @classmethod
    def of_user(cls, secret: int | None) -> "SpendingRecord | None":
        """Return the record of the ledger whose noise comes from ``secret``."""
        if secret is None:
            return None
        key = derived_secret(secret, "spending record").to_bytes(32, "big")
        name = hmac.digest(key, b"name", "sha256").hex()[:32]
        return cls(_folder_of_user() / f"{name}.json", key)

    @property
    def counter(self) -> str:
        """Number of all entries, which only grows, with its authentication code."""
        return self._signed(sum(entries for entries, _ in self._read().values()))

    def require_newest(self, counter: str) -> None:
        """Refuse to spend if an authentic ``counter`` is ahead of this record."""
        text, mine = counter.partition(".")[0], self.counter
        # A counter of an earlier secret, or a forged one, says nothing.
        if not (text.isdecimal() and self._signed(int(text)) == counter):
            return
        if int(text) > int(mine.partition(".")[0]):
            raise BudgetExceededError(
                f"{self.path.parent}: was restored from a backup: its record counts "
                f"{mine.partition('.')[0]} entries, but the server has seen {text}. "
                "Restore the newest version. If it is lost, remove secret, "
                f"{self.path.name} and runs, and lower most_epsilon by what these "
                "runs spent"
            )

    @contextlib.contextmanager
    def appending(self, name: str, heads: Sequence[str], where: Path) -> Iterator[None]:
        """Lock the record while the caller appends to the log ``where``.

        ``heads`` are the hashes after 0, 1, 2, ... entries, to which the caller adds.
        A log may be ahead of the record by the entries of a process that was killed.
        """
        with store.writing(self.path), store.owner_only():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), wait=True):
            logs, before = self._read(), len(heads) - 1
            if name not in logs:
                if before:
                    raise BudgetExceededError(
                        f"{where}: {self.path} is missing or does not count it: "
                        "continue where it was started, with the same data and "
                        "settings, or copy that file from there; nothing was released"
                    )
                logs[name] = 0, heads[0]
                self._write(logs)
            entries, head = logs[name]
            if entries > before or heads[entries] != head:
                raise BudgetExceededError(
                    f"{where}: has {before} entries, but {self.path} counts {entries}: "
                    "it is a copy, or was restored from a backup. Use the newest "
                    "version, or start a new run; nothing was released"
                )
            yield
            after = (len(heads) - 1, heads[-1])
            if logs[name] != after:
                self._write({**logs, name: after})

    def _read(self) -> dict[str, Entries]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            same = hmac.compare_digest(values["hmac"], self._code(values["logs"]))
            logs = {name: (n, head) for name, (n, head) in values["logs"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            same = False
        if not same:
            raise CorruptFileError(f"{self.path}: was changed; restore the file")
        return logs

    def _write(self, logs: dict[str, Entries]) -> None:
        text = json_text({"logs": logs, "hmac": self._code(logs)}, indent=1)
        with store.writing(self.path):
            store.replace_text(self.path, text + "\n", mode=0o600)

    def _signed(self, number: int) -> str:
        return f"{number}.{self._code({'counter': number})}"

    def _code(self, values: object) -> str:
        text = json.dumps(values, sort_keys=True)
        return hmac.digest(self.key, text.encode(), "sha256").hex()


def _folder_of_user() -> Path:
    state = Path(os.environ.get(_STATE) or "")
    if state.is_absolute():
        return state / _BUDGETS
    try:
        return Path.home() / ".local" / "state" / _BUDGETS
    except RuntimeError:
        raise SettingsError(
            f"there is no home folder: set {_STATE} to a folder for records of spent "
            "privacy budgets"
        ) from None
