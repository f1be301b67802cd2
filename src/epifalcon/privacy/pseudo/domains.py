"""Epidemic domains: regions that are alike in their cases and near each other.

Paper, "Epidemic Clustering". There the likeness of two regions is

    sim(r, r') = sum_t (x_t - x'_t) + gamma d(r, r')^-2

with x_t the new cases, and some clustering follows. As written, the first term
is no likeness: it is signed, so it changes with the order of the pair and grows
with the difference. It is read here as minus the distance of the two case
histories, and the second term, which falls with the distance on the ground, as
minus that distance weighted by gamma:

    sim(r, r') = - sum_t (sqrt x_t - sqrt x'_t)^2 - gamma |r - r'|^2,

each term over its mean square in the city. Then the likeness is a Euclidean
one and k-means finds the clusters without a table of all pairs. Square roots
give counts of any size the same spread, so that a few hot regions do not make
all domains.

The paper adds up all days, so a region has one domain for the whole time; with
a domain for each day, pseudo traces would have to jump at midnight.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from epifalcon.checks import non_negative, whole
from epifalcon.errors import DataError
from epifalcon.mobility.regions import Regions
from epifalcon.types import Floats


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """How regions are put together into epidemic domains."""

    count: int = 5
    """Domains wished for; small ones are dissolved, so there may be fewer. More of
    them keep pseudo places closer to the true ones' cases, and make pseudo
    traces easier to tell: see docs/explanation-pseudo-traces.md."""
    gamma: float = 1.0
    """Weight of the place against the cases: 0 is cases alone."""
    least_regions: int = 20
    """A domain has at least so many regions, or is the only one. Whoever knows
    the domains cannot narrow a place further down than this by them."""

    def __post_init__(self) -> None:
        whole(1, count=self.count, least_regions=self.least_regions)
        non_negative(gamma=self.gamma)


@dataclass(frozen=True, eq=False)
class Domains:
    """The domain of each region, and the regions of each domain.

    ``of_region`` (regions,) int32 numbers the domains from 0 without gaps.
    """

    of_region: NDArray[np.int32]

    def __post_init__(self) -> None:
        ids = self.of_region
        if ids.ndim != 1 or ids.dtype != np.int32 or not ids.size:
            raise DataError("of_region must be int32 numbers, one a region")
        if ids.min() < 0 or (np.bincount(ids) == 0).any():
            raise DataError("domains must be numbered from 0 without gaps")
        ids.setflags(write=False)

    def __len__(self) -> int:
        return int(self.of_region.max()) + 1

    @classmethod
    def single(cls, regions: int) -> "Domains":
        """One domain that holds every region."""
        return cls(np.zeros(regions, np.int32))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Regions in each domain: (domains,)."""
        return np.bincount(self.of_region)


def epidemic_domains(
    regions: Regions,
    cases: Floats,
    settings: DomainSettings,
    rng: np.random.Generator,
) -> Domains:
    """Cluster the regions by their reported cases (regions, days) and their place.

    k-means with greedy k-means++ seeds (scikit-learn); then clusters smaller than
    ``least_regions`` are dissolved, smallest first, into the nearest others. A region
    without a known place counts as in the middle of the city.
    """
    _require_cases(cases, len(regions))
    points = features(regions, cases, settings.gamma)
    count = min(settings.count, len(np.unique(points, axis=0)))
    seed = int(rng.integers(2**32))
    found = KMeans(count, n_init=1, random_state=seed).fit(points)
    label, apart = found.labels_.copy(), found.transform(points)
    while len(kept := np.unique(label)) > 1:
        size = np.bincount(label, minlength=count)
        gone = kept[size[kept].argmin()]
        if size[gone] >= settings.least_regions:
            break
        apart[:, gone] = np.inf
        moved = label == gone
        label[moved] = apart[moved].argmin(axis=1)
    return Domains(np.unique(label, return_inverse=True)[1].astype(np.int32))


def features(regions: Regions, cases: Floats, gamma: float) -> Floats:
    """Points (regions, days + 2) whose squared distances are minus the likeness."""
    place = regions.centre_km
    known = np.isfinite(place[:, 0]) & np.isfinite(place[:, 1])
    middle = place[known].mean(axis=0) if known.any() else np.zeros(2)
    ground = _unit_spread(np.where(known[:, None], place, middle))
    history = _unit_spread(np.sqrt(cases.astype(np.float64)))
    return np.hstack([history, np.sqrt(gamma) * ground])


def _unit_spread(columns: Floats) -> Floats:
    """Columns around 0 whose rows have a mean square of 1, or 0 if all are alike."""
    around = columns - columns.mean(axis=0)
    spread = np.sqrt(np.mean((around * around).sum(axis=1)))
    return np.asarray(around / spread if spread > 0 else np.zeros(around.shape))


def _require_cases(cases: Floats, regions: int) -> None:
    if cases.ndim != 2 or len(cases) != regions or cases.shape[1] == 0:
        raise DataError(
            f"cases have shape {cases.shape}, expected ({regions}, days) by region"
        )
    if not (np.isfinite(cases).all() and (cases >= 0).all()):
        raise DataError("cases must be numbers of 0 or more")
