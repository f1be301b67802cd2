"""Exchanges with noise: sums are noised before anybody sees them, receipts first.

Noise is keyed by channel, exchange and cell, so a run that is begun again draws
the same. The sum of one noise from each of k people is one noise of sqrt(k) times
the scale, and is drawn as that one.

What is received is read cell by cell as a mean over those present, shrunk towards
the mean of the whole city by its reliability

    (v / N) / (v / N + sigma^2 / N^2)

v / N is what the means of cells of N people truly differ by; v is found from the
cells themselves: what is left of their differences when noise has explained its
part. It is no error: whom one met is what one wants to know.
"""

import numpy as np

from epifalcon.errors import SettingsError
from epifalcon.federation.field.plan import (
    EVIDENCE,
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.federation.field.together import Together
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.chains import Manner, Sums, Told
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats

_LEAST_CROWD = 0.5
_TINY = 1e-12


class Noised:
    """All people of a city behind noise, by one plan and one ledger."""

    def __init__(
        self, together: Together, plan: FieldPlan, ledger: Ledger, seed: int
    ) -> None:
        """Record what leaves once, before it does."""
        ledger.record(*plan.opening())
        self._together, self._plan, self.ledger = together, plan, ledger
        self._seed = seed
        traces = [cohort.traces for cohort in together.cohorts]
        self._clock = traces[0].clock
        self._by_day = plan.settings.cells == "day"
        present = self._cells(together.crowd())
        # Sums carry one noise; or that of everybody who sends to the cell.
        self._noises = np.ones_like(present)
        if plan.settings.mode == "local":
            self._noises = _senders(traces) if self._by_day else present
        self._present = self._noised(present, PRESENCE, 0)
        self._exchange = 0

    def crowd(self) -> Floats:
        """How many people were where when one was, as noise lets see it.

        (slots, 1 + regions). Of a region's mean over a day, where most come and
        go, others are as many as that mean.
        """
        others = self._present if self._by_day else self._present - 1
        return self._slots(1 + np.maximum(others, 0))

    def tests(self, tested: int, positive: int) -> tuple[float, float]:
        """How many were tested and how many of them positive, with noise."""
        key = NoiseKey(self._seed, self._plan.receipt(TESTS, 0).terms)
        rows = NoiseRows(np.zeros(1, np.int64), np.zeros(1, np.int64))
        scale = self._plan.sigma[TESTS]
        if self._plan.settings.mode == "local":
            scale *= np.sqrt(max(tested, 1))
        first, second = scale * keyed_normals(key, rows, 2)[0]
        told = max(tested + float(first), 1.0)
        return told, float(np.clip(positive + second, 0, told))

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring what noise leaves of the sums."""
        if tally or well:
            raise SettingsError(
                "a private exchange pays for two sums: contact='I/S' and transmission "
                "by region would need more"
            )
        self._exchange += 1
        self.ledger.record(*self._plan.exchange(self._exchange))
        sums = self._together.sweep(told, manner, well=False, tally=False)
        others = self.crowd() - 1
        ill = self._means(self._cells(sums.infectious), INFECTIOUS)
        news = self._means(self._cells(sums.evidence), EVIDENCE)
        bound = self._plan.settings.evidence_bound
        return sums._replace(
            infectious=self._slots(np.clip(ill, 0, 1)) * others,
            evidence=self._slots(np.clip(news, -1, bound)) * others,
        )

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        self._together.end(told, manner)

    def _cells(self, by_slot: Floats) -> Floats:
        """What leaves: (slots, 1 + regions), or means over each day's slots."""
        cells = by_slot.copy()
        # Who was not observed sends nothing.
        cells[:, 0] = 0
        if not self._by_day:
            return cells
        found: Floats = cells.reshape(
            self._clock.days, self._clock.slots_per_day, -1
        ).mean(axis=1)
        return found

    def _slots(self, cells: Floats) -> Floats:
        return np.repeat(cells, self._clock.slots_per_day, 0) if self._by_day else cells

    def _noised(self, cells: Floats, channel: str, number: int) -> Floats:
        key = NoiseKey(self._seed, self._plan.receipt(channel, number).terms)
        place = np.arange(cells.size, dtype=np.int64)
        rows = NoiseRows(np.zeros_like(place), place)
        noise = keyed_normals(key, rows, 1).reshape(cells.shape)
        scale = self._plan.sigma[channel] * np.sqrt(self._noises)
        found: Floats = cells + scale * noise
        return found

    def _means(self, cells: Floats, channel: str) -> Floats:
        """The mean of each cell's people, shrunk by its reliability."""
        noised = self._noised(cells, channel, self._exchange)[:, 1:]
        crowd = np.maximum(self._present[:, 1:], _LEAST_CROWD)
        sigma = self._plan.sigma[channel] * np.sqrt(self._noises[:, 1:])
        mean = noised.sum(axis=1, keepdims=True) / crowd.sum(axis=1, keepdims=True)
        apart, noise = noised / crowd - mean, (sigma / crowd) ** 2 + _TINY
        # Where nobody sends there is nothing to learn from.
        weight = (sigma > 0) / noise**2
        # What is left of the differences when noise has explained its part.
        left = float((weight / crowd * (apart**2 - noise)).sum())
        truly = max(left, 0.0) / (float((weight / crowd**2).sum()) + _TINY) / crowd
        found = mean + truly / (truly + noise) * apart
        return np.pad(found, ((0, 0), (1, 0)))


def _senders(traces: list[Traces]) -> Floats:
    """How many people send for each (day, region): (days, 1 + regions)."""
    edges = 1 + len(traces[0].regions)
    total = np.zeros((traces[0].clock.days, edges))
    for one in traces:
        for day, here in enumerate(one.days()):
            pairs = np.arange(one.people) * edges + here + 1
            total[day] += np.bincount(np.unique(pairs) % edges, minlength=edges)
    total[:, 0] = 0
    return total
