"""A real server and two real sites on loopback."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import psutil

from epifalcon.federation.network.site_calls import PROGRESS, SUMMARY, RunOptions
from epifalcon.federation.nvflare.jobs import RUNS, Admin, connect, job_of
from epifalcon.federation.nvflare.processes import (
    ChildProcess,
    free_ports,
    running,
    wait_for_port,
)
from epifalcon.federation.nvflare.provisioning import Deployment, provision
from epifalcon.federation.preparation import split_sites
from epifalcon.studies.federation_rehearsal import write_site
from tests.studies import town

ROOT = Path(__file__).parents[3]
LOOPBACK = ROOT / "tests" / "federation" / "nvflare" / "loopback"
SITES = ("clinic", "school")
PATIENCE = 90.0


class Live:
    """Server, sites and administrator."""

    def __init__(self, folder: Path) -> None:
        port, admin_port = free_ports(2)
        ports = {"port": port, "admin_port": admin_port}
        deployment = Deployment(project="town", host="localhost", sites=SITES, **ports)
        # A blank in the path: kits stand where people put them.
        self.kits = provision(deployment, folder / "the kits")
        sites_data = split_sites(town.traces(), town.known(), len(SITES))
        for name, data in zip(SITES, sites_data, strict=True):
            write_site(self.kits[name], data, 0)
        self.outside = folder / "connections.txt"
        self.received = folder / "datums"
        """Folder of files that NVFlare takes from messages."""
        self.environment = {
            "PYTHONPATH": f"{LOOPBACK}:{ROOT}:{ROOT / 'src'}",
            "OMP_NUM_THREADS": "1",
            "EPIFALCON_CONNECTIONS": str(self.outside),
            "NVFLARE_DATUM_DIR": str(self.received),
        }
        self.processes: dict[str, ChildProcess] = {}

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        with connect(self.kits["admin"], PATIENCE) as session:
            session.wait_for_sites(len(SITES), PATIENCE)
            yield session

    def submit(self, admin, run_request, run, least=2, resume=False) -> str:
        options = RunOptions(scores=True)
        return admin.submit(job_of(run, run_request, options, least, resume=resume))

    def place(self, run: str) -> Path:
        return self.kits["server"] / RUNS / run

    def summary(self, run: str) -> dict:
        return json.loads((self.place(run) / SUMMARY).read_text())

    def reached(self, run: str, number: int) -> None:
        path = self.place(run) / PROGRESS

        def done() -> int:
            return json.loads(path.read_text())["round"] if path.exists() else 0

        until(lambda: done() >= number, f"round {number} of {run}")

    def job_process(self, party: str) -> int:
        """The process that does the party's part of the job."""
        children = psutil.Process(self.processes[party].process.pid).children()
        (found,) = [one for one in children if "job" in one.cmdline()]
        return found.pid

    def texts(self) -> str:
        """Everything any process wrote into a log."""
        names = product(("server", *SITES), ("console.txt", "log.txt", "audit.log"))
        files = [path for name, log in names for path in self.kits[name].rglob(log)]
        return "\n".join(path.read_text() for path in files)


@contextlib.contextmanager
def federation(folder: Path) -> Iterator[Live]:
    made = Live(folder)
    with running(made.kits, made.environment) as processes:
        made.processes = processes
        wait_for_port(processes["server"], PATIENCE)
        yield made


def until(ready, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"waited too long for {what}")
        time.sleep(0.02)


def leaks(text: str, places: Sequence[str]) -> list[str]:
    """Lines of a log that reveal a place, a person or a result."""
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
            ours = any(str(folder) in word for word in process.cmdline())
            if ours and process.pid != os.getpid():
                found.append(process.pid)
    return found
