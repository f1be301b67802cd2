"""The localisation attack on everybody at Larger size, against a plain loop.

All 15,738 people, 168 slots, ten pseudo traces each, so 11 claims per slot. The
peer is the same forward-backward algorithm person by person in Python, with the
mobility model in dictionaries; it is timed on a few people and scaled. Both must
agree before anything is timed. The preparation of the model is not included.
"""

import json
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
from epifalcon.mobility.mobility_model import mobility_model
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.privacy.pseudo_traces import PseudoSettings
from epifalcon.streams import Streams
from tests.oracles import localisation_loop as plain

_COPIES = 10
_LOOP_PEOPLE = 8
_AGREE = 1e-10


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
    loop = plain.PlainModel(model)
    lives = [plain.claims_of(candidates, person) for person in range(_LOOP_PEOPLE)]
    likely = forward_backward(candidates, model)
    apart = _apart(
        candidates, likely, [plain.forward_backward(one, loop) for one in lives]
    )
    if apart > _AGREE:
        raise SystemExit(f"posteriors differ by {apart:.2g}: nothing to compare")
    took = best(
        {
            "ours": (lambda: forward_backward(candidates, model), 3),
            "peer": (lambda: [plain.forward_backward(one, loop) for one in lives], 3),
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
