"""Sweeps: what the server does between two exchanges, as pure functions.

    stage = begin(exchange, city, start, settings)
    for _ in range(settings.sweeps - 1):
        stage = go_on(exchange, city, stage, settings)
    end(exchange, city, stage, settings)

``infer`` does so, and estimates transmission on the way. An ``Exchange`` takes what
the places tell to all people and brings the sums of what they send: in one process,
with noise, or over a network. The server sees sums alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.models.field.disease import MOST_CHANCE, Rates
from epifalcon.models.field.places import (
    City,
    Places,
    renewed,
    told_at_first,
    told_by,
)
from epifalcon.models.field.settings import FieldSettings
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.models.field.transmission import Factor, Transmission
from epifalcon.types import Floats

_LEAST_PACE = 0.1


class Exchange(Protocol):
    """The way to all people and back."""

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring the sums of what they send."""
        ...

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        ...


@dataclass(frozen=True)
class Start:
    """What is thought of everybody before anything was sent."""

    hazard: Floats
    """(slots,)"""
    growth: float
    """How many times more people were infected at the end than at the start."""

    @classmethod
    def of(cls, known: Known, rates: Rates, slots: int) -> "Start":
        """By the share of positives among the tested of ``known``."""
        tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
        return cls.by_share(tested, positive, rates, slots)

    @classmethod
    def by_share(
        cls, tested: float, positive: float, rates: Rates, slots: int
    ) -> "Start":
        """As if the outbreak had grown by one factor a slot.

        From the seeds to the share of positives among the tested, the same for
        everybody.
        """
        share = (positive + rates.seeded) / (tested + 1)
        first = min(rates.seeded, share / 2)
        way = np.arange(slots + 1) / slots
        infected = np.minimum(first * (share / first) ** way, MOST_CHANCE)
        return cls(-np.diff(np.log1p(-infected)), share / first)


@dataclass(frozen=True, eq=False)
class Stage:
    """Where the server stands after a sweep."""

    places: Places
    factor: Factor
    """By which transmission differs from the pathogen's."""
    sums: Sums
    """Of the latest sweep, as they were brought."""
    caution: Floats
    """(slots,) what evidence is renewed by, relative to the last slot."""
    pace: float = 1.0
    turn: Floats | None = None
    """By how much the latest evidence differed from the evidence in force."""
    sweep: int = 0
    """Exchanges so far."""


def infer(
    exchange: Exchange,
    city: City,
    start: "Start | Stage",
    settings: FieldSettings,
    transmission: Transmission,
    tell_of: Callable[[int], None],
) -> Stage:
    """All sweeps, or those that a stage still lacks; people then know their risks.

    Transmission is estimated from the sums that a sweep brings anyway, and counts
    from the next one on.
    """
    stage = start
    if isinstance(stage, Start):
        stage = begin(exchange, city, stage, settings)
    for number in range(stage.sweep + 1, settings.sweeps + 1):
        tally = transmission.counts_after(number)
        stage = go_on(exchange, city, stage, settings, tally=tally)
        if tally:
            factor = transmission.estimate(stage.sums.tally, stage.factor, number)
            stage = replace(stage, factor=factor)
        tell_of(number)
    end(exchange, city, stage, settings)
    return stage


def begin(
    exchange: Exchange, city: City, start: Start, settings: FieldSettings
) -> Stage:
    """The first exchange: what people send who have heard nothing but ``start``."""
    caution = caution_by(start, city.clock.slots, settings)
    manner = Manner(1.0, settings.renewed * caution, settings.evidence_bound)
    told = told_at_first(city, start.hazard)
    sums = exchange.sweep(told, manner, well=city.over_susceptible, tally=False)
    places = renewed(Places.empty(city.present), sums, manner)
    return Stage(places, city.even, sums, caution, sweep=1)


def caution_by(start: Start, slots: int, settings: FieldSettings) -> Floats:
    """(slots,) what evidence is renewed by, relative to the last slot."""
    to_go = 1 - np.arange(slots) / slots
    return np.asarray(np.exp(-settings.caution * math.log(start.growth) * to_go))


def go_on(
    exchange: Exchange,
    city: City,
    stage: Stage,
    settings: FieldSettings,
    *,
    tally: bool = False,
) -> Stage:
    """People hear what the places tell, and send anew."""
    share = settings.renewed * stage.pace
    manner = Manner(1.0, share * stage.caution, settings.evidence_bound)
    told = told_by(city, stage.places, stage.factor)
    sums = exchange.sweep(told, manner, well=city.over_susceptible, tally=tally)
    turn = _turn(stage.places, sums, stage.caution)
    pace = stage.pace
    if stage.turn is not None and float(np.vdot(turn, stage.turn)) < 0:
        pace = max(pace * settings.slower, _LEAST_PACE)
    return replace(
        stage,
        places=renewed(stage.places, sums, manner),
        sums=sums,
        pace=pace,
        turn=turn,
        sweep=stage.sweep + 1,
    )


def end(exchange: Exchange, city: City, stage: Stage, settings: FieldSettings) -> None:
    """People hear for the last time and know their risks; nothing leaves."""
    told = told_by(city, stage.places, stage.factor)
    nothing = Manner(0.0, np.zeros(city.clock.slots), settings.evidence_bound)
    exchange.end(told, nothing)


def _turn(places: Places, sums: Sums, caution: Floats) -> Floats:
    """Where evidence is going, each person there counted alike."""
    apart = (sums.evidence - places.evidence) * caution[:, None]
    found: Floats = apart / np.maximum(places.crowd, 1)
    return found
