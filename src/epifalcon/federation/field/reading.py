"""What the server makes of noised sums: nothing in this file ever saw a person.

A region's people are told apart from everybody by their excess: how much more
infectious than everybody they expect to have been, in units of one known to be
positive. Of N people with the noised sum Y of excess in a region, the mean is read as

    Y0 / N0 + r (Y - N Y0 / N0) / N      r = (v N) / (v N + sigma^2)

Y0 and N0 of the whole city; v N is what the sums of N people truly differ by,
and v is the likeliest one by the received sums: without noise r is 1, and where
noise explains all differences as good as 0. Cells in time are read after that,
against what their region as a whole has shown.

With the excess known, both numbers that a place tells follow from how one known to
be positive differs from everybody (``Profile``): expected infectiousness and
evidence.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import Rates
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.tables import Manner, Told
from epifalcon.types import UNKNOWN, Floats

LEAST_CROWD = 0.5
_LEAST_EXCESS = 1e-9
_SPREADS = np.geomspace(1e-4, 1e1, 81)
"""Values of v that are tried, in the square of one known to be positive."""
_DOUBT = (np.log(_SPREADS / 0.1) / np.log(3.0)) ** 2
"""What speaks against each before anything is told: with a tenth of people known to
be positive and met by chance it is 0.1. Counts where regions are few."""
_CROWDS_APART = 2.0
"""How far the crowds of regions are apart at most, in their mean."""
_CITY_APART = 0.05
"""How far a city's mean excess may be from 0."""
_USUAL_SHARE, _SHARE_APART = 0.15, 0.1
"""What is thought of the share of positives before it is told."""


class Noisy(NamedTuple):
    """Noised sums (cells in time, regions) and their standard errors."""

    total: Floats
    sigma: Floats
    """0 where nobody sends."""


@dataclass(frozen=True, eq=False)
class Profile:
    """How people who have heard nothing yet think of themselves; public."""

    usual: Floats
    """(slots,) chance to be infectious of one who was not tested."""
    excess: Floats
    """(slots,) what one known to be positive at the end has more."""
    news: Floats
    """(slots,) evidence of one known to be positive at the end."""

    @classmethod
    def of(cls, told: Told, rates: Rates, clock: Clock, bound: float) -> "Profile":
        """Two people who are nowhere, one positive, live through ``told``."""
        nowhere = np.full((clock.slots, 2), UNKNOWN, np.int32)
        traces = Traces(nowhere, clock, Regions("area", np.zeros((1, 2))))
        tests = Known.from_tests(
            2, np.array([1]), np.array([True]), np.array([clock.slots - 1])
        )
        pair = Cohort.of(traces, tests, rates, TestErrors())
        told = told._replace(edges=np.zeros((clock.slots, 2, 4)))
        pair.sweep(told, Manner(1.0, np.ones(clock.slots), bound))
        usual, ill = pair.home.infectious.T.astype(np.float64)
        news = pair.home.evidence[:, 1].astype(np.float64)
        return cls(usual, np.maximum(ill - usual, _LEAST_EXCESS), news)

    def by_cell(self, length: int) -> Floats:
        """(cells in time,) the excess added up; its norm is what counts as 1."""
        found: Floats = self.excess.reshape(-1, length).sum(axis=1)
        return found


def read_crowd(presence: Noisy, people: int) -> Floats:
    """(regions,) people in each region at a time, from noised presence (1, regions).

    Scaled to ``people`` in all, and shrunk towards the mean of regions.
    """
    total, sigma = presence.total[0], presence.sigma[0]
    scale = people / max(float(total.sum()), 1.0)
    mean = people / total.size
    apart, noise = scale * total - mean, (scale * sigma) ** 2
    truly = min(max(float((apart**2 - noise).mean()), 0.0), (_CROWDS_APART * mean) ** 2)
    found = mean + truly / np.maximum(truly + noise, _LEAST_EXCESS) * apart
    return np.asarray(np.maximum(found, LEAST_CROWD))


def share_of_others(crowd: Floats) -> float:
    """The mean share of others among those present, by ``read_crowd``'s answer."""
    return float(np.maximum(crowd - 1, 0).sum() / crowd.sum())


def read_share(tested: float, positive: float, sigma: float) -> float:
    """The share of positives, by two noised numbers and what is usual."""
    tested = max(tested, 1.0)
    told = min(max(positive / tested, 0.0), 1.0)
    noise = (1 + told**2) * (sigma / tested) ** 2
    weight = _SHARE_APART**2 / (_SHARE_APART**2 + noise)
    return _USUAL_SHARE + weight * (told - _USUAL_SHARE)


def read_excess(sums: Noisy, crowd: Floats, profile: Floats) -> Floats:
    """(cells in time, regions) mean excess of people, in those known positive.

    ``crowd`` (regions,); ``profile`` (cells in time,) is the excess of one known to
    be positive, of norm 1.
    """
    # Noise is the same in all directions: along the profile it is that of one cell.
    weight = profile[:, None] * (sums.sigma > 0)
    there = (weight * profile[:, None]).sum(axis=0)
    along = (weight * sums.total).sum(axis=0)
    noise = np.sqrt(((weight * sums.sigma) ** 2).sum(axis=0))
    people = crowd * there
    city = _city(along, people, noise)
    apart = _kept(along - city * people, people, noise)
    whole = city + apart / np.maximum(people, LEAST_CROWD)
    found = np.tile(whole, (len(profile), 1))
    if len(profile) == 1:
        return found
    size = profile[:, None] * crowd
    left = sums.total - found * size
    return found + _kept(left, size, sums.sigma) / np.maximum(size, _LEAST_EXCESS)


def _city(along: Floats, people: Floats, sigma: Floats) -> float:
    """The city's mean excess: 0, unless the sums say otherwise.

    What the tested among its people have more or less makes up for each other.
    """
    count = max(float(people.sum()), LEAST_CROWD)
    truly, noise = _CITY_APART**2, float((sigma**2).sum()) / count**2
    return truly / (truly + noise) * float(along.sum()) / count


def _kept(apart: Floats, people: Floats, sigma: Floats) -> Floats:
    """What of each difference is no noise, where those of N people vary by v N."""
    told = sigma > 0
    if not told.any():
        return np.zeros_like(apart)
    seen, size, noise = apart[told], people[told], sigma[told] ** 2
    lost = [
        doubt + _unlikely(seen, spread * size + noise)
        for spread, doubt in zip(_SPREADS, _DOUBT, strict=True)
    ]
    truly = _SPREADS[int(np.argmin(lost))] * people
    return np.asarray(np.where(told, truly / (truly + sigma**2 + ~told), 0.0) * apart)


def _unlikely(seen: Floats, variance: Floats) -> float:
    """-2 log likelihood, but for a constant."""
    return float(np.sum(np.log(variance) + seen**2 / variance))
