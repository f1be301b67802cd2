"""What the server learns of its sites before the rounds: who they are, and sums.

Sites answer a repeated round only upon equal requests. So a server stores what it sent
before the rounds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.errors import DataError
from epifalcon.federation import tallies
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.federation.messages import (
    Count,
    Counted,
    Hello,
    Prepare,
    SiteFacts,
    States,
    StateSums,
)
from epifalcon.federation.preparing import StateMoments, StateScaling
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.sites.switchboard import Switchboard, Trouble
from epifalcon.federation.tallies import SiteTally
from epifalcon.mobility.clock import Clock
from epifalcon.models.tensor_files import read_tensors, tensors_under, write_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import build

PREPARATION = "preparation"
_TENSORS = "tensors.safetensors"
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


@dataclass(frozen=True, eq=False)
class Gathered:
    """What every site is sent before the rounds; stored to send the same again."""

    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    prepare: Prepare
    states: NDArray[np.float32] | None = None
    """Region states, (1 + folds, regions, days, width); None without region model."""
    forecast: dict[str, Any] | None = None
    """How the region model's forecasts were judged."""

    @property
    def state_width(self) -> int:
        """Of region states; 0 without region model."""
        return 0 if self.states is None else int(self.states.shape[-1])

    def of(self, sites: Iterable[str]) -> "Gathered":
        """The same for those sites alone."""
        return replace(self, first={site: self.first[site] for site in sites})

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write it into the run's folder, completely or not at all."""
        named = {f"tally/{name}": one for name, one in self.prepare.tally.items()}
        arrays = {
            "states": self.states,
            "centre": self.prepare.centre,
            "factor": self.prepare.factor,
        }
        named |= {
            name: torch.from_numpy(one)
            for name, one in arrays.items()
            if one is not None
        }
        meta = {"first": self.first, "forecast": self.forecast}
        with store.new_directory(folder / PREPARATION) as scratch:
            write_tensors(scratch / _TENSORS, named)
            store.write_manifest(scratch, PREPARATION, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, origin: store.Origin) -> "Gathered | None":
        """Read what ``save`` wrote for the same settings and seed; None without."""
        place = folder / PREPARATION
        if not place.exists():
            return None
        manifest = verified(place)
        require_same(place, manifest, origin, exact=False)
        tensors, meta = read_tensors(place / _TENSORS), manifest["meta"]
        arrays = {name: one.numpy() for name, one in tensors.items()}
        prepare = Prepare(
            0,
            tensors_under(tensors, "tally/"),
            arrays.get("centre"),
            arrays.get("factor"),
        )
        states = arrays.get("states")
        return cls(dict(meta["first"]), prepare, states, meta["forecast"])


def meet(board: Switchboard, hello: Hello, known: Gathered | None) -> Met:
    """Say hello to all sites and number their people.

    ``known`` is what was sent before an interruption, if any: sites that were not
    there then are left out.
    """
    met = board.ask(0, dict.fromkeys(board.present, hello), SiteFacts, _read_hello)
    city = _common(met)
    for site in [site for site, one in met.items() if one.city != city]:
        why = _differing(met.pop(site), city)
        board.refuse(Trouble(site, 0, "hello", "refused", why))
    first = _numbers(met, known)
    board.keep_only(first)
    people = {site: met[site].people for site in first}
    return Met(people, first, city.clock, city.regions)


def gather(
    board: Switchboard, order: FalconOrder, met: Met, progress: Progress = silent
) -> Gathered:
    """Add up what sites count, fit the region model, and scale its states."""
    settings = order.settings
    tally = _count(board, order, met)
    public = SiteTally(mobility=tally.mobility, reported=tally.reported)
    prepare = Prepare(0, tallies.pack(public))
    if not settings.uses_region_model:
        return Gathered(met.first, prepare)
    fitted = tallies.fit_region_states(tally, met.clock, settings, order.seed, progress)
    scaling = StateScaling.of(_spread(board, met, fitted.states), settings)
    prepare = replace(prepare, centre=scaling.centre, factor=scaling.factor)
    return Gathered(met.first, prepare, fitted.states, fitted.forecast)


def tell_again(
    board: Switchboard, order: FalconOrder, met: Met, known: Gathered
) -> None:
    """Bring sites that have started again to where ``gather`` left them."""
    _count(board, order, met)
    if known.states is not None:
        _spread(board, met, known.states)


def _spread(board: Switchboard, met: Met, states: NDArray[np.float32]) -> StateMoments:
    """Send region states; sum up what they are for the people of all sites."""
    requests = dict.fromkeys(board.attending, States(states))
    check = partial(_read_moments, people=met.people, states=states)
    moments = board.ask(0, requests, StateSums, check)
    board.keep_only(moments)
    listed = [moments[site] for site in sorted(moments)]
    return sum(listed[1:], listed[0])


def _count(board: Switchboard, order: FalconOrder, met: Met) -> SiteTally:
    requests = {site: Count(one) for site, one in met.first.items()}
    check = partial(_read_tally, settings=order.settings, met=met)
    counted = board.ask(0, requests, Counted, check)
    board.keep_only(counted)
    return tallies.total([counted[site] for site in sorted(counted)])


def _read_hello(site: str, answer: SiteFacts) -> _Hello:
    del site
    people, regions = answer.people, answer.regions
    if not (1 <= people <= _MOST_PEOPLE and 1 <= regions <= _MOST_REGIONS):
        raise DataError("numbers of people or regions are out of range")
    clock = build(Clock, answer.clock, "clock")
    if clock.slots > _MOST_SLOTS:
        raise DataError(f"{clock.slots} slots")
    return _Hello(people, _City(clock, regions, answer.regions_sha256[:64]))


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
    site: str, answer: Counted, *, settings: PredictionSettings, met: Met
) -> SiteTally:
    folds = settings.region.folds
    found = tallies.unpack(answer.tally, met.regions, met.clock, folds)
    tallies.require_counted(found, settings, met.people[site], met.clock)
    return found


def _read_moments(
    site: str,
    answer: StateSums,
    *,
    people: Mapping[str, int],
    states: NDArray[np.float32],
) -> StateMoments:
    total, squared = answer.total, answer.squared
    width, count = states.shape[-1], people[site]
    if answer.people != count:
        raise DataError(f"sums of region states not of its {count:,} people")
    for one in (total, squared):
        if one.shape != (width,):
            raise DataError(f"sums of region states of shape {one.shape}")
    largest = float(np.abs(states).max()) if states.size else 0.0
    # A person's state is a mean of states; NaN is not within any bound.
    most = count * largest * _ROUNDING
    within = (np.abs(total) <= most).all() and (squared >= 0).all()
    if not (within and (squared <= most * largest * _ROUNDING).all()):
        raise DataError("sums of region states that its people cannot have")
    return StateMoments(count, total, squared)
