"""Transmission of each region, estimated from tested people between sweeps.

A region r multiplies every hazard in it by an unknown b_r. Given what the field
believes, a tested person knows two numbers for each region: Q, the chance to have
been infected there, and X, the hazard it would have borne there at b_r = 1 while
still susceptible. The infections of a region are then as good as a Poisson number
of mean b_r X, summed over people, and with a gamma prior of weight a and mean g

    b_r = (Q_r + a) / (X_r + a / g)

The same step again after each sweep is the EM algorithm. Untested people are left
out: of them Q is what the present b says, and would only slow it down. Both sums
are totals of a region; nobody tells where it was infected.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.spatial import cKDTree

from epifalcon.mobility.regions import Regions
from epifalcon.models.field.settings import Law, TransmissionSettings
from epifalcon.types import Floats

_NEIGHBOURS = 12
_LEAST, _MOST = 0.02, 50.0


@dataclass(frozen=True, eq=False)
class Transmission:
    """One law with its settings, on the regions of a city."""

    law: Law
    settings: TransmissionSettings
    near: sp.csr_array
    """(regions, regions) how much of a region's evidence counts for another."""

    @classmethod
    def of(
        cls, law: Law, settings: TransmissionSettings, regions: Regions
    ) -> "Transmission":
        """The law on these regions."""
        reach = settings.reach_km if law == "near" else 0.0
        return cls(law, settings, nearness(regions, reach))

    def counts_after(self, sweep: int) -> bool:
        """Whether transmission is estimated from the sums of ``sweep``."""
        return self.law != "one" and sweep >= self.settings.from_sweep

    def estimate(self, tally: Floats, factor: Floats) -> Floats:
        """The factors (days, 1 + regions) by ``tally`` (2, days, 1 + regions).

        ``tally`` holds infections and the hazard borne under ``factor``.
        """
        caught = tally[0].sum(axis=0)[1:]
        borne = (tally[1] / factor).sum(axis=0)[1:]
        common = self._common(caught, borne)
        found = np.full(len(caught), common)
        if self.law in ("apart", "near"):
            weight = self.settings.weight
            around = (self.near @ caught + weight) / (
                self.near @ borne + weight / common
            )
            found = (caught + weight) / (borne + weight / around)
        found = np.clip(found, _LEAST, _MOST)
        return np.tile(np.append(1.0, found), (len(factor), 1))

    def _common(self, caught: Floats, borne: Floats) -> float:
        anchor = self.settings.common_weight
        common = (caught.sum() + anchor) / (borne.sum() + anchor)
        return float(np.clip(common, _LEAST, _MOST))


def nearness(regions: Regions, reach_km: float) -> sp.csr_array:
    """exp(-distance / reach) between each region and its nearest others.

    A region whose place is not known is near none.
    """
    count = len(regions)
    placed = np.flatnonzero(np.isfinite(regions.centre_km).all(axis=1))
    neighbours = min(_NEIGHBOURS, len(placed) - 1)
    if reach_km == 0 or neighbours < 1:
        return sp.csr_array((count, count))
    centre = regions.centre_km[placed]
    # One more is asked for: the nearest of all is the region itself.
    apart, found = cKDTree(centre).query(centre, k=neighbours + 1)
    own, other = np.repeat(placed, neighbours + 1), placed[np.ravel(found)]
    weight = np.where(other == own, 0.0, np.exp(-np.ravel(apart) / reach_km))
    return sp.csr_array((weight, (own, other)), shape=(count, count))
