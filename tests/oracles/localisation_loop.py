"""The localisation attack and recurrence counts, person by person in plain Python."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from epifalcon.attacks.claims import Candidates
from epifalcon.mobility.mobility_model import MobilityModel
from tests.oracles.markov_loop import transition

Claims = Sequence[Sequence[int]]
"""The regions claimed in each window by one person."""


def claims_of(candidates: Candidates, person: int) -> list[list[int]]:
    """The claims of one person, window by window."""
    rows = range(person * candidates.windows, (person + 1) * candidates.windows)
    start = candidates.start
    return [candidates.region[start[row] : start[row + 1]].tolist() for row in rows]


class PlainModel:
    """The mobility model as dictionaries, rows normalised."""

    def __init__(self, model: MobilityModel) -> None:
        joint, self.regions = model.joint.tocoo(), len(model.regions)
        cells = zip(*(part.tolist() for part in joint.coords), strict=True)
        self.known = dict(zip(cells, joint.data.tolist(), strict=True))
        self.total = model.transitions.total.reshape(model.visits.shape).tolist()
        self.visits = np.exp(model.log_visits).tolist()
        self.epsilon, self.day = model.epsilon, model.slots_per_day
        self.centre = model.regions.centre_km.tolist()

    def move(self, slot: int, here: int, there: int) -> float:
        """P(there at slot + 1 | here at slot)."""
        slot %= self.day
        total = self.total[slot][here]
        if total <= 0:
            return 0.0
        known = self.known.get((slot * self.regions + here, there), 0.0)
        apart = math.dist(self.centre[here], self.centre[there])
        return (known + self.epsilon / max(1.0, apart) ** 2) / total

    def visit(self, slot: int, region: int) -> float:
        """P(region at slot)."""
        return self.visits[slot % self.day][region]


def enumerate_paths(
    claims: Claims, evidence: Sequence[Sequence[float]], model: MobilityModel, width=1
) -> list[list[float]]:
    """Posteriors by adding up every path through the claims of one person.

    What the model rules out counts as 1e-300.
    """
    seen = [window for window, row in enumerate(claims) if row]
    made = [[0.0] * len(row) for row in claims]
    tables = _tables(claims, seen, model, width)
    paths = list(itertools.product(*(range(len(claims[window])) for window in seen)))
    weight = np.zeros(len(paths))
    for number, path in enumerate(paths):
        last = 0
        for window, choice, table in zip(seen, path, tables, strict=True):
            weight[number] += table[last, choice] + evidence[window][choice]
            last = choice
    for path, chance in zip(paths, special.softmax(weight), strict=True):
        for window, choice in zip(seen, path, strict=True):
            made[window][choice] += chance
    return made


def _tables(claims: Claims, seen: list[int], model: MobilityModel, width: int):
    """Logs from the claims of each window to those of the next, first from nowhere."""
    made = []
    for number, window in enumerate(seen):
        slot, here = window * width, np.array(claims[window])
        if number == 0:
            table = np.exp(model.log_visits[slot % model.slots_per_day, here])[None]
        else:
            before = np.array(claims[seen[number - 1]])
            step = (slot - 1) % model.slots_per_day
            table = transition(model, step, before[:, None], here, normalised=True)
        made.append(np.log(np.maximum(table, 1e-300)))
    return made


def forward_backward(claims: Claims, model: PlainModel, width=1) -> list[list[float]]:
    """Posteriors of one person by the textbook recursion, every claim alike."""
    seen = [window for window, row in enumerate(claims) if row]
    forward: list[list[float]] = []
    moves: list[list[list[float]]] = []
    for number, window in enumerate(seen):
        here, slot = claims[window], window * width
        if number == 0:
            step = [model.visit(slot, region) for region in here]
        else:
            before = claims[seen[number - 1]]
            table = [[model.move(slot - 1, a, b) for b in here] for a in before]
            moves.append(table)
            columns = zip(*table, strict=True)
            step = [
                sum(p * q for p, q in zip(forward[-1], column, strict=True))
                for column in columns
            ]
        total = sum(step)
        forward.append([value / total for value in step])
    made: list[list[float]] = [[] for _ in claims]
    ahead = [1.0] * len(claims[seen[-1]]) if seen else []
    for number in range(len(seen) - 1, -1, -1):
        both = [a * b for a, b in zip(forward[number], ahead, strict=True)]
        total = sum(both)
        made[seen[number]] = [value / total for value in both]
        if number > 0:
            back = [
                sum(p * q for p, q in zip(row, ahead, strict=True))
                for row in moves[number - 1]
            ]
            total = sum(back)
            ahead = [value / total for value in back]
    return made


def recurrence_shares(
    claims: Claims, weight: Sequence[Sequence[float]], day: int
) -> tuple[list[float], list[float]]:
    """Of each claim, the weight at the same hour and at all hours of other days."""
    hours, anys = [], []
    for window, row in enumerate(claims):
        others = [w for w in range(len(claims)) if w // day != window // day]
        others = [w for w in others if claims[w]]
        alike = [w for w in others if w % day == window % day]
        for region in row:
            for found, where in ((hours, alike), (anys, others)):
                back = sum(
                    weight[w][claims[w].index(region)]
                    for w in where
                    if region in claims[w]
                )
                found.append(back / len(where) if where else 0.0)
    return hours, anys
