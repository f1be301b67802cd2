"""Progress callback of long computations, independent of the display."""

from typing import Protocol


class Progress(Protocol):
    """Callback with the name of the task, the steps done and the total steps."""

    def __call__(self, name: str, done: int, total: int, message: str = "") -> None: ...


def silent(name: str, done: int, total: int, message: str = "") -> None:
    """Ignore progress."""
