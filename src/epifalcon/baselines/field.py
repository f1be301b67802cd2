"""The people of a city as hidden Markov chains that send each other messages.

What they send and what it means stands in ``hbp``; the loops in ``field_kernels``.
"""

import math
from collections.abc import Callable

import numpy as np

from epifalcon.baselines.field_kernels import (
    LANES,
    ROWS,
    Chances,
    People,
    Singles,
    Slot,
    enter,
    go_backward,
    go_forward,
    leave,
    meet_backward,
    meet_forward,
    tell,
)
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.hypergraph.compiled import each_part
from epifalcon.mobility.traces import Traces
from epifalcon.models.field import disease
from epifalcon.models.field.disease import (
    FREE,
    MOST_CHANCE,
    allowed_slots,
    first_hazard,
    rates_of,
)
from epifalcon.types import Counts, Floats, Probabilities, Slots

_PART, _MOST_PARTS = 8192, 8
"""People of a part, at the least, and parts, at most."""
_STEPS = 10
"""What a person costs in a slot, as ``each_part`` counts."""


class Field:
    """What the people of a city believe of each other between sweeps.

    Memory is six numbers of four bytes for each person and slot, besides the
    traces. The outcome has the same bits on any number of threads.
    """

    def __init__(
        self,
        scene: Scene,
        traces: Traces,
        known: Known,
        factor: Floats | None = None,
    ) -> None:
        """``factor`` (regions,) is on the force of infection; 1 unless given."""
        slots, people = traces.by_slot.shape
        self._traces, self._rule = traces, scene.rule
        self._force = force_of_infection(scene, traces) * _by_edge(traces, factor)
        self._chances = chances_of(scene, traces)
        self._tiles = -(-people // LANES)
        window = allowed_slots(known, slots)
        self._people = People(
            _in_tiles(window.first, self._tiles, 0),
            _in_tiles(window.last, self._tiles, FREE),
            np.empty(self._tiles * ROWS * LANES),
            np.empty(self._tiles * LANES),
        )
        self._value = self._flat_start(known)
        self._parts = min(max(people // _PART, 1), _MOST_PARTS)
        edges = 1 + len(traces.regions)
        self._passing, self._rest = np.empty((2, slots, edges), np.float32)
        rows = 2 if scene.rule.contact == "I/S" else 1
        self._sums = np.zeros((self._parts, rows, edges))
        self._open_edges()
        self._risk = np.zeros(self._tiles * LANES)
        self._backward(self._chances._replace(listens=0.0))

    @property
    def risk(self) -> Probabilities:
        """(people,) of having been infected, own tests aside."""
        return self._risk[: self._traces.people]

    def _flat_start(self, known: Known) -> Singles:
        """No weights yet, no evidence, and the same hazard for all."""
        slots = self._traces.slots
        value = np.zeros((slots, self._tiles, ROWS, LANES), np.float32)
        hazard = first_hazard(known, self._chances.seeded, slots)
        value[:, :, -2] = -math.expm1(-hazard)
        value[:, :, -1] = 1
        return value.reshape(slots, -1)

    def sweep(self, evidence_damping: float, hazard_damping: float = 0.0) -> Floats:
        """Forward and back once; by how much it changed the risks: (people,).

        An evidence damping of 1 passes on hazard alone.
        """
        before = self.risk.copy()
        chances = self._chances._replace(
            evidence_damping=evidence_damping,
            hazard_damping=hazard_damping,
            listens=float(evidence_damping < 1),
        )
        self._forward(chances)
        self._backward(chances)
        return self.risk - before

    def _forward(self, chances: Chances) -> None:
        self._all(enter, self._people, chances)
        for number in range(self._traces.slots):
            slot = self._slot(number)
            self._meet(meet_forward, slot, self._people)
            self._all(go_forward, slot, self._people, self._total(0), chances)
            if self._rule.contact == "I/S":
                self._passing[number] = self._chance_to_pass(self._total(1))

    def _backward(self, chances: Chances) -> None:
        self._all(leave, self._people)
        for number in range(self._traces.slots - 1, -1, -1):
            slot = self._slot(number)
            self._meet(meet_backward, slot, self._people, chances)
            self._all(go_backward, slot, self._people, self._total(0), chances)
        self._all(tell, self._people, chances, self._risk)

    def _all(self, kernel: Callable[..., None], *given: object) -> None:
        """Everybody goes through the kernel, part by part."""
        steps = _STEPS * self._traces.people
        each_part(lambda part: kernel(self._some(part), *given), self._parts, steps)

    def _meet(self, kernel: Callable[..., None], *given: object) -> None:
        """The same; each part adds up what its people send."""

        def work(part: int) -> None:
            kernel(self._some(part), self._sums[part], *given)

        each_part(work, self._parts, _STEPS * self._traces.people)

    def _some(self, part: int) -> tuple[int, int]:
        tiles, parts = self._tiles, self._parts
        return tiles * part // parts, tiles * (part + 1) // parts

    def _slot(self, number: int) -> Slot:
        return Slot(
            number,
            self._traces.by_slot[number],
            self._passing[number],
            self._rest[number],
            self._value[number],
        )

    def _total(self, row: int) -> Floats:
        total: Floats = self._sums[:, row].sum(axis=0)
        return total

    def _open_edges(self) -> None:
        for number in range(self._traces.slots):
            count = np.concatenate([[0], self._traces.occupancy(number)])
            self._passing[number] = self._chance_to_pass(count)
            self._rest[number] = np.maximum(count - 2, 0) / np.maximum(count - 1, 1)

    def _chance_to_pass(self, among: Floats | Counts) -> Floats:
        """Chance that one infectious person infects one of ``among`` people."""
        dose = self._force / np.maximum(among, 1)
        chance = dose if self._rule.chance == "linear" else -np.expm1(-dose)
        chance = np.minimum(chance, MOST_CHANCE)
        # Nobody meets anybody where nobody was seen.
        chance[0] = 0
        return chance


def _by_edge(traces: Traces, factor: Floats | None) -> Floats:
    """The factor of "not observed" and of each region: (1 + regions,)."""
    regions = len(traces.regions)
    if factor is None:
        return np.ones(1 + regions)
    if factor.shape != (regions,):
        raise DataError(f"factor of shape {factor.shape}, expected ({regions},)")
    return np.concatenate([[1.0], factor])


def force_of_infection(scene: Scene, traces: Traces) -> float:
    """The rate kappa beta dt of the scene's disease on ``traces``."""
    return disease.force_of_infection(traces, scene.pathogen, scene.rule)


def chances_of(scene: Scene, traces: Traces) -> Chances:
    """The chances of a slot; of the seeds only their number counts."""
    return Chances(*rates_of(traces, scene.pathogen, scene.rule))


def _in_tiles(values: Slots, tiles: int, filling: int) -> Slots:
    """(people,) as (tiles * LANES,), filled up."""
    filled = np.full(tiles * LANES, filling, np.int32)
    filled[: len(values)] = values
    return filled
