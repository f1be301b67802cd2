"""What every run at a site begins and ends with, whatever its method.

The run's folder, which one process holds at a time; notes of what was told, which a
ledger must never be without; the promise that is added to those of all runs before;
what a site tells of itself; and risks that are written at home and given away only
where the site's policy says so.
"""

import torch

from epifalcon import store
from epifalcon.errors import CorruptFileError
from epifalcon.federation.sites.files import (
    PolicyError,
    SiteFiles,
    SitePolicy,
    risks_text,
)
from epifalcon.federation.sites.locks import FolderLock
from epifalcon.federation.sites.promises import PROMISES, Bound, Promise, admit
from epifalcon.federation.sites.switchboard import Payload
from epifalcon.federation.sites.trail import Noted
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_store import regions_sha256
from epifalcon.settings import as_plain
from epifalcon.types import Floats

LEDGER = "ledger.jsonl"
NOTED = "told.jsonl"
RISKS = "risks.csv"


class Door:
    """One run's folder at a site, and what may go in and out of it."""

    def __init__(self, files: SiteFiles, run: str) -> None:
        self.files, self.run = files, run
        self.folder = files.run(run)
        self._lock: FolderLock | None = None

    def hold(self) -> None:
        """Keep other processes from the run; once is enough."""
        if self._lock is None:
            self._lock = FolderLock(self.folder)

    def close(self) -> None:
        """Let another process take the run up."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def notes(self, *, kept: bool) -> Noted:
        """Of what was told; ``kept`` on the disk, where a ledger alone is refused."""
        if not kept:
            return Noted()
        noted = Noted(self.folder / NOTED)
        if not len(noted) and (self.folder / LEDGER).exists():
            raise CorruptFileError(
                f"{self.folder / NOTED}: is missing; begin a new run"
            )
        return noted

    def promise(self, new: Promise, policy: SitePolicy) -> None:
        """Refuse a promise that is too much, with those of all runs before."""
        bound = Bound(policy.most_epsilon, policy.delta, policy.relation)
        admit(self.files.folder / PROMISES, new, bound)

    def secret(self, policy: SitePolicy) -> int | None:
        """What noise is drawn from; None where the policy lets the seed tell it."""
        return None if policy.known_noise else self.files.noise_key(self.run)

    def write_risks(self, risk: Floats) -> None:
        """The risks of the site's people, to its own folder."""
        text = risks_text(dict(enumerate(risk.tolist())))
        store.replace_text(self.folder / RISKS, text)

    def given(
        self, risk: Floats, policy: SitePolicy, noted: Noted, found: str
    ) -> Payload:
        """The risks, where the policy gives them away, and upon one ``found`` alone.

        ``found`` tells what they follow from: upon anything else they would tell more
        of people than their risks.
        """
        if not policy.give_scores:
            raise PolicyError("give_scores", "this site keeps its scores")
        noted.require(0, "finish", found)
        return Payload({"scores": torch.from_numpy(risk.copy())})


def told_of(traces: Traces) -> Payload:
    """What a site tells of itself: how many people, which regions, which slots."""
    return Payload(
        told={
            "people": traces.people,
            "regions": len(traces.regions),
            "regions_sha256": regions_sha256(traces.regions),
            "clock": as_plain(traces.clock),
        }
    )
