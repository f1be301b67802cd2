"""How a cohort's rows leave for its places, and what is made of what comes back.

By place: the messages of the paper, sums at keys or each row by itself, noise on
every claim. Where nothing is promised the same values need fewer bytes. By group:
places with the same members of the cohort have the same sum, so one row stands
for all of them, and what comes back is already the sum over these places. By
person: a person's row is the same at all its places, so it is sent once.

Sums at places that no other cohort claims are never sent: what would come back is
what was sent.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import client
from epifalcon.federation.client import Cohort, Surroundings
from epifalcon.federation.messages import EdgeReply, LocationUpload, all_finite
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence
from epifalcon.hypergraph.merging import ALONE, merge
from epifalcon.models.micro import Exchange
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.types import Floats, Mask


@dataclass(frozen=True, eq=False)
class Told:
    """What the server told of the places that a cohort claims."""

    keys: EdgeKeys
    """(keys,) as announced."""
    counts: Floats
    """(keys,) how many are taken to be there."""
    shared: Mask
    """(keys,) whether other cohorts claim the place too."""
    around: Surroundings


class Carrier(Protocol):
    """Carries the rows of one exchange after another."""

    def announced(self) -> dict[str, Tensor]:
        """What must be known of the places beside keys and counts, by name."""

    def sent(self, exchange: Exchange, key: NoiseKey, told: Told) -> dict[str, Tensor]:
        """What leaves, by name; ``rows`` is always there."""

    def received(self, exchange: Exchange, came: Tensor, told: Told) -> Tensor:
        """What each person receives, (people, width), from the answer to ``sent``."""


class ByPlace:
    """Sums at shared keys or, with ``rows``, each person's row at each claim."""

    def __init__(self, cohort: Cohort, plan: PrivacyPlan, rows: bool) -> None:
        self._cohort, self._plan, self._rows = cohort, plan, rows
        self._last: LocationUpload | None = None

    def announced(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def sent(self, exchange: Exchange, key: NoiseKey, told: Told) -> dict[str, Tensor]:
        """Rows, and where each has its own also keys and people."""
        upload = client.location_upload(
            self._cohort, exchange, self._plan, key, self._rows
        )
        self._last = upload
        if upload.person is None:
            return {"rows": upload.rows[_places(told.shared)]}
        return {
            "rows": upload.rows,
            "keys": torch.from_numpy(np.array(upload.keys)),
            "person": torch.from_numpy(np.array(upload.person)),
        }

    def received(self, exchange: Exchange, came: Tensor, told: Told) -> Tensor:
        """From sums at the keys for which rows were sent."""
        last = self._last
        if last is None:
            raise DataError("nothing was sent yet")
        place = _places(told.shared)
        if last.person is not None:
            place = torch.arange(len(told.keys))
        require_reply(came, (len(place), last.rows.shape[1]), last.rows.dtype)
        whole = came
        if last.person is None:
            whole = last.rows.clone()
            whole[place] = came
        reply = EdgeReply(last.round, last.channel, told.keys, whole, told.counts)
        incidence, share = self._cohort.incidence, told.around.share
        return client.receive(incidence, share, exchange, reply)


class ByGroup:
    """One row for all places with the same members of the cohort."""

    def __init__(self, incidence: Incidence) -> None:
        self._members, self._group = _groups(incidence)
        self._rows: Tensor | None = None
        self._ready: tuple[Told, NDArray[np.int64], Floats] | None = None

    def announced(self) -> dict[str, Tensor]:
        """The group of each key."""
        return {"group": torch.from_numpy(self._group)}

    def sent(self, exchange: Exchange, key: NoiseKey, told: Told) -> dict[str, Tensor]:
        """A row for each group with a shared place."""
        del key
        self._rows = torch.from_numpy(self._of(exchange.rows) @ exchange.rows.numpy())
        leaving, _ = self._prepared(told)
        return {"rows": self._rows[torch.from_numpy(leaving)]}

    def received(self, exchange: Exchange, came: Tensor, told: Told) -> Tensor:
        """From the sums over each group's shared places, divided by their counts."""
        rows = self._rows
        if rows is None:
            raise DataError("nothing was sent yet")
        leaving, own = self._prepared(told)
        require_reply(came, (len(leaving), rows.shape[1]), rows.dtype)
        passed = rows * torch.from_numpy(own).to(rows.dtype).unsqueeze(1)
        passed[torch.from_numpy(leaving)] += came
        back = torch.from_numpy(self._of(rows).T @ passed.numpy())
        return back * told.around.share if exchange.kind == "upload" else back

    def _prepared(self, told: Told) -> tuple[NDArray[np.int64], Floats]:
        """Groups that leave, and 1/n_e summed over each group's own places."""
        if self._ready is None or self._ready[0] is not told:
            alone = ~told.shared
            own = np.bincount(
                self._group[alone], 1 / told.counts[alone], self._members.shape[0]
            )
            leaving = np.unique(self._group[told.shared])
            self._ready = told, leaving, own.astype(np.float64)
        return self._ready[1], self._ready[2]

    def _of(self, rows: Tensor) -> sp.csr_array:
        """The members as a matrix of the rows' type."""
        kind = np.float64 if rows.dtype == torch.float64 else np.float32
        if self._members.dtype != kind:
            self._members = sp.csr_array(self._members.astype(kind))
        return self._members


class ByPerson:
    """Each person's row once, and once at the beginning who is where."""

    def __init__(self, incidence: Incidence) -> None:
        self._incidence = incidence

    def announced(self) -> dict[str, Tensor]:
        """Who claims each key, by position in the cohort, in the order of the keys."""
        inc = self._incidence
        return {
            "start": torch.from_numpy(np.array(inc.by_edge.start)),
            "member": torch.from_numpy(np.array(inc.by_edge.index)),
            "size": torch.tensor([inc.regions, inc.windows]),
        }

    def sent(self, exchange: Exchange, key: NoiseKey, told: Told) -> dict[str, Tensor]:
        """The rows as they are."""
        del key, told
        return {"rows": exchange.rows}

    def received(self, exchange: Exchange, came: Tensor, told: Told) -> Tensor:
        """From the sums over each person's places of the mean at each."""
        rows = exchange.rows
        require_reply(came, (len(rows), rows.shape[1]), rows.dtype)
        return came * told.around.share if exchange.kind == "upload" else came


def require_reply(came: Tensor, shape: tuple[int, int], kind: torch.dtype) -> None:
    """Refuse a reply of another shape or type, or with numbers that are none."""
    if tuple(came.shape) != shape or came.dtype != kind:
        raise DataError(
            f"a reply of {came.dtype} and shape {tuple(came.shape)}, expected {kind} "
            f"and {shape}"
        )
    if not all_finite(came):
        raise DataError("a reply holds NaN or infinity")


def _places(mask: Mask) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


def _groups(inc: Incidence) -> tuple[sp.csr_array, NDArray[np.int64]]:
    """Members of each group, (groups, people), and the group of each edge.

    Behind the groups of two or more stands one for each person, for the places
    where it is alone.
    """
    found = merge(inc)
    single = np.arange(inc.people, dtype=np.int64)
    start = np.concatenate([found.rows.start, found.rows.start[-1] + single + 1])
    index = np.concatenate([found.rows.index, single])
    shape = (len(found) + inc.people, inc.people)
    members = sp.csr_array((np.ones(len(index)), index, start), shape=shape)
    group = found.group_of_edge.astype(np.int64)
    lonely = group == ALONE
    group[lonely] = len(found) + inc.by_edge.index[inc.by_edge.start[:-1][lonely]]
    return members, group
