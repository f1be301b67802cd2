"""Transmission of each region, estimated from tested people between sweeps.

A region r multiplies every hazard in it by an unknown b_r. Given what the field
believes, a tested person knows two numbers for each region: Q, the chance to have
been infected there, and X, the hazard it would have borne there at b_r = 1 while
still susceptible. The infections of a region are then as good as a Poisson number
of mean b_r X, summed over people, and with a gamma prior of shape a and mean g the
posterior of b_r is a gamma distribution of

    mean      (Q_r + a) / (X_r + a / g)
    typical   exp(digamma(Q_r + a)) / (X_r + a / g) = exp(E[log b_r])

Hazards follow the mean; of which place infected whom people think by the typical
value, which is the smaller the less a region is known. The same step again after
each sweep is variational inference; with the mean in both places it would be the
EM algorithm, which takes its own guesses for evidence. Untested people are left
out: of them Q is what the present b says. Both sums are totals of a region; nobody
tells where it was infected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.spatial import cKDTree
from scipy.special import digamma

from epifalcon.mobility.flows import Flows
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.region_network import Tallies, foretold
from epifalcon.models.field.settings import Law, TransmissionSettings
from epifalcon.types import Floats

_NEIGHBOURS = 12
_LEAST, _MOST = 0.02, 50.0
_STEPS_TO_THE_MEAN = 30
_COMMON_PACE = 0.5
"""Share of the way, in logarithms, that a rate common to all regions goes in a sweep.
What people expect of each other follows some sweeps later, so at full pace the rate
swings around where it belongs, and short runs are judged at a wrong one."""


class Factor(NamedTuple):
    """What multiplies transmission, (days, 1 + regions) each; 0 is "not observed"."""

    mean: Floats
    typical: Floats
    """exp of the mean logarithm, over the mean: at most 1, less in doubt."""
    expected: Floats
    """What the law expects, before a region's own deviation from it."""

    def each(self, change: Callable[[Floats], Floats]) -> "Factor":
        """All three, changed alike."""
        return Factor(*map(change, self))


@dataclass(frozen=True, eq=False)
class Transmission:
    """One law with its settings, on the regions of a city."""

    law: Law
    settings: TransmissionSettings
    ties: sp.csr_array
    """(regions, regions) how much of a region's evidence counts for another."""
    flows: Flows | None = None
    """Where the law has a network."""

    @classmethod
    def of(
        cls,
        law: Law,
        settings: TransmissionSettings,
        regions: Regions,
        flows: Callable[[], Flows],
    ) -> "Transmission":
        """The law on these regions; ``flows`` is asked only where it counts."""
        if law == "flows":
            return cls(law, settings, _flow_ties(flows()))
        reach = settings.reach_km if law == "near" else 0.0
        ties = nearness(regions, reach)
        return cls(law, settings, ties, flows() if law == "dcrnn" else None)

    def counts_after(self, sweep: int) -> bool:
        """Whether transmission is estimated from the sums of ``sweep``."""
        return self.law != "one" and sweep >= self.settings.from_sweep

    def estimate(self, tally: Floats, factor: Factor, sweep: int) -> Factor:
        """The factors by ``tally`` (2, days, 1 + regions) of ``sweep``.

        ``tally`` holds infections and the hazard borne under ``factor``.
        """
        caught, borne = tally[0, :, 1:], (tally[1] / factor.mean)[:, 1:]
        expected = factor.expected[:, 1:]
        if self.law in ("scaled", "daily"):
            found = np.clip(self._expected(caught, borne), _LEAST, _MOST)
            common = expected * (found / expected) ** _COMMON_PACE
            return _factor(common, np.ones_like(common), common)
        if self._renews(sweep):
            expected = np.clip(self._expected(caught, borne), _LEAST, _MOST)
        shape = caught.sum(axis=0) + self._weight
        rate = (expected * borne).sum(axis=0) + self._weight
        typical = np.exp(digamma(shape)) / shape
        mean = np.clip(expected * shape / rate, _LEAST, _MOST)
        return _factor(mean, np.broadcast_to(typical, mean.shape), expected)

    @property
    def _weight(self) -> float:
        wish = self.settings
        return wish.mild_weight if self.law == "mild" else wish.weight

    def _renews(self, sweep: int) -> bool:
        """The network is trained anew only now and then."""
        since = sweep - self.settings.from_sweep
        return self.law != "dcrnn" or since % self.settings.network.every == 0

    def _expected(self, caught: Floats, borne: Floats) -> Floats:
        """What the law expects of each day and region, from all tallies."""
        if self.law == "scaled":
            return np.full(caught.shape, self._common(caught, borne))
        if self.law == "daily":
            return np.broadcast_to(self._daily(caught, borne)[:, None], caught.shape)
        of_region = caught.sum(axis=0), borne.sum(axis=0)
        mean = self._mean_of_regions(*of_region)
        if self.flows is not None:
            tallies = Tallies(caught, borne, mean)
            return foretold(tallies, self.flows, self.settings.network)
        around, expected = self._around(*of_region, mean), np.ones(caught.shape)
        return expected * around

    def _common(self, caught: Floats, borne: Floats) -> float:
        """The likeliest factor, where 1 is likeliest beforehand.

        With a Laplace prior of log b it is 1 until infections differ from what is
        expected by ``common_doubt`` standard errors, and then follows them less that.
        """
        infections, hazard = float(caught.sum()), float(borne.sum())
        doubt = self.settings.common_doubt * float(max(infections, 1.0) ** 0.5)
        if infections - doubt > hazard:
            return (infections - doubt) / hazard
        if infections + doubt < hazard:
            return (infections + doubt) / hazard
        return 1.0

    def _daily(self, caught: Floats, borne: Floats) -> Floats:
        """One rate each day: (days,)."""
        common, weight = self._common(caught, borne), self.settings.common_weight
        found: Floats = (caught.sum(axis=1) + weight) / (
            borne.sum(axis=1) + weight / common
        )
        return found

    def _mean_of_regions(self, caught: Floats, borne: Floats) -> float:
        """The mean of the prior, by maximum likelihood of all regions' tallies."""
        weight, anchor = self._weight, self.settings.common_weight
        seen, mean = borne > 0, 1.0
        # Regions of which little is known repeat what is expected of them, so the
        # mean of all comes to rest only after some steps.
        for _ in range(_STEPS_TO_THE_MEAN):
            own = (caught[seen] + weight) / (borne[seen] + weight / mean)
            mean = float((own.sum() + anchor) / (len(own) + anchor))
        return mean

    def _around(self, caught: Floats, borne: Floats, mean: float) -> Floats:
        """The mean, or what regions that are tied to each one show: (regions,)."""
        weight = self._weight
        found: Floats = (self.ties @ caught + weight) / (
            self.ties @ borne + weight / mean
        )
        return found


def _factor(mean: Floats, typical: Floats, expected: Floats) -> Factor:
    """With the place of those who were not observed, where nothing differs."""

    def padded(values: Floats) -> Floats:
        return np.pad(values, ((0, 0), (1, 0)), constant_values=1.0)

    return Factor(padded(mean), padded(typical), padded(expected))


def _flow_ties(flows: Flows) -> sp.csr_array:
    """The share of a region's comers and goers that each other region has."""
    total = sp.csr_array((flows.regions, flows.regions))
    for day in range(flows.days):
        moves = flows.moves(day)
        total = total + moves + moves.T
    whole = np.maximum(total.sum(axis=1), 1)
    return sp.csr_array(sp.diags_array(1 / whole) @ total)


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
