"""Records of how much was spent, outside of the folder that holds the ledger.

A copied or restored folder holds a ledger that lacks later releases. So the number of
its entries and the hash of the last one are also stored in a record, authenticated by a
secret of the run or site. A ledger that the record is ahead of is refused.

In one process the records of a user are in ``$XDG_STATE_HOME/epifalcon/budgets`` (by
default ``~/.local/state``). They protect against accidents, not against the user, who
can delete both.
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
from epifalcon.streams import derived_secret

_STATE, _BUDGETS = "XDG_STATE_HOME", "epifalcon/budgets"


@dataclass(frozen=True)
class SpendingRecord:
    """The newest state of one ledger or log, in the file ``path``."""

    path: Path
    key: bytes
    """Secret that authenticates the record."""

    @classmethod
    def of_user(cls, secret: int) -> "SpendingRecord":
        """Return the record of the ledger whose noise comes from ``secret``."""
        key = derived_secret(secret, "spending record").to_bytes(32, "big")
        name = hmac.digest(key, b"name", "sha256").hex()[:32]
        return cls(_folder_of_user() / f"{name}.json", key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes that spend from the same budget."""
        with store.writing(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), wait=True):
            yield

    def require(self, heads: Sequence[str], where: Path) -> None:
        """Refuse the ledger ``where`` if it lacks recorded entries.

        ``heads`` are the hashes after 0, 1, 2, ... entries. A ledger may be ahead of
        the record by the entries of a process that was killed.
        """
        found, entries = self._read(), len(heads) - 1
        if found is None:
            if entries:
                raise BudgetExceededError(
                    f"{where}: {self.path} is missing, which counts what this run "
                    "spent: continue the run where it was started, or copy that file "
                    "from there; nothing was released"
                )
            self.store(0, heads[0])
        elif found[0] >= len(heads) or heads[found[0]] != found[1]:
            raise BudgetExceededError(
                f"{where}: has {entries} entries, but {found[0]} were recorded in "
                f"{self.path}: this folder is a copy, or was restored from a backup. "
                "Continue the newest folder of this run, or start a new run; nothing "
                "was released"
            )

    def store(self, entries: int, head: str) -> None:
        """Replace the record, atomically; call it with the lock held."""
        values = {"entries": entries, "head": head}
        values |= {"hmac": self._hmac(entries, head)}
        with store.writing(self.path):
            store.replace_text(self.path, json.dumps(values) + "\n", mode=0o600)

    def _read(self) -> tuple[int, str] | None:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            entries, head = int(values["entries"]), str(values["head"])
            same = hmac.compare_digest(values["hmac"], self._hmac(entries, head))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            same = False
        if not same:
            raise CorruptFileError(f"{self.path}: was changed; restore the file")
        return entries, head

    def _hmac(self, entries: int, head: str) -> str:
        return hmac.digest(self.key, f"{entries} {head}".encode(), "sha256").hex()


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
