"""Who was tested, and with which result? Attacks on gradients and on rows.

The paper names the sign of the update as a risk and does not try it. A tested
person's gradient points to its own result: that of the head's logits is p - y,
negative on the side of the result. A person's own row is moved by nothing but
that gradient, round by round, so that it drifts along a direction which the
broadcast parameters give away. And the row of a status input *is* the status: one
of three rows that the server broadcasts itself (``statuses``).

All are functions of ``Notes`` and public knowledge; scores are judged apart
(``judge``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.evaluation.attacks import head_gradients, mixture
from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.uncertainty import Interval, auc_interval
from epifalcon.federation.notes import Notes
from epifalcon.models.micro import CELL_WIDTH
from epifalcon.types import Floats, Mask

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
    likely: Floats | None = None
    """(people, 3) the log-likelihood if it is negative, positive, untested, where the
    attack has one to be added to others."""

    @classmethod
    def of(cls, name: str, likely: Floats) -> "Diagnosis":
        """By log-likelihoods (people, 3); both results are as likely beforehand."""
        negative, positive, untested = likely.T
        tested = np.logaddexp(negative, positive) - untested
        return cls(name, positive - negative, tested, likely)


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
    held_back: int = 0
    """Tested people left out, since nothing of their tests entered the training."""


def from_gradients(notes: Notes) -> Diagnosis:
    """From each person's noised gradients: the head's sum, and the energy of all.

    The log-likelihoods of ``head_gradients`` along the direction that people's
    gradients share, and of the energy over all parameters and rounds, which is
    larger for tested people whichever way their gradients point. Untested people
    have noise around 0, the tested have it around centres; no signal is larger than
    the clip allows.
    """
    told = head_gradients.read(notes)
    if told.stands_out:
        by_sum = mixture.fit(told.along, told.most, (1.0, -1.0))
    else:
        by_sum = mixture.at(told.along, (0.0, told.usual, -told.usual))
    by_energy = mixture.fit(*_energy(notes), sides=(1.0,))
    likely = np.column_stack([by_sum[:, 1:], by_sum[:, 0]])
    likely += np.column_stack([by_energy[:, 1], by_energy[:, 1], by_energy[:, 0]])
    return Diagnosis.of("gradients", likely)


def both(one: Diagnosis, other: Diagnosis) -> Diagnosis:
    """Two attacks on different messages together; each must have likelihoods.

    Noise is drawn for each message by itself, so their log-likelihoods add up.
    """
    if one.likely is None or other.likely is None:
        raise DataError(f"{one.name} and {other.name} have no likelihoods to add")
    return Diagnosis.of(f"{one.name} and {other.name}", one.likely + other.likely)


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
    if "cell.weight" in parameters:
        # At rest an LSTM cell passes on a fixed part of its candidate.
        found = found @ parameters["cell.weight"][CELL_WIDTH : 2 * CELL_WIDTH]
    layer = sum(name.startswith("layer") for name in parameters) // 2
    for number in reversed(range(layer)):
        found = found @ parameters[f"layer{number}.weight"][:, : notes.terms.width]
    length = float(np.linalg.norm(found))
    return np.asarray(found / length if length else found)


def judge(
    diagnosis: Diagnosis, status: NDArray[np.int8], held_back: Mask | None = None
) -> Judged:
    """Compare with the truth: ``status`` (people,) is 1, 0, or -1 for untested.

    ``held_back`` (people,) marks tested people whose tests only validation saw.
    Their devices send what those of untested people do, so that they are neither:
    they are left out, and counted.
    """
    apart = np.zeros(len(status), np.bool_) if held_back is None else held_back
    same_length(positive=diagnosis.positive, status=status, held_back=apart)
    tested, judged = (status >= 0) & ~apart, ~apart
    return Judged(
        diagnosis.name,
        _auc(diagnosis.positive[tested], status[tested] == 1),
        _auc(diagnosis.tested[judged], tested[judged]),
        int(np.count_nonzero(apart)),
    )


def _energy(notes: Notes) -> tuple[Floats, float]:
    """How far squared gradients exceed their noise, in units of its spread.

    And the farthest that they can.
    """
    rounds = max(notes.rounds, 1)
    count = rounds * max(notes.terms.parameters, 1)
    unit = head_gradients.noise(notes) ** 2 * np.sqrt(2 * count)
    beyond = notes.gradient_energy - count * notes.terms.gradient_sigma**2
    most = rounds * head_gradients.largest(notes) ** 2
    return np.asarray(beyond / unit), float(most / unit)


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
