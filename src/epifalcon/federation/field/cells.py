"""What is made of noised cells: their slots again, and means shrunk by reliability.

What is received is read cell by cell as a mean over those present, shrunk towards
the mean of the whole city by its reliability

    (v / N) / (v / N + sigma^2 / N^2)

v / N is what the means of cells of N people truly differ by; v is found from the
cells themselves: what is left of their differences when noise has explained its
part. It is no error: whom one met is what one wants to know.
"""

from dataclasses import dataclass

import numpy as np

from epifalcon.federation.field.settings import Cells
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats

_LEAST_CROWD = 0.5
_TINY = 1e-12


@dataclass(frozen=True)
class CellShape:
    """How slots are put together into cells: each its own, or a day's as one."""

    clock: Clock
    cells: Cells

    @property
    def slots_per_cell(self) -> int:
        """1, or the slots of a day."""
        return self.clock.slots_per_day if self.cells == "day" else 1

    @property
    def rows(self) -> int:
        """Cells of each region."""
        return self.clock.slots // self.slots_per_cell

    def totals(self, by_slot: Floats) -> Floats:
        """Sums over each cell's slots of (slots, 1 + regions).

        Who was not observed sends nothing.
        """
        cells = by_slot.copy()
        cells[:, 0] = 0
        shape = self.rows, self.slots_per_cell, cells.shape[1]
        found: Floats = cells.reshape(shape).sum(axis=1)
        return found

    def slots(self, cells: Floats) -> Floats:
        """Each cell's number in all of its slots: (slots, 1 + regions)."""
        return np.repeat(cells, self.slots_per_cell, axis=0)

    def crowd(self, present: Floats) -> Floats:
        """How many people were where when one was, by cells with noise.

        (slots, 1 + regions). Of a region's mean over a day, where most come and
        go, others are as many as that mean.
        """
        others = present if self.cells == "day" else present - 1
        return self.slots(1 + np.maximum(others, 0))

    def senders(self, traces: Traces) -> Floats:
        """How many people send for each cell: (rows, 1 + regions)."""
        edges = 1 + len(traces.regions)
        total = np.zeros((self.rows, edges))
        person = np.arange(traces.people)
        step = self.slots_per_cell
        for row in range(self.rows):
            here = traces.by_slot[row * step : (row + 1) * step]
            pairs = np.unique(person * edges + here + 1)
            total[row] = np.bincount(pairs % edges, minlength=edges)
        total[:, 0] = 0
        return total


def shrunk_means(noised: Floats, present: Floats, sigma: Floats) -> Floats:
    """The mean of each cell's people, (rows, 1 + regions), shrunk by reliability.

    ``sigma`` is the noise of each cell; ``present`` how many people are there, as
    noise lets see it.
    """
    noised, sigma = noised[:, 1:], sigma[:, 1:]
    crowd = np.maximum(present[:, 1:], _LEAST_CROWD)
    mean = noised.sum(axis=1, keepdims=True) / crowd.sum(axis=1, keepdims=True)
    apart, noise = noised / crowd - mean, (sigma / crowd) ** 2 + _TINY
    # Where nobody sends there is nothing to learn from.
    weight = (sigma > 0) / noise**2
    # What is left of the differences when noise has explained its part.
    left = float((weight / crowd * (apart**2 - noise)).sum())
    truly = max(left, 0.0) / (float((weight / crowd**2).sum()) + _TINY) / crowd
    found = mean + truly / (truly + noise) * apart
    return np.pad(found, ((0, 0), (1, 0)))
