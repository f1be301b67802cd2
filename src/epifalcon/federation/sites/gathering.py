"""What the server learns of its sites before the rounds: who they are, and sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation.preparing import StateMoments, StateScaling
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.remembering import Gathered
from epifalcon.federation.sites.run import Order
from epifalcon.federation.sites.switchboard import Payload, Switchboard
from epifalcon.federation.sites.tallies import SiteTally
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.clock import Clock
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, build


@dataclass(frozen=True)
class _Hello:
    """What a site said to ``hello``."""

    people: int
    regions: int
    regions_sha256: str
    clock: Clock


@dataclass(frozen=True)
class Met:
    """The sites of a run and what all of them have in common."""

    people: Mapping[str, int]
    """How many each site has, by name."""
    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    clock: Clock
    regions: int


def meet(board: Switchboard, order: Order, known: Gathered | None) -> Met:
    """Say hello to all sites and number their people.

    ``known`` is what was told before a break, if any: sites that were not there
    then are left out.
    """
    told = {
        "settings": as_plain(order.settings),
        "rules": as_plain(order.rules),
        "seed": order.seed,
    }
    hello = {site: Payload(told=told) for site in board.present}
    met = board.ask(("hello", 0), hello, _read_hello)
    clock, regions = _agreed(met)
    first = _numbers(met, known)
    board.keep_only(first)
    people = {site: met[site].people for site in first}
    return Met(people, first, clock, regions)


def gather(
    board: Switchboard, order: Order, met: Met, progress: Progress = silent
) -> Gathered:
    """Add up what sites count, fit the region model, and scale its states."""
    settings = order.settings
    tally = _count(board, order, met)
    public = SiteTally(mobility=tally.mobility, reported=tally.reported)
    tensors = {f"tally/{name}": one for name, one in tallies.pack(public).items()}
    if not tallies.needs_region_model(settings):
        return Gathered(met.first, tensors)
    states, forecast = tallies.fit_region_states(
        tally, met.clock, settings, order.seed, progress
    )
    told = torch.from_numpy(states)
    scaling = StateScaling.of_moments(_spread(board, told))
    tensors["centre"] = torch.from_numpy(scaling.centre)
    tensors["factor"] = torch.from_numpy(scaling.factor)
    return Gathered(met.first, tensors, told, forecast)


def tell_again(board: Switchboard, order: Order, met: Met, known: Gathered) -> None:
    """Bring sites that have started again to where ``gather`` left them."""
    _count(board, order, met)
    if known.states is not None:
        _spread(board, known.states)


def _spread(board: Switchboard, states: Tensor) -> StateMoments:
    """Tell region states; sums of what they are for the people of all sites."""
    calls = dict.fromkeys(board.attending, Payload({"states": states}))
    moments = board.ask(("states", 0), calls, _read_moments)
    board.keep_only(moments)
    listed = [moments[site] for site in sorted(moments)]
    return sum(listed[1:], listed[0])


def _count(board: Switchboard, order: Order, met: Met) -> SiteTally:
    calls = {site: Payload(told={"first": one}) for site, one in met.first.items()}
    folds = order.settings.region.folds
    read = partial(_read_tally, regions=met.regions, clock=met.clock, folds=folds)
    counted = board.ask(("count", 0), calls, read)
    board.keep_only(counted)
    return tallies.total([counted[site] for site in sorted(counted)])


def _read_hello(site: str, answer: Parcel) -> _Hello:
    del site
    people, regions = answer.value("people"), answer.value("regions")
    if not (isinstance(people, int) and isinstance(regions, int)):
        raise DataError("people and regions must be whole numbers")
    if people < 1 or regions < 1:
        raise DataError(f"{people} people in {regions} regions")
    clock = build(Clock, answer.value("clock"), "clock")
    return _Hello(people, regions, str(answer.value("regions_sha256")), clock)


def _agreed(met: Mapping[str, _Hello]) -> tuple[Clock, int]:
    """Clock and number of regions, which must be the same everywhere."""
    first = met[min(met)]
    for site, one in sorted(met.items()):
        for name in ("clock", "regions", "regions_sha256"):
            if getattr(one, name) != getattr(first, name):
                raise DataError(
                    f"{site} has another city than {min(met)}: their "
                    f"{name.removesuffix('_sha256')} differ"
                )
    return first.clock, first.regions


def _numbers(met: Mapping[str, _Hello], known: Gathered | None) -> dict[str, int]:
    if known is not None:
        return {site: known.first[site] for site in sorted(met) if site in known.first}
    first, numbers = 0, {}
    for site in sorted(met):
        numbers[site] = first
        first += met[site].people
    return numbers


def _read_tally(
    site: str, answer: Parcel, *, regions: int, clock: Clock, folds: int
) -> SiteTally:
    del site
    return tallies.unpack(dict(answer.tensors), regions, clock, folds)


def _read_moments(site: str, answer: Parcel) -> StateMoments:
    del site
    total, squared = (answer.tensor(name).numpy() for name in ("total", "squared"))
    people = answer.value("people")
    if not isinstance(people, int) or total.shape != squared.shape:
        raise DataError("sums of region states are not whole")
    if not (np.isfinite(total).all() and np.isfinite(squared).all()):
        raise DataError("sums of region states hold NaN or infinity")
    return StateMoments(people, total, squared)
