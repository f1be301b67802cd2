"""Processor time of a process, what it inherited of loaded libraries included."""

from time import process_time

_inherited = 0.0


def inherit(seconds: float) -> None:
    """Tell for how long libraries were loaded before this process was forked."""
    global _inherited
    _inherited = seconds


def inherited() -> float:
    """Seconds of loading that are to be counted with this process."""
    return _inherited


def cpu_seconds() -> float:
    """Of this process, as if it had loaded its libraries itself."""
    return _inherited + process_time()
