"""A person's life read off what its places tell: states at the end, infections by slot.

What a sweep needs of everybody is compiled (``chains``); here is what is asked for
once, at the end, or of a few people.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from epifalcon.models.field.chains import hear
from epifalcon.models.field.disease import Fit, Rates
from epifalcon.models.field.tables import Home, Told
from epifalcon.types import Floats, Probabilities

_AT_ONCE = 32_768
"""People read together: so many numbers in each slot."""
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Heard:
    """What people hear from their places, own messages aside; (slots, people) each."""

    caught: NDArray[np.float32]
    """Chance to be infected there."""
    heard: NDArray[np.float32]
    """How much likelier what became of the others is if one was infectious."""

    @classmethod
    def by(cls, people: tuple[int, int], home: Home, told: Told) -> "Heard":
        """By the people from ``people[0]`` to ``people[1]`` in all slots told of."""
        shape = len(told.edges), people[1] - people[0]
        found = cls(np.empty(shape, np.float32), np.empty(shape, np.float32))
        hear(people, home, told, found.caught, found.heard)
        return found

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.caught)


@dataclass(frozen=True, eq=False)
class Now:
    """Chance of being infected, exposed or infectious, behind the last slot."""

    aside: Probabilities
    """(people,) own tests aside."""
    tested: Probabilities
    """(people,) own tests counted."""
    ever: Probabilities
    """(people,) of having been infected by then, own tests counted."""


@dataclass(frozen=True, eq=False)
class Infections:
    """When a person was infected; the three add up to 1 for everybody."""

    in_slot: Probabilities
    """(slots, people)"""
    before: Probabilities
    """(people,) before the first slot."""
    never: Probabilities
    """(people,)"""

    @property
    def risk(self) -> Probabilities:
        """(people,) of having been infected."""
        return np.asarray(self.before + self.in_slot.sum(axis=0))

    @property
    def shares(self) -> Floats:
        """(1 + slots, people) of the risk: before the first slot, then in each.

        Each person's add up to 1; 0 where there is no risk at all.
        """
        parts = np.concatenate([self.before[None], self.in_slot])
        return np.asarray(parts / np.maximum(self.risk, _TINY))


def read_now(home: Home, told: Told, rates: Rates) -> Now:
    """Where everybody is behind the last slot."""
    total = home.here.shape[1]
    aside, tested, ever = np.empty((3, total))
    for begin in range(0, total, _AT_ONCE):
        part = slice(begin, min(begin + _AT_ONCE, total))
        heard = Heard.by((part.start, part.stop), home, told)
        fit = fit_of(home.fit, part)
        aside[part] = _active(states_after(heard, home.aside[part], rates))
        states = states_after(heard, home.prior[part], rates, fit)
        tested[part], ever[part] = _active(states), np.clip(1 - states[:, 0], 0.0, 1.0)
    return Now(aside, tested, ever)


def _active(states: Floats) -> Probabilities:
    return np.asarray(np.clip(states[:, 1] + states[:, 2], 0.0, 1.0))


def states_after(
    heard: Heard, before: Floats, rates: Rates, fit: Fit | None = None
) -> Floats:
    """(people, 4) chance of S, E, I, R behind the last slot, from ``before``.

    With ``fit`` own tests count, else they are left aside.
    """
    s, e, i, r = before.T.copy()
    fits: Iterator[Floats | float] = repeat(1.0)
    if fit is not None:
        e, i, r = e * fit.seed, i * fit.seed, r * fit.seed
        fits = _by_slot(fit, heard.slots)
    for caught, news, fitting in zip(heard.caught, heard.heard, fits, strict=False):
        latent, ill = e + s * caught * fitting, i * news
        ends, healed = latent * rates.leave_exposed, ill * rates.recover
        s = s * (1.0 - caught)
        e, i, r = latent - ends, ill - healed + ends, r + healed
        scale = 1 / np.maximum(s + e + i + r, _TINY)
        s, e, i, r = s * scale, e * scale, i * scale, r * scale
    if fit is not None:
        s = s * fit.never
    found = np.stack([s, e, i, r], axis=1)
    whole = found.sum(axis=1, keepdims=True)
    return np.asarray(np.where(whole > 0, found / np.maximum(whole, _TINY), before))


def infections(
    heard: Heard, before: Floats, rates: Rates, fit: Fit | None = None
) -> Infections:
    """When people were infected, if at all; ``before`` (people, 4) as above.

    With ``fit`` own tests count, else they are left aside.
    """
    slots, people = heard.caught.shape
    with np.errstate(divide="ignore"):
        log = np.empty((2 + slots, people))
        e, i, r = np.ones((3, people))
        scale = np.zeros(people)
        for slot in range(slots - 1, -1, -1):
            e = e + rates.leave_exposed * (i - e)
            i = i + rates.recover * (r - i)
            log[1 + slot] = np.log(e * heard.caught[slot]) + scale
            i = i * heard.heard[slot]
            most = np.maximum(np.maximum(e, i), r)
            e, i, r, scale = e / most, i / most, r / most, scale + np.log(most)
        seeds = before[:, 1] * e + before[:, 2] * i + before[:, 3] * r
        log[0] = np.log(seeds) + scale
        missed = np.log1p(-heard.caught.astype(np.float64)).cumsum(axis=0)
        log[1:] += np.log(before[:, 0])
        log[2:-1] += missed[:-1]
        log[-1] = np.log(before[:, 0]) + missed[-1]
        if fit is not None:
            log += np.log(_laid_out(fit, slots))
    weight = np.exp(log - np.maximum(log.max(axis=0), np.log(_TINY)))
    weight /= np.maximum(weight.sum(axis=0), _TINY)
    return Infections(weight[1:-1], weight[0], weight[-1])


def fit_of(fit: Fit, people: slice) -> Fit:
    """Of some people that stand one after the other."""
    start = fit.start[people.start : people.stop + 1]
    own = slice(int(start[0]), int(start[-1]))
    return Fit(
        fit.seed[people],
        fit.never[people],
        start - start[0],
        fit.slot[own],
        fit.value[own],
    )


def _laid_out(fit: Fit, slots: int) -> Floats:
    """(2 + slots, people): infected before, in each slot, never."""
    rows: list[Floats] = [fit.seed.astype(np.float64)]
    rows += [row.copy() for row in _by_slot(fit, slots)]
    return np.stack([*rows, fit.never.astype(np.float64)])


def _by_slot(fit: Fit, slots: int) -> Iterator[Floats]:
    """How well infection in each slot fits each person's tests, slot after slot."""
    value = fit.seed.astype(np.float64)
    person = np.repeat(np.arange(len(value)), np.diff(fit.start))
    # Stable: of two changes in one slot the latter stands.
    order = np.argsort(fit.slot, kind="stable")
    ends = np.searchsorted(fit.slot[order], np.arange(slots), side="right")
    done = 0
    for end in ends:
        changes = order[done:end]
        value[person[changes]] = fit.value[changes]
        done = end
        yield value
