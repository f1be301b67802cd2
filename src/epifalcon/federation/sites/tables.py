"""What the server does with the rows of one exchange, for all sites at once."""

from collections.abc import Mapping
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


class GroupTable:
    """Rows of groups of places; each group gets its places' means, added up."""

    def __init__(
        self,
        presence: Mapping[str, PresenceUpload],
        group: Mapping[str, NDArray[np.int64]],
    ) -> None:
        self.known, self.shared = _count(presence)
        self._span: dict[str, tuple[int, int]] = {}
        rows, columns, width = [], [], 0
        for site, upload in presence.items():
            shared = self.shared[site]
            leaving, column = np.unique(group[site][shared], return_inverse=True)
            self._span[site] = width, width + len(leaving)
            rows.append(self.known.places(upload.keys)[shared])
            columns.append(column + width)
            width += len(leaving)
        place, column = np.concatenate(rows), np.concatenate(columns)
        # Only places that several sites claim have a row here.
        claimed, row = np.unique(place, return_inverse=True)
        ones = np.ones(len(row))
        self._claims: sp.csr_array = sp.csr_array(
            (ones, (row, column)), (len(claimed), width)
        )
        self._counts = self.known.counts[claimed]

    def rows_of(self, site: str) -> int | None:
        """One for each group with a shared key."""
        first, end = self._span[site]
        return end - first

    def keys_of(self, site: str) -> EdgeKeys:
        """Numbers of the site's groups; no key is told with them."""
        return np.arange(self.rows_of(site) or 0, dtype=np.int64)

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over each group's places of the mean at each."""
        first = next(iter(uploads.values())).rows
        whole = first.new_zeros(self._claims.shape[1], first.shape[1])
        for site, upload in uploads.items():
            whole[slice(*self._span[site])] = upload.rows
        kind = np.float64 if first.dtype == torch.float64 else np.float32
        if self._claims.dtype != kind:
            self._claims = sp.csr_array(self._claims.astype(kind))
        means = self._claims @ whole.numpy()
        means /= self._counts.astype(kind)[:, None]
        back = torch.from_numpy(self._claims.T @ means)
        return {site: back[slice(*self._span[site])] for site in uploads}


class PersonTable:
    """Rows of people; each gets its places' means, added up."""

    def __init__(
        self,
        presence: Mapping[str, PresenceUpload],
        claims: Mapping[str, Incidence],
    ) -> None:
        self.known, self.shared = _count(presence)
        self._span: dict[str, tuple[int, int]] = {}
        people = 0
        for site, inc in claims.items():
            self._span[site] = people, people + inc.people
            people += inc.people
        self._operator = Operator.of(Incidence.joined(list(claims.values())))

    def rows_of(self, site: str) -> int | None:
        """One for each person."""
        first, end = self._span[site]
        return end - first

    def keys_of(self, site: str) -> EdgeKeys:
        """Numbers of the site's people."""
        return np.arange(self.rows_of(site) or 0, dtype=np.int64)

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over each person's places of the mean at each."""
        first = next(iter(uploads.values())).rows
        whole = first.new_zeros(self._operator.people, first.shape[1])
        for site, upload in uploads.items():
            whole[slice(*self._span[site])] = upload.rows
        back = torch.from_numpy(self._operator.symmetric(whole.numpy()).rows)
        return {site: back[slice(*self._span[site])] for site in uploads}


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
