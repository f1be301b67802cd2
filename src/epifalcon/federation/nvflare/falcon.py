"""Falcon's two ends on NVFlare: the classes that a job of epifalcon names."""

from pathlib import Path

from epifalcon.federation.nvflare.jobs import Job, Part
from epifalcon.federation.nvflare.one_run import RUNS, OneRun, carry_out, path_of
from epifalcon.federation.sites.transport import Transport
from epifalcon.settings import build
from epifalcon.types import Plain

__all__ = ["CLASSES", "RUNS", "FalconCoordinator", "FalconSite", "job_of"]


class FalconCoordinator:
    """The server's end: one run over all sites of the job."""

    def __init__(self, run: str, order: Plain, conduct: Plain, resume: bool) -> None:
        self._run, self._order, self._conduct = run, order, conduct
        self._resume = resume

    def coordinate(self, transport: Transport, folder: Path) -> None:
        """Run to the end, or until too few sites are left; tell why if it fails."""

        def go(place: Path) -> None:
            # What loads torch comes with the job, not with every process.
            from epifalcon.federation.sites.coordinating import Conduct, SitesRun
            from epifalcon.federation.sites.run import Order

            order = build(Order, self._order, "order")
            conduct = build(Conduct, self._conduct, "conduct")
            SitesRun(transport, place, order, conduct).go()

        carry_out(folder, self._run, self._resume, go)


class FalconSite:
    """A site's end: answers the calls of one run with its own people."""

    def __init__(self) -> None:
        self._end = OneRun("epifalcon.federation.sites.run:SiteRun")

    def open(self, name: str, folder: Path) -> None:
        """Remember who and where this is; data are read when a run says hello."""
        self._end.open(name, folder)

    def answer(self, call: bytes) -> bytes:
        """Answer one call; a job has one run."""
        return self._end.answer(call)


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


CLASSES = (path_of(FalconCoordinator), path_of(FalconSite))
"""What sites and servers of epifalcon let a job of Falcon name."""
