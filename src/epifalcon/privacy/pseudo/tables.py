"""The mobility model laid out for draws that stay within a domain."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.regions import EARTH_RADIUS_KM, Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.privacy.pseudo.shapes import Places, Ways
from epifalcon.privacy.pseudo.steps import kernel
from epifalcon.types import Floats


def require_match(traces: Traces, model: MobilityModel) -> None:
    """Raise ``DataError`` unless the model speaks of the traces' regions and slots."""
    pairs = {
        "regions": (len(model.regions), len(traces.regions)),
        "slots a day": (model.slots_per_day, traces.clock.slots_per_day),
    }
    for name, (of_model, of_traces) in pairs.items():
        if of_model != of_traces:
            raise DataError(
                f"the mobility model has {of_model} {name}, the traces {of_traces}"
            )


def lay_out_places(domains: Domains, weight: Floats) -> Places:
    """Lay out ``weight`` (slots a day, regions) for draws within a domain."""
    domain = domains.of_region
    member = np.argsort(domain, kind="stable")
    first = np.concatenate([[0], np.cumsum(domains.sizes)])
    group = domain[member].astype(np.int64)
    running = [_running_totals(row[member], group) for row in weight]
    return Places(domain, member.astype(np.int32), first, np.stack(running))


def lay_out_ways(model: MobilityModel, domains: Domains) -> Ways:
    """Lay out the model's moves and its distance floor for draws within a domain.

    The floor's sums look once at every pair of regions, in constant memory.
    """
    joint, domain = model.joint, domains.of_region
    count = len(domains)
    row = np.repeat(np.arange(joint.shape[0]), np.diff(joint.indptr))
    group = row * count + domain[joint.indices]
    order = np.argsort(group, kind="stable")
    point, is_round = points_km(model.regions)
    floor = np.zeros((len(model.regions), count))
    if model.epsilon > 0:
        _add_kernel(point, is_round, domain, floor)
    floor *= model.epsilon
    total = np.bincount(row, joint.data, joint.shape[0]).astype(np.float64)
    total += np.tile(floor.sum(axis=1), model.slots_per_day)
    return Ways(
        first=joint.indptr.astype(np.int64),
        there=joint.indices[order].astype(np.int32),
        running=_running_totals(joint.data[order], group[order]),
        floor=floor,
        total=total,
        point=point,
        round=is_round,
        epsilon=float(model.epsilon),
    )


def points_km(regions: Regions) -> tuple[Floats, bool]:
    """Points (regions, 3) in kilometres, and whether they lie on a sphere."""
    if regions.lonlat is None:
        flat = np.zeros((len(regions), 1))
        return np.hstack([regions.centre_km, flat]), False
    lon, lat = np.radians(regions.lonlat).T
    unit = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    return EARTH_RADIUS_KM * np.stack(unit, axis=1), True


@njit(cache=True, nogil=True)
def _running_totals(value: Floats, group: NDArray[np.int64]) -> Floats:
    """Running totals that begin anew with each group of neighbours."""
    made = np.empty(value.size)
    total = 0.0
    for cell in range(value.size):
        if cell > 0 and group[cell] != group[cell - 1]:
            total = 0.0
        total += value[cell]
        made[cell] = total
    return made


@njit(cache=True, nogil=True)
def _add_kernel(
    point: Floats, is_round: bool, domain: NDArray[np.int32], total: Floats
) -> None:
    """Add the kernel from each region to all of each domain: (regions, domains)."""
    for here in range(len(point)):
        for there in range(len(point)):
            total[here, domain[there]] += kernel(point, is_round, here, there)
