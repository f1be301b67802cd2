"""Who was tested, and with which result? Attacks on gradients and drifting rows.

The paper names the sign of the update as a risk and does not try it. A tested
person's gradient points to its own result: that of the head's logits is p - y,
negative on the side of the result. And a person's row is moved by nothing but
that gradient, round by round, so that it drifts along a direction which the
broadcast parameters give away.

Both are functions of ``Notes`` alone; scores are judged apart (``judge``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.uncertainty import Interval, auc_interval
from epifalcon.federation.notes import Notes
from epifalcon.types import Floats

_FIRST = "upload/0"
_PART = 3
_LEVEL = 0.95
_LEAST_LENGTH = 1e-12


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Scores of every person of the notes, higher for a stronger suspicion."""

    name: str
    positive: Floats
    """(people,) that its test was positive."""
    tested: Floats
    """(people,) that it was tested at all."""


@dataclass(frozen=True)
class Judged:
    """How well a diagnosis ranks people: .5 is chance, 1 tells all apart.

    Undefined where the sample lacks one of both kinds.
    """

    name: str
    positive: Interval
    """AUC of positive against negative among the tested."""
    tested: Interval
    """AUC of tested against untested."""


def from_gradients(notes: Notes) -> Diagnosis:
    """From each person's noised gradients of the head, summed over rounds.

    The head's gradient is (p - y) times [h || 1] with h of one sign (relu), for
    both logits alike up to the sign, and 0 for untested people. All people's h
    point much the same way, which the people together give away: the first
    singular direction of their sums. A person's sum along it is then - for a
    positive and + for a negative.
    """
    if "head.weight" not in notes.gradients:
        raise DataError("the notes hold no gradients")
    weight, bias = notes.gradients["head.weight"], notes.gradients["head.bias"]
    sums = np.concatenate([weight[:, 1] - weight[:, 0], bias[:, 1:] - bias[:, :1]], 1)
    _, _, directions = np.linalg.svd(sums, full_matrices=False)
    along = sums @ (directions[0] * (1.0 if directions[0].sum() >= 0 else -1.0))
    return Diagnosis("gradients", -along, np.abs(along))


def from_rows(notes: Notes) -> Diagnosis:
    """From the drift of each person's first-layer row, early rounds to late ones.

    The direction is that in which the layers, taken as linear, raise the logit
    of a positive. Weight decay moves every row too, but along itself; so only
    what stands across the early row counts, and a long way along the direction,
    either way, tells a test.
    """
    if _FIRST not in notes.terms.channels:
        raise DataError(f"the notes hold no rows of {_FIRST}")
    kept = -(-notes.rounds // notes.row_every)
    channel = notes.terms.channels.index(_FIRST)
    rows, sure = notes.rows[channel, :kept], notes.certainty[channel, :kept]
    part = kept // _PART
    if part < 1:
        raise DataError(f"rows of {kept} rounds are too few to drift")
    early, late = (_mean(rows[some], sure[some]) for some in _ends(part))
    length = np.linalg.norm(early, axis=1, keepdims=True)
    own = early / np.maximum(length, _LEAST_LENGTH)
    across = late - (late * own).sum(axis=1, keepdims=True) * own
    along = across @ logit_direction(notes)
    return Diagnosis("rows", along, np.abs(along))


def logit_direction(notes: Notes) -> Floats:
    """(width,) where the first layer's row raises the logit most, as a unit vector.

    Through the newest broadcast parameters with every relu open.
    """
    parameters = {name: one.astype(float) for name, one in notes.parameters.items()}
    if "head.weight" not in parameters:
        raise DataError("the notes hold no parameters")
    head = parameters["head.weight"]
    found = head[1] - head[0]
    layer = sum(name.startswith("layer") for name in parameters) // 2
    for number in reversed(range(layer)):
        found = found @ parameters[f"layer{number}.weight"][:, : notes.terms.width]
    length = float(np.linalg.norm(found))
    return np.asarray(found / length if length else found)


def judge(diagnosis: Diagnosis, status: NDArray[np.int8]) -> Judged:
    """Compare with the truth: ``status`` (people,) is 1, 0, or -1 for untested."""
    same_length(positive=diagnosis.positive, status=status)
    tested = status >= 0
    return Judged(
        diagnosis.name,
        _auc(diagnosis.positive[tested], status[tested] == 1),
        _auc(diagnosis.tested, tested),
    )


def _auc(score: Floats, truth: NDArray[np.bool_]) -> Interval:
    """With DeLong's interval; a perfect ranking of n proves what n right calls do."""
    if not len(score):
        return Interval(None, None, None, _LEVEL)
    found = auc_interval(curve(score, truth), _LEVEL)
    if found.estimate is None or found.low is not None:
        return found
    fewer = min(np.count_nonzero(truth), np.count_nonzero(~truth))
    unseen = 1 - ((1 - _LEVEL) / 2) ** (1 / fewer)
    low, high = max(0.0, found.estimate - unseen), min(1.0, found.estimate + unseen)
    return Interval(found.estimate, low, high, _LEVEL)


def _ends(part: int) -> tuple[slice, slice]:
    return slice(0, part), slice(-part, None)


def _mean(rows: NDArray[np.float32], sure: NDArray[np.float32]) -> Floats:
    """Mean row of some rounds, each by its certainty: (people, width)."""
    total = sure.sum(axis=0, dtype=float)
    mean = (rows * sure[..., None]).sum(axis=0, dtype=float)
    return np.asarray(mean / np.maximum(total, 1e-9)[:, None])
