"""Falcon Field's two ends on NVFlare: the classes that a job of it names."""

from pathlib import Path

from epifalcon.federation.nvflare.jobs import Job
from epifalcon.federation.nvflare.one_run import Coordinator, OneRun, job_for, path_of
from epifalcon.federation.sites.transport import Transport
from epifalcon.settings import build
from epifalcon.types import Plain


class FieldCoordinator(Coordinator):
    """The server's end: one run over all sites of the job."""

    def go(self, transport: Transport, place: Path) -> None:
        """Run the method in the folder ``place``."""
        # What loads torch comes with the job, not with every process.
        from epifalcon.federation.field.coordinating import FieldSitesRun
        from epifalcon.federation.field.task import FieldOrder
        from epifalcon.federation.sites.coordinating import Conduct

        order = build(FieldOrder, self._order, "order")
        conduct = build(Conduct, self._conduct, "conduct")
        FieldSitesRun(transport, place, order, conduct).go()


class FieldSite(OneRun):
    """A site's end: answers the calls of one run with its own people."""

    def __init__(self) -> None:
        super().__init__("epifalcon.federation.field.site:FieldSiteRun")


def job_of(
    run: str, order: Plain, conduct: Plain, minimum_sites: int, resume: bool = False
) -> Job:
    """The job of one run; ``order`` and ``conduct`` as plain values."""
    args = {"run": run, "order": order, "conduct": conduct, "resume": resume}
    return job_for((FieldCoordinator, FieldSite), args, minimum_sites)


CLASSES = (path_of(FieldCoordinator), path_of(FieldSite))
"""What sites and servers of epifalcon let a job of Falcon Field name."""
