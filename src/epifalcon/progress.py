"""Progress of long work, without knowing who displays it."""

from typing import Protocol


class Progress(Protocol):
    """Called with the name of the work, the steps done and all its steps."""

    def __call__(self, name: str, done: int, total: int, told: str = "") -> None: ...


def silent(name: str, done: int, total: int, told: str = "") -> None:
    """Display nothing."""
