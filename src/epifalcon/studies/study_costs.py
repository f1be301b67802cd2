"""About what a run costs, for whoever decides whether to start a study."""

from typing import Final

from epifalcon.studies.experiment import Experiment
from epifalcon.studies.methods import FALCONS
from epifalcon.studies.study import FollowUp

_LARGER_VISITS = 15_738 * 168
_CPU_SECONDS: Final = {
    "dct": 4,
    "gcn": 39,
    "gat": 160,
    "unimp": 107,
    "unimp-bare": 87,
    "epignn": 73,
    "stgcn": 244,
    "dcrnn": 233,
    "graph-wavenet": 405,
    "d2stgnn": 946,
    "dstagnn": 498,
    "fedpregnn": 80,
    "soft-dct": 3,
    "soft-dct-ratio": 4,
    "duration-dct": 3,
    "exposure-logistic": 5,
    "exposure-boosting": 7,
    "mean-field": 7,
    "hbp": 18,
    "hbp-true-factors": 17,
    "falcon-field": 58,
    "oracle": 3,
    "hgnn": 18,
    "falcon": 43,
}
"""On ``larger-sars``, means of five seeds (``results/rivals-larger-sars``); of HBP
and Falcon Field, means of ten (``results/worlds``)."""
_UNKNOWN = 30
_WITH_NOISE = 2.0
"""Falcon with pseudo traces and noise, against Falcon without."""
_NOTE = 1e-3
"""Of each claimed place of each noted person: the noise of all rounds is drawn for it
alone, so that it does not matter how large the city is (``results/noise``)."""
_AFTER: Final = {"audit": 60, "places": 40, "sizes": 5}
_START = 4.0
"""Of any process: loading, compiling."""


def cpu_seconds(
    experiment: Experiment, method: str, then: FollowUp | None = None
) -> float:
    """About what one seed takes, the follow-up included: linear in visits."""
    clock = experiment.city.clock
    slots = clock.slots
    if method in FALCONS:
        slots //= experiment.model.window_slots
    size = experiment.city.people * slots / _LARGER_VISITS
    seconds, notes = float(_CPU_SECONDS.get(method, _UNKNOWN)), 0.0
    if method == "falcon" and experiment.privacy.mode != "off":
        seconds *= _WITH_NOISE
        claims = slots * (1 + experiment.pseudo.pseudo_copies)
        notes = _NOTE * experiment.view.people * claims
    after = 0.0 if then is None else _START + _AFTER[then] * size
    return _START + seconds * size + notes + after
