"""How times and memory are taken: in turn, best of several, in a fresh process."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 2


@dataclass(frozen=True)
class Times:
    """Wall and CPU seconds of a job, each the best of its repeats."""

    wall: float = float("inf")
    busy: float = float("inf")


def in_a_process_of_its_own(module: str, *words: str) -> Any:  # noqa: ANN401
    """What ``python -m benchmarks.<module> <words>`` prints as JSON.

    What the module tells on stderr is passed on.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    return json.loads(done.stdout)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the work, and what it made."""
    begin = time.perf_counter()
    made = work()
    return time.perf_counter() - begin, made


def best(jobs: dict[str, tuple[Callable[[], object], int]]) -> dict[str, Times]:
    """Of each job the best times of its repeats, all jobs taken in turn."""
    found = dict.fromkeys(jobs, Times())
    turns = min(repeats for _, repeats in jobs.values())
    for _ in range(turns):
        for name, (job, repeats) in jobs.items():
            for _ in range(repeats // turns):
                began = time.process_time()
                wall, _ = timed(job)
                busy = time.process_time() - began
                so_far = found[name]
                found[name] = Times(min(so_far.wall, wall), min(so_far.busy, busy))
    return found


def compared(name: str, preset: str, ours: Times, peer: Times) -> dict[str, Any]:
    """The figures that every comparison of rounds begins with."""
    return {
        "name": name,
        "ours": 1e3 * ours.wall,
        "peer": 1e3 * peer.wall,
        "ratio": peer.wall / ours.wall,
        "unit": "ms",
        "preset": preset,
        "ours_cpu_ms": 1e3 * ours.busy,
        "peer_cpu_ms": 1e3 * peer.busy,
        "ratio_cpu": peer.busy / ours.busy,
    }


def peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
