"""What the server learns of its sites before the rounds: who they are, and sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation.preparing import StateMoments, StateScaling
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.remembering import Gathered, Trouble
from epifalcon.federation.sites.run import Order
from epifalcon.federation.sites.switchboard import Payload, Switchboard
from epifalcon.federation.sites.tallies import SiteTally
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.clock import Clock
from epifalcon.progress import Progress, silent
from epifalcon.settings import build
from epifalcon.types import Plain

_MOST_PEOPLE, _MOST_REGIONS, _MOST_SLOTS = 10**9, 10**7, 10**5
"""More than any city has: a site that says more would only cost memory."""
_ROUNDING = 1 + 1e-5


@dataclass(frozen=True)
class _City:
    """What all sites of a run must have in common."""

    clock: Clock
    regions: int
    regions_sha256: str


@dataclass(frozen=True)
class _Hello:
    """What a site said to ``hello``."""

    people: int
    city: _City


@dataclass(frozen=True)
class Met:
    """The sites of a run and what all of them have in common."""

    people: Mapping[str, int]
    """How many each site has, by name."""
    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    clock: Clock
    regions: int


def meet(board: Switchboard, told: Plain, known: Gathered | None) -> Met:
    """Say hello to all sites and number their people.

    ``told`` is what they are asked to take part in, ``known`` what was told before
    a break, if any: sites that were not there then are left out.
    """
    hello = {site: Payload(told=told) for site in board.present}
    met = board.ask(("hello", 0), hello, _read_hello)
    city = _common(met)
    for site in [site for site, one in met.items() if one.city != city]:
        why = _differing(met.pop(site), city)
        board.refuse(Trouble(site, 0, "hello", "refused", why))
    first = _numbers(met, known)
    board.keep_only(first)
    people = {site: met[site].people for site in first}
    return Met(people, first, city.clock, city.regions)


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
    scaling = StateScaling.of_moments(_spread(board, met, told))
    tensors["centre"] = torch.from_numpy(scaling.centre)
    tensors["factor"] = torch.from_numpy(scaling.factor)
    return Gathered(met.first, tensors, told, forecast)


def tell_again(board: Switchboard, order: Order, met: Met, known: Gathered) -> None:
    """Bring sites that have started again to where ``gather`` left them."""
    _count(board, order, met)
    if known.states is not None:
        _spread(board, met, known.states)


def _spread(board: Switchboard, met: Met, states: Tensor) -> StateMoments:
    """Tell region states; sums of what they are for the people of all sites."""
    calls = dict.fromkeys(board.attending, Payload({"states": states}))
    read = partial(_read_moments, people=met.people, states=states)
    moments = board.ask(("states", 0), calls, read)
    board.keep_only(moments)
    listed = [moments[site] for site in sorted(moments)]
    return sum(listed[1:], listed[0])


def _count(board: Switchboard, order: Order, met: Met) -> SiteTally:
    calls = {site: Payload(told={"first": one}) for site, one in met.first.items()}
    read = partial(_read_tally, settings=order.settings, met=met)
    counted = board.ask(("count", 0), calls, read)
    board.keep_only(counted)
    return tallies.total([counted[site] for site in sorted(counted)])


def _read_hello(site: str, answer: Parcel) -> _Hello:
    del site
    people, regions = answer.value("people"), answer.value("regions")
    if not (type(people) is int and type(regions) is int):
        raise DataError("people and regions must be whole numbers")
    if not (1 <= people <= _MOST_PEOPLE and 1 <= regions <= _MOST_REGIONS):
        raise DataError(f"{people:.4g} people in {regions:.4g} regions")
    clock = build(Clock, answer.value("clock"), "clock")
    if clock.slots > _MOST_SLOTS:
        raise DataError(f"{clock.slots} slots")
    told = str(answer.value("regions_sha256"))[:64]
    return _Hello(people, _City(clock, regions, told))


def _common(met: Mapping[str, _Hello]) -> _City:
    """The city that most sites have; of equally many, that of the first by name."""
    cities = [met[site].city for site in sorted(met)]
    return max(cities, key=lambda city: (cities.count(city), -cities.index(city)))


def _differing(said: _Hello, city: _City) -> str:
    names = ("clock", "regions", "regions_sha256")
    other = [one for one in names if getattr(said.city, one) != getattr(city, one)]
    return f"it has another city: its {other[0].removesuffix('_sha256')} differ"


def _numbers(met: Mapping[str, _Hello], known: Gathered | None) -> dict[str, int]:
    if known is not None:
        return {site: known.first[site] for site in sorted(met) if site in known.first}
    first, numbers = 0, {}
    for site in sorted(met):
        numbers[site] = first
        first += met[site].people
    return numbers


def _read_tally(
    site: str, answer: Parcel, *, settings: PredictionSettings, met: Met
) -> SiteTally:
    folds = settings.region.folds
    tensors = dict(answer.tensors)
    found = tallies.unpack(tensors, met.regions, met.clock, folds)
    tallies.require_counted(found, settings, met.people[site], met.clock)
    return found


def _read_moments(
    site: str, answer: Parcel, *, people: Mapping[str, int], states: Tensor
) -> StateMoments:
    total, squared = (answer.tensor(name).numpy() for name in ("total", "squared"))
    width, count = states.shape[-1], people[site]
    if answer.value("people") != count:
        raise DataError(f"sums of region states not of its {count:,} people")
    for one in (total, squared):
        if one.shape != (width,) or one.dtype != np.float64:
            raise DataError(f"sums of region states of {one.dtype} and {one.shape}")
    largest = float(states.abs().max()) if states.numel() else 0.0
    # A state at home is a mean of states; NaN is not within any bound.
    most = count * largest * _ROUNDING
    within = (np.abs(total) <= most).all() and (squared >= 0).all()
    if not (within and (squared <= most * largest * _ROUNDING).all()):
        raise DataError("sums of region states that its people cannot have")
    return StateMoments(count, total, squared)
