"""Falcon's two ends on NVFlare: the classes that a job of epifalcon names."""

from pathlib import Path

from epifalcon.federation.nvflare.jobs import Job
from epifalcon.federation.nvflare.one_run import (
    RUNS,
    Coordinator,
    OneRun,
    job_for,
    path_of,
)
from epifalcon.federation.sites.transport import Transport
from epifalcon.settings import build
from epifalcon.types import Plain

__all__ = ["CLASSES", "RUNS", "FalconCoordinator", "FalconSite", "job_of"]


class FalconCoordinator(Coordinator):
    """The server's end: one run over all sites of the job."""

    def go(self, transport: Transport, place: Path) -> None:
        """Run the method in the folder ``place``."""
        # What loads torch comes with the job, not with every process.
        from epifalcon.federation.sites.coordinating import Conduct, SitesRun
        from epifalcon.federation.sites.run import Order

        order = build(Order, self._order, "order")
        conduct = build(Conduct, self._conduct, "conduct")
        SitesRun(transport, place, order, conduct).go()


class FalconSite(OneRun):
    """A site's end: answers the calls of one run with its own people."""

    def __init__(self) -> None:
        super().__init__("epifalcon.federation.sites.run:SiteRun")


def job_of(
    run: str, order: Plain, conduct: Plain, minimum_sites: int, resume: bool = False
) -> Job:
    """The job of one run; ``order`` and ``conduct`` as plain values."""
    args = {"run": run, "order": order, "conduct": conduct, "resume": resume}
    return job_for((FalconCoordinator, FalconSite), args, minimum_sites)


CLASSES = (path_of(FalconCoordinator), path_of(FalconSite))
"""What sites and servers of epifalcon let a job of Falcon name."""
