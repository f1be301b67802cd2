"""Whether a risk of 20 % means that 20 of 100 such people are infected.

Everything here reads scores as probabilities; scores that only rank have no
calibration. The functions take a ``Curve``, resampled ones with leading axes too.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from epifalcon.checks import one_of, whole
from epifalcon.errors import DataError
from epifalcon.evaluation.curves import Curve, ratio
from epifalcon.types import Counts, Floats, Probabilities

Binning = Literal["width", "mass"]
"""Bins of equal width on [0, 1], or of equally many people."""

CLIP = 1e-7
"""Risks are held this far from 0 and 1 in the log loss; see ``log_loss``."""

_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Reliability:
    """Points of the reliability curve, lowest risk first; empty bins left out.

    All arrays (bins that hold somebody,).
    """

    mean_risk: Floats
    infected_share: Floats
    low: Floats
    """Lower end of Wilson's interval of ``infected_share``."""
    high: Floats
    people: Counts


def need_probabilities(ranked: Curve) -> None:
    """Raise ``DataError`` unless every score lies in [0, 1].

    A softmax in single precision may end a rounding error outside; that passes.
    """
    high, low = float(ranked.score[0]), float(ranked.score[-1])
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        wrong = low if low < -_ROUNDING else high
        raise DataError(
            f"score {wrong:g} is no probability: scores that only rank people "
            "must be named so (probabilities=False)"
        )


def brier(ranked: Curve) -> Floats:
    """Mean squared difference of risk and truth: (...,); lower is better."""
    risk = _risks(ranked)
    lost = ranked.positives * (1 - risk) ** 2 + ranked.negatives * risk**2
    return np.asarray(lost.sum(-1) / ranked.people)


def log_loss(ranked: Curve) -> Floats:
    """Mean negative log likelihood in nats: (...,); lower is better.

    Risks are clipped to [1e-7, 1 - 1e-7]: single precision cannot come closer
    to 1 without being 1, and one saturated mistake (16.1 nats) then weighs much
    instead of making the mean infinite.
    """
    risk = np.clip(_risks(ranked), CLIP, 1 - CLIP)
    lost = ranked.positives * np.log(risk) + ranked.negatives * np.log1p(-risk)
    return np.asarray(-lost.sum(-1) / ranked.people)


def mean_risk(ranked: Curve) -> Floats:
    """Mean of the risks: (...,); of calibrated risks it is the prevalence."""
    risk = _risks(ranked)
    total = ((ranked.positives + ranked.negatives) * risk).sum(-1)
    return np.asarray(total / ranked.people)


def calibration_error(ranked: Curve, bins: int, binning: Binning) -> Floats:
    """Expected calibration error: (...,).

    The mean over people of the distance between the mean risk of their bin and
    its infected share. By ``"width"``, bins are [k/bins, (k+1)/bins) and the last
    is closed. By ``"mass"``, a person's bin follows from its rank; people with
    equal risks are never parted, so the bins may hold unequal numbers.
    """
    sums = _binned(ranked, bins, binning)
    return np.asarray(np.abs(sums.risk - sums.positives).sum(-1) / sums.people.sum(-1))


def reliability(
    ranked: Curve, bins: int = 15, binning: Binning = "mass"
) -> Reliability:
    """Infected share against mean risk by bin, with 95 % Wilson intervals."""
    if ranked.positives.ndim != 1:
        raise DataError("the reliability curve is drawn for one ranking at a time")
    sums = _binned(ranked, bins, binning)
    held = sums.people > 0
    people, positives = sums.people[held], sums.positives[held]
    share = positives / people
    z = float(stats.norm.ppf(0.975))
    middle = (share + z**2 / (2 * people)) / (1 + z**2 / people)
    spread = np.sqrt(share * (1 - share) / people + z**2 / (4 * people**2))
    half = z * spread / (1 + z**2 / people)
    low, high = np.maximum(middle - half, 0), np.minimum(middle + half, 1)
    counted = people.astype(np.int64)
    return Reliability(sums.risk[held] / people, share, low, high, counted)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the people of each bin: (..., bins)."""

    risk: Floats
    positives: Floats
    people: Floats


def _risks(ranked: Curve) -> Probabilities:
    need_probabilities(ranked)
    return np.clip(ranked.score, 0, 1)


def _binned(ranked: Curve, bins: int, binning: Binning) -> _Sums:
    whole(1, bins=bins)
    one_of(("width", "mass"), binning=binning)
    risk = _risks(ranked)
    size = ranked.positives + ranked.negatives
    if binning == "width":
        # k / bins is rounded as the decimal is read: 0.3 lies in the bin from 3/10.
        edges = np.arange(1, bins) / bins
        chosen = np.broadcast_to(np.searchsorted(edges, risk, "right"), size.shape)
    else:
        below = ranked.people[..., None] - ranked.called
        rank = ratio(below + size / 2, ranked.people[..., None])
        chosen = np.minimum((rank * bins).astype(np.int64), bins - 1)
    return _Sums(
        _sum_by_bin(size * risk, chosen, bins),
        _sum_by_bin(ranked.positives, chosen, bins),
        _sum_by_bin(size, chosen, bins),
    )


def _sum_by_bin(values: Floats | Counts, chosen: NDArray[np.intp], bins: int) -> Floats:
    shape = values.shape[:-1]
    rows = int(np.prod(shape))
    flat = chosen.reshape(rows, -1) + bins * np.arange(rows)[:, None]
    weights = values.astype(np.float64).ravel()
    summed = np.bincount(flat.ravel(), weights, minlength=rows * bins)
    return np.asarray(summed.reshape(*shape, bins), np.float64)
