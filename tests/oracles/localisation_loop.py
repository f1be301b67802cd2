"""The localisation attack and recurrence counts, person by person in plain Python."""

import itertools
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


def forward_backward(claims: Claims, model: MobilityModel) -> list[list[float]]:
    """Posteriors of one person by the textbook recursion, every claim alike."""
    seen = [window for window, row in enumerate(claims) if row]
    tables = [np.exp(table) for table in _tables(claims, seen, model, 1)]
    forward = [np.ones(1)]
    for table in tables:
        step = forward[-1] @ table
        forward.append(step / step.sum())
    made: list[list[float]] = [[] for _ in claims]
    ahead = np.ones(len(forward[-1]))
    for window, here, table in zip(
        seen[::-1], forward[:0:-1], tables[::-1], strict=True
    ):
        made[window] = (here * ahead / (here @ ahead)).tolist()
        ahead = table @ ahead
        ahead /= ahead.sum()
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
