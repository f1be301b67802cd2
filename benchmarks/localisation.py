"""The localisation attack on everybody at Larger size, against a plain loop.

All 15,738 people, 168 slots, ten pseudo traces each, so 11 claims per slot. The
peer is the same forward-backward algorithm person by person in Python, with the
mobility model in dictionaries; it is timed on a few people and scaled. Both must
agree before anything is timed. The preparation of the model is not included.
"""

import json
import math
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import THREADS, best, peak_mb, run_in_subprocess, timed
from epifalcon.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.attacks.localisation import forward_backward
from epifalcon.attacks.recurrence import recurrence
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city
from epifalcon.mobility.mobility_model import MobilityModel, mobility_model
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.privacy.pseudo_traces import PseudoSettings
from epifalcon.streams import Streams
from tests.oracles import localisation_loop as plain

_COPIES = 10
_LOOP_PEOPLE = 8
_AGREE = 1e-10


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


def plain_posteriors(claims: plain.Claims, model: PlainModel) -> list[list[float]]:
    """Posteriors of one person by the textbook recursion, every claim alike."""
    seen = [window for window, row in enumerate(claims) if row]
    forward: list[list[float]] = []
    moves: list[list[list[float]]] = []
    for number, window in enumerate(seen):
        here, slot = claims[window], window
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


def run() -> dict[str, Any]:
    """Seconds of the attack on everybody, ours and the loop's."""
    candidates: dict[str, Any] = run_in_subprocess("localisation")
    return candidates


def _run() -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    streams = Streams(0)
    traces = make_city(Experiment.load("larger-sars"), seed=0)
    model = mobility_model(traces)
    settings = PseudoSettings(method="walk", pseudo_copies=_COPIES)
    nothing = np.zeros((len(traces.regions), traces.clock.days))
    pseudo = generate(traces, model, nothing, settings, streams.numpy("pseudo"))
    candidates = Candidates.of_pseudo(pseudo)
    layout, _ = timed(lambda: model.transitions)
    loop = PlainModel(model)
    lives = [plain.claims_of(candidates, person) for person in range(_LOOP_PEOPLE)]
    likely = forward_backward(candidates, model)
    apart = _apart(candidates, likely, [plain_posteriors(one, loop) for one in lives])
    if apart > _AGREE:
        raise SystemExit(f"posteriors differ by {apart:.2g}: nothing to compare")
    took = best(
        {
            "ours": (lambda: forward_backward(candidates, model), 3),
            "peer": (lambda: [plain_posteriors(one, loop) for one in lives], 3),
            "recurrence": (lambda: recurrence(candidates), 3),
        }
    )
    scale = candidates.people / _LOOP_PEOPLE
    truth = true_claims(candidates, traces)
    verdict = localisation_error(name_best(candidates, likely), candidates, truth)
    ours, peer = took["ours"], took["peer"]
    return {
        "name": "localisation",
        "ours": ours.wall,
        "peer": scale * peer.wall,
        "ratio": scale * peer.wall / ours.wall,
        "unit": "s",
        "ours_cpu_s": ours.busy,
        "peer_cpu_s": scale * peer.busy,
        "ratio_cpu": scale * peer.busy / ours.busy,
        "recurrence_s": took["recurrence"].wall,
        "layout_s": layout,
        "people": candidates.people,
        "claims": candidates.claims,
        "posteriors_apart": apart,
        "error": verdict.error,
        "random": verdict.random,
        "peak_mb": peak_mb(),
    }


def _apart(
    candidates: Candidates, likely: np.ndarray, wanted: list[list[list[float]]]
) -> float:
    flat = np.array([value for life in wanted for row in life for value in row])
    end = candidates.start[len(wanted) * candidates.windows]
    return float(np.abs(likely[:end] - flat).max())


if __name__ == "__main__":
    print(json.dumps(_run(), indent=2))
