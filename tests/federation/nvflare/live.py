"""A federation on loopback whose coordinator follows a script that a test writes."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from epifalcon.federation.nvflare.admin import Admin, connect
from epifalcon.federation.nvflare.deployment import Deployment
from epifalcon.federation.nvflare.jobs import Job, Part
from epifalcon.federation.nvflare.kits import provision
from epifalcon.federation.nvflare.processes import (
    Party,
    free_ports,
    running,
    wait_for_port,
)
from tests.federation.nvflare.echo import CLASSES, ECHO

ROOT = Path(__file__).parents[3]
PATIENCE = 90.0
JOB = Job(
    name="echo",
    coordinator=Part(path=f"{ECHO}.ScriptedCoordinator", args={"patience": PATIENCE}),
    site=Part(path=f"{ECHO}.EchoSite"),
)
PATHS = f"{ROOT}:{ROOT / 'src'}"
"""Of processes under test: the tests, and the tree that they stand in."""
ENVIRONMENT = {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


class Live:
    """Server, sites and administrator, with at most one scripted job."""

    def __init__(self, kits: dict[str, Path], parties: dict[str, Party], admin: Admin):
        self.kits, self.parties, self.admin = kits, parties, admin
        self.sites = tuple(name for name in parties if name != "server")
        self.job = ""

    def begin(self) -> None:
        """Have a job running."""
        if self.job and not self.admin.job(self.job).finished:
            return
        self._results.unlink(missing_ok=True)
        self.job = self.admin.submit(JOB)
        until(lambda: len(self._lines) == 1, "the job to start")

    def end(self) -> str:
        """Have no job running; the last one's status."""
        if not self.job:
            return ""
        if not self.admin.job(self.job).finished:
            self._add(end=True)
        return self.admin.wait(self.job, PATIENCE).status

    def ask(self, calls: dict[str, str], timeout: float = PATIENCE) -> dict:
        return self.send(calls, timeout)()

    def send(self, calls: dict[str, str], timeout: float = PATIENCE):
        """Send calls now; what is returned waits for what came of them."""
        known = len(self._lines)
        self._add(calls=calls, timeout=timeout)

        def outcome() -> dict:
            until(lambda: len(self._lines) > known, "the sites to answer")
            return json.loads(self._lines[known])

        return outcome

    def process_of(self, site: str) -> int:
        """The process of the site's part of the job."""
        return json.loads(self.ask({site: "process"})["answers"][site])[0]

    def texts(self) -> str:
        """Everything any process wrote into a log."""
        files = [
            path
            for name in self.parties
            for pattern in ("console.txt", "log.txt", "audit.log")
            for path in self.kits[name].rglob(pattern)
        ]
        return "\n".join(path.read_text() for path in files)

    def _add(self, **step: object) -> None:
        with (self.kits["server"] / "script.jsonl").open("a") as file:
            file.write(json.dumps(step) + "\n")

    @property
    def _results(self) -> Path:
        return self.kits["server"] / "results.jsonl"

    @property
    def _lines(self) -> list[str]:
        text = self._results.read_text() if self._results.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextlib.contextmanager
def federation(folder: Path, sites: int) -> Iterator[Live]:
    port, admin_port = free_ports(2)
    deployment = Deployment(
        project="echo",
        host="localhost",
        port=port,
        admin_port=admin_port,
        sites=tuple(f"site-{number + 1}" for number in range(sites)),
    )
    # A blank in the path: kits stand where people put them.
    kits = provision(deployment, folder / "the kits", classes=CLASSES)
    with running(kits, ENVIRONMENT) as parties:
        wait_for_port(parties["server"], PATIENCE)
        with connect(kits["admin"], PATIENCE) as admin:
            admin.wait_for_sites(sites, PATIENCE)
            yield Live(kits, parties, admin)


def until(ready, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"waited too long for {what}")
        time.sleep(0.02)


def leaks(text: str, places: Sequence[str]) -> list[str]:
    """Lines of a log that tell of a place, a person or a result."""
    named = "|".join(re.escape(place) for place in places)
    pattern = re.compile(
        r"\b(infected|positive|negative|by_slot|status|risk)="
        r"|\b(tensor|array)\(|\bperson \d|\bprobability \d"
        + (rf"|\b({named})\b" if named else "")
    )
    return [line for line in text.splitlines() if pattern.search(line)]


def processes_of(folder: Path) -> list[int]:
    """Every process that was started with a path in ``folder``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = any(str(folder) in word for word in process.cmdline())
            if told and process.pid != os.getpid():
                found.append(process.pid)
    return found
