"""The part of a process that another one started: it reports, and ends with it.

``attach`` is called once, first, by a process of ``studies.processes``.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from epifalcon import store
from epifalcon.errors import WriteError
from epifalcon.progress import Progress
from epifalcon.studies.run_folder import alone

STOPPED = 128 + int(signal.SIGTERM)
"""The exit code of a process that was asked to end."""
_TELL_SECONDS = 0.3
_LOCK_SECONDS = 20.0


def attach() -> Progress:
    """End with whoever started this process, and tell it of progress.

    Progress is told on standard output, one JSON document a line; what else is
    printed goes to standard error. SIGTERM ends by way of every ``finally``.
    """
    threading.Thread(target=_end_with_input, daemon=True).start()
    faulthandler.enable(2)
    signal.signal(signal.SIGTERM, _leave)
    _offer_to_be_killed()
    return _teller()


@contextlib.contextmanager
def patiently_alone(place: Path) -> Iterator[None]:
    """Hold ``place`` for this process.

    Another one that lost its starter may need a moment to end.
    """
    end = monotonic() + _LOCK_SECONDS
    with store.writing(place), contextlib.ExitStack() as stack:
        while not _taken(stack, place, patient=monotonic() < end):
            sleep(0.2)
        yield


def _taken(stack: contextlib.ExitStack, place: Path, *, patient: bool) -> bool:
    try:
        stack.enter_context(alone(place))
    except WriteError:
        if not patient:
            raise
        return False
    return True


def _end_with_input() -> None:
    """End without a word when whoever started this process is gone."""
    # Not by way of ``sys.stdin``: Python aborts where a thread holds it at the end.
    while os.read(0, 1):
        pass
    os._exit(128 + signal.SIGHUP)


def _teller() -> Progress:
    """Progress as lines on what was standard output; what methods print goes by."""
    line = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    last = 0.0

    def tell(name: str, done: int, total: int, told: str = "") -> None:
        nonlocal last
        now = monotonic()
        if now - last >= _TELL_SECONDS or done == total:
            last = now
            line.write(json.dumps([name, int(done), int(total), told]) + "\n")

    return tell


def _offer_to_be_killed() -> None:
    """Where memory runs out, this process shall end and not its starter."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _leave(_number: int, _frame: object) -> NoReturn:
    """End by way of every ``finally``, so that nothing half-written stays."""
    sys.exit(STOPPED)
