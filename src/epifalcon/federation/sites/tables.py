"""What the server does with the rows of one exchange, for all sites at once."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.federation import server
from epifalcon.federation.messages import LocationUpload, PresenceUpload
from epifalcon.federation.server import EdgeCounts
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence
from epifalcon.hypergraph.operator import Operator
from epifalcon.types import Mask


class Table(Protocol):
    """Sums over sites; ``counts`` and ``shared`` are what each site is told."""

    known: EdgeCounts
    shared: dict[str, Mask]
    """By site: which of its keys other sites claim too."""

    def rows_of(self, site: str) -> int | None:
        """How many rows an upload of the site has; None where each has its key."""

    def keys_of(self, site: str) -> EdgeKeys:
        """The keys at which a site that sends sums sends them."""

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """What each site of ``uploads`` gets back."""


class PlaceTable:
    """Sums at keys (algorithm 1); each site gets those at its keys."""

    def __init__(self, presence: Mapping[str, PresenceUpload], rows: bool) -> None:
        self.known, self.shared = _count(presence)
        self._rows = rows
        self._keys = {
            site: upload.keys if rows else upload.keys[self.shared[site]]
            for site, upload in presence.items()
        }

    def rows_of(self, site: str) -> int | None:
        """One for each shared key."""
        return None if self._rows else len(self._keys[site])

    def keys_of(self, site: str) -> EdgeKeys:
        """The shared keys, all with ``rows``."""
        return self._keys[site]

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over all uploads."""
        sums = server.add_up(list(uploads.values()), self.known)
        places = {site: self.known.places(self._keys[site]) for site in uploads}
        return {site: sums[torch.from_numpy(place)] for site, place in places.items()}


class Stack:
    """The rows of all sites in one tensor, one site's below another's."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        ends = np.cumsum([0, *rows.values()]).tolist()
        self._slices = {
            site: slice(*bounds)
            for site, bounds in zip(rows, pairwise(ends), strict=True)
        }
        self.rows: int = ends[-1]

    def first(self, site: str) -> int:
        """Where the site's rows begin."""
        return int(self._slices[site].start)

    def rows_of(self, site: str) -> int:
        """How many are the site's."""
        part = self._slices[site]
        return int(part.stop - part.start)

    def stacked(self, uploads: Mapping[str, LocationUpload]) -> Tensor:
        """All rows, (rows, width); zeros for sites that sent none."""
        one = next(iter(uploads.values())).rows
        whole = one.new_zeros(self.rows, one.shape[1])
        for site, upload in uploads.items():
            whole[self._slices[site]] = upload.rows
        return whole

    def parted(self, whole: Tensor, sites: Iterable[str]) -> dict[str, Tensor]:
        """The rows of each of ``sites``."""
        return {site: whole[self._slices[site]] for site in sites}


class GroupTable:
    """Rows of groups of places; each group gets its places' means, added up."""

    def __init__(
        self,
        presence: Mapping[str, PresenceUpload],
        group: Mapping[str, NDArray[np.int64]],
    ) -> None:
        self.known, self.shared = _count(presence)
        leaving = {
            site: np.unique(group[site][self.shared[site]], return_inverse=True)
            for site in presence
        }
        self._stack = Stack({site: len(found) for site, (found, _) in leaving.items()})
        place = np.concatenate(
            [
                self.known.places(upload.keys)[self.shared[site]]
                for site, upload in presence.items()
            ]
        )
        column = np.concatenate(
            [at + self._stack.first(site) for site, (_, at) in leaving.items()]
        )
        # Only places that several sites claim have a row here.
        claimed, row = np.unique(place, return_inverse=True)
        ones = np.ones(len(row))
        self._claims: sp.csr_array = sp.csr_array(
            (ones, (row, column)), (len(claimed), self._stack.rows)
        )
        self._counts = self.known.counts[claimed]

    def rows_of(self, site: str) -> int | None:
        """One for each group with a shared key."""
        return self._stack.rows_of(site)

    def keys_of(self, site: str) -> EdgeKeys:
        """Numbers of the site's groups; no key is told with them."""
        return np.arange(self._stack.rows_of(site), dtype=np.int64)

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over each group's places of the mean at each."""
        whole = self._stack.stacked(uploads)
        kind = np.float64 if whole.dtype == torch.float64 else np.float32
        if self._claims.dtype != kind:
            self._claims = sp.csr_array(self._claims.astype(kind))
        means = self._claims @ whole.numpy()
        means /= self._counts.astype(kind)[:, None]
        back = torch.from_numpy(self._claims.T @ means)
        return self._stack.parted(back, uploads)


class PersonTable:
    """Rows of people; each gets its places' means, added up."""

    def __init__(
        self,
        presence: Mapping[str, PresenceUpload],
        claims: Mapping[str, Incidence],
    ) -> None:
        self.known, self.shared = _count(presence)
        self._stack = Stack({site: inc.people for site, inc in claims.items()})
        self._operator = Operator.of(Incidence.joined(list(claims.values())))

    def rows_of(self, site: str) -> int | None:
        """One for each person."""
        return self._stack.rows_of(site)

    def keys_of(self, site: str) -> EdgeKeys:
        """Numbers of the site's people."""
        return np.arange(self._stack.rows_of(site), dtype=np.int64)

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over each person's places of the mean at each."""
        whole = self._stack.stacked(uploads).numpy()
        back = torch.from_numpy(self._operator.symmetric(whole).rows)
        return self._stack.parted(back, uploads)


def _count(
    presence: Mapping[str, PresenceUpload],
) -> tuple[EdgeCounts, dict[str, Mask]]:
    known = server.count_people(list(presence.values()))
    claimed = np.zeros(len(known.keys), np.int64)
    for upload in presence.values():
        claimed[known.places(upload.keys)] += 1
    shared = {
        site: claimed[known.places(upload.keys)] > 1
        for site, upload in presence.items()
    }
    return known, shared
