"""Falcon's two ends on NVFlare: the classes that a job of epifalcon names."""

import threading
from pathlib import Path

from epifalcon.errors import DataError, EpifalconError, SettingsError
from epifalcon.federation.nvflare import outcomes
from epifalcon.federation.nvflare.jobs import Job, Part
from epifalcon.federation.sites.transport import Transport
from epifalcon.settings import build
from epifalcon.types import Plain

RUNS = "runs"
"""Folder in a kit with a folder for each run."""


class FalconCoordinator:
    """The server's end: one run over all sites of the job."""

    def __init__(self, run: str, order: Plain, conduct: Plain, resume: bool) -> None:
        self._run, self._order, self._conduct = run, order, conduct
        self._resume = resume

    def coordinate(self, transport: Transport, folder: Path) -> None:
        """Run to the end, or until too few sites are left; tell why if it fails."""
        try:
            self._coordinate(transport, folder)
        except EpifalconError as error:
            outcomes.tell(folder, error)
            raise

    def _coordinate(self, transport: Transport, folder: Path) -> None:
        # What loads torch comes with the job, not with every process.
        from epifalcon.federation.sites.coordinating import Conduct, SitesRun
        from epifalcon.federation.sites.files import require_run_name
        from epifalcon.federation.sites.run import Order

        place = folder / RUNS / require_run_name(self._run)
        if place.exists() and not self._resume:
            raise SettingsError(f"{place}: the run exists; go on with it by resume")
        order = build(Order, self._order, "order")
        conduct = build(Conduct, self._conduct, "conduct")
        SitesRun(transport, place, order, conduct).go()


class FalconSite:
    """A site's end: answers the calls of one run with its own people."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: tuple[str, Path] | None = None
        self._run: object | None = None

    def open(self, name: str, folder: Path) -> None:
        """Remember who and where this is; data are read when a run says hello."""
        # Seconds of imports, in parallel at all sites and before the first call.
        import epifalcon.federation.sites.run  # noqa: F401

        self._place = name, folder

    def answer(self, call: bytes) -> bytes:
        """Answer one call; a job has one run."""
        from epifalcon.federation.sites.files import SiteFiles
        from epifalcon.federation.sites.run import SiteRun
        from epifalcon.federation.sites.wire import heading_of

        if self._place is None:
            raise DataError("the site was not opened")
        with self._lock:
            if not isinstance(self._run, SiteRun):
                name, folder = self._place
                run = heading_of(call).run
                self._run = SiteRun(SiteFiles(folder), run, name)
            running = self._run
        return running.answer(call)


def job_of(
    run: str, order: Plain, conduct: Plain, minimum_sites: int, resume: bool = False
) -> Job:
    """The job of one run; ``order`` and ``conduct`` as plain values."""
    args = {"run": run, "order": order, "conduct": conduct, "resume": resume}
    return Job(
        name=run,
        coordinator=Part(path=path_of(FalconCoordinator), args=args),
        site=Part(path=path_of(FalconSite)),
        minimum_sites=minimum_sites,
    )


def path_of(kind: type) -> str:
    """The dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


CLASSES = (path_of(FalconCoordinator), path_of(FalconSite))
"""What sites and servers of epifalcon let a job name."""
