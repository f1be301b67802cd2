"""What the ends of a job have in common, whichever method it runs."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from epifalcon.errors import DataError, EpifalconError, SettingsError
from epifalcon.federation.nvflare import outcomes
from epifalcon.federation.nvflare.jobs import Job, Part
from epifalcon.federation.sites.transport import Transport
from epifalcon.types import Plain

RUNS = "runs"
"""Folder in a kit with a folder for each run."""


class _Answers(Protocol):
    def answer(self, call: bytes) -> bytes: ...


def carry_out(
    folder: Path, run: str, resume: bool, go: Callable[[Path], object]
) -> None:
    """Let ``go`` work in the run's folder of the kit ``folder``; tell why if it fails.

    A run that exists is gone on with only by ``resume``.
    """
    # What loads torch comes with the job, not with every process.
    from epifalcon.federation.sites.files import require_run_name

    try:
        place = folder / RUNS / require_run_name(run)
        if place.exists() and not resume:
            raise SettingsError(f"{place}: the run exists; go on with it by resume")
        go(place)
    except EpifalconError as error:
        outcomes.tell(folder, error)
        raise


class OneRun:
    """A site's end of one run, made by the class ``module:name`` at its first call."""

    def __init__(self, kind: str) -> None:
        self._module, _, self._class = kind.partition(":")
        self._lock = threading.Lock()
        self._place: tuple[str, Path] | None = None
        self._run: _Answers | None = None

    def open(self, name: str, folder: Path) -> None:
        """Remember who and where this is; data are read when a run says hello."""
        # Seconds of imports, in parallel at all sites and before the first call.
        import_module(self._module)
        self._place = name, folder

    def answer(self, call: bytes) -> bytes:
        """Answer one call; a job has one run."""
        from epifalcon.federation.sites.files import SiteFiles
        from epifalcon.federation.sites.wire import heading_of

        if self._place is None:
            raise DataError("the site was not opened")
        with self._lock:
            if self._run is None:
                name, folder = self._place
                kind = getattr(import_module(self._module), self._class)
                made = kind(SiteFiles(folder), heading_of(call).run, name)
                self._run = cast(_Answers, made)
            running = self._run
        return running.answer(call)


class Coordinator(ABC):
    """A server's end: one run over all sites of the job."""

    def __init__(self, run: str, order: Plain, conduct: Plain, resume: bool) -> None:
        self._run, self._order, self._conduct = run, order, conduct
        self._resume = resume

    def coordinate(self, transport: Transport, folder: Path) -> None:
        """Run to the end, or until too few sites are left; tell why if it fails."""
        carry_out(
            folder, self._run, self._resume, lambda place: self.go(transport, place)
        )

    @abstractmethod
    def go(self, transport: Transport, place: Path) -> None:
        """Run the method in the folder ``place``."""


def job_for(
    ends: tuple[type[Coordinator], type[OneRun]],
    args: Plain,
    minimum_sites: int,
) -> Job:
    """The job whose ends are these classes; ``args`` are the coordinator's."""
    coordinator, site = map(path_of, ends)
    return Job(
        name=args["run"],
        coordinator=Part(path=coordinator, args=args),
        site=Part(path=site),
        minimum_sites=minimum_sites,
    )


def path_of(kind: type) -> str:
    """The dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"
