"""Resources of the machine: cores, memory, and reuse of freed pages."""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_SPARED = 0.1
"""Share of the free memory left to other processes."""
_V2 = Path("/sys/fs/cgroup")
_V1 = Path("/sys/fs/cgroup/memory")
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of settings in glibc's ``malloc.h``."""
_DEFAULTS = {_MMAP_MAX: 65_536, _TRIM_THRESHOLD: 128 * 1024}
_REUSING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
_ROOM = 2.0
"""Required free memory per peak; fragmentation took up to 1.4 times the peak."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_mb() -> float:
    """Return 90 % of the free memory of the machine or container, in MB."""
    limits = [_machine_mb()]
    for group, limit, used in (
        (_V2, "memory.max", "memory.current"),
        (_V1, "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        # A missing file or the word "max" means no limit.
        with contextlib.suppress(OSError, ValueError):
            room = int((group / limit).read_text()) - int((group / used).read_text())
            limits.append((room + _cached(group / "memory.stat")) / 2**20)
    return max(0.0, min(limits)) * (1 - _SPARED)


def rss_mb(pid: int | None) -> float:
    """Return the resident memory of a process in MB; 0 if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * _PAGE_MB
    return 0.0


def peak_rss_mb() -> float:
    """Return the peak memory of this process in MB, excluding its parent (VmHWM)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1024)


@contextlib.contextmanager
def pages_reused() -> Iterator[Callable[[], None]]:
    """Yield a function to call after a first step, so later steps reuse its memory.

    Clearing and mapping new pages takes half of the processor time of a network over
    forty days. After the call, the process retains freed memory until the context ends,
    if more than twice its peak is still free. Without glibc it has no effect.
    """
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if not hasattr(library, "gnu_get_libc_version"):
        library = None
    reusing = False

    def reuse() -> None:
        nonlocal reusing
        if not reusing and library is not None and free_mb() > _ROOM * peak_rss_mb():
            _set_options(library, _REUSING)
            reusing = True

    try:
        yield reuse
    finally:
        if reusing and library is not None:
            _set_options(library, _DEFAULTS)
            library.malloc_trim(0)


def _set_options(library: ctypes.CDLL, values: dict[int, int]) -> None:
    for name, value in values.items():
        library.mallopt(name, value)


def _machine_mb() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.partition("MemAvailable:")[2].split()[0]) / 1024
    # On other systems, assume that half of all memory is free.
    return os.sysconf("SC_PHYS_PAGES") * _PAGE_MB / 2


def _cached(stat: Path) -> int:
    """Return the reclaimable file cache of a container in bytes."""
    for line in stat.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "total_inactive_file"}:
            return int(value)
    return 0
