"""Label inference: who was tested, and with which result?

The paper mentions the sign of the update as a risk without testing it. Three attacks:

- **Gradients.** A tested person's gradient points to its own result: that of the
  head's logits is p - y, negative on the side of the result. The head's gradient is
  (p - y) times [h || 1] with h of one sign (relu), equal for both logits up to the
  sign, and 0 for untested people: along the mean of [h || 1] a person's sum over
  rounds is negative for a positive test and positive for a negative one.
- **Rows.** A person's own row changes only by that gradient, so it drifts along a
  direction that the broadcast parameters reveal.
- **Status rows.** With ``model.input=status`` the first layer's row of a person is the
  broadcast column of its status, clipped: one of three rows that the server knows in
  every round. It compares a person's uploads with each of them (a matched filter) over
  all rounds, including those that hide the status (``upload_recorder.KnownRows``).

All are functions of ``UploadStatistics`` and public knowledge; only ``evaluate`` reads
the truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from epifalcon.attacks.upload_recorder import UploadStatistics
from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import curve
from epifalcon.evaluation.uncertainty import LEVEL, Interval, auc_interval
from epifalcon.models.person_model import CELL_WIDTH
from epifalcon.types import Floats, Mask

_PART = 3
_LEAST_LENGTH = 1e-12
_LEAST_NOISE = 1e-3
_TRACY_WIDOM = 2.02
"""Quantile at 99 % of the Tracy-Widom law of order 1."""
_SHARE = 0.5
_CLEAR = 1.0
_RIDGE = 1e-9
_STEPS, _STEADY, _LEAST = 200, 1e-9, 1e-3


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Attack scores of every recorded person; higher means more likely."""

    name: str
    positive: Floats
    """Scores for a positive test, (people,)."""
    tested: Floats
    """Scores for being tested, (people,)."""
    likely: Floats | None = None
    """Log-likelihoods of "negative", "positive" and "untested", (people, 3); None if
    the attack has none."""

    @classmethod
    def of(cls, name: str, likely: Floats) -> "LabelScores":
        """Compute scores from log-likelihoods (people, 3), with equal priors."""
        negative, positive, untested = likely.T
        tested = np.logaddexp(negative, positive) - untested
        return cls(name, positive - negative, tested, likely)


@dataclass(frozen=True)
class LabelAttackResult:
    """Accuracy of an attack's ranking; an AUC of .5 is chance."""

    positive: Interval
    """AUC for separating positive from negative people among the tested."""
    tested: Interval
    """AUC for separating tested from untested people."""
    held_back: int = 0
    """Number of tested people excluded because their tests were not trained on."""


def from_gradients(statistics: UploadStatistics) -> LabelScores:
    """Infer labels from each person's noised gradients.

    Adds two log-likelihoods: that of the head's gradient along the direction that
    people share, and that of the squared norm over all parameters and rounds, which is
    larger for tested people in any direction. Values are noise around 0 for untested
    people, and around centres within the clip for tested people.
    """
    head = read_head_gradients(statistics)
    if head.stands_out:
        by_sum = fit_mixture(head.along, head.most, (1.0, -1.0))
    else:
        usual = np.array([0.0, head.usual, -head.usual])
        by_sum = np.asarray(stats.norm.logpdf(head.along[:, None], usual))
    # Squared gradients in excess of their noise, in units of its standard deviation.
    rounds, terms = max(statistics.rounds, 1), statistics.terms
    count = rounds * max(terms.parameters, 1)
    unit = _gradient_noise(statistics) ** 2 * np.sqrt(2 * count)
    beyond = (statistics.gradient_energy - count * terms.gradient_sigma**2) / unit
    most = float(rounds * _largest_gradient(statistics) ** 2 / unit)
    by_energy = fit_mixture(beyond, most, sides=(1.0,))
    likely = np.column_stack([by_sum[:, 1:], by_sum[:, 0]])
    likely += np.column_stack([by_energy[:, 1], by_energy[:, 1], by_energy[:, 0]])
    return LabelScores.of("gradients", likely)


def both(one: LabelScores, other: LabelScores) -> LabelScores:
    """Combine two attacks on different messages, whose log-likelihoods add up."""
    if one.likely is None or other.likely is None:
        raise DataError(f"{one.name} and {other.name} have no likelihoods to add")
    return LabelScores.of(f"{one.name} and {other.name}", one.likely + other.likely)


def from_rows(statistics: UploadStatistics) -> LabelScores:
    """Infer labels from the drift of each person's first-layer row.

    The direction is the one in which the linearised layers raise the logit of a
    positive. Weight decay also moves every row, but along itself, so only the part
    orthogonal to the early row counts. A long drift in either direction indicates a
    test.
    """
    stored = statistics.terms.stored_rows(statistics.rounds)
    part = stored // _PART
    if part < 1:
        raise DataError(f"rows of {stored} rounds: at least {_PART} are needed")
    early, late = (
        _mean(statistics.rows[:, some], statistics.certainty[:, some])
        for some in (slice(0, part), slice(stored - part, stored))
    )
    length = np.linalg.norm(early, axis=1, keepdims=True)
    own = early / np.maximum(length, _LEAST_LENGTH)
    across = late - (late * own).sum(axis=1, keepdims=True) * own
    along = across @ logit_direction(statistics)
    return LabelScores("rows", along, np.abs(along))


def logit_direction(statistics: UploadStatistics) -> Floats:
    """Return the unit vector along which a first-layer row raises the logit: (width,).

    Computed from the newest broadcast parameters with all relu units active.
    """
    stored = statistics.parameters
    parameters = {name: one.astype(float) for name, one in stored.items()}
    head = parameters["head.weight"]
    found = head[1] - head[0]
    if "cell.weight" in parameters:
        # From a zero state an LSTM cell outputs a fixed part of its candidate.
        found = found @ parameters["cell.weight"][CELL_WIDTH : 2 * CELL_WIDTH]
    layer = sum(name.startswith("layer") for name in parameters) // 2
    for number in reversed(range(layer)):
        found = found @ parameters[f"layer{number}.weight"][:, : statistics.terms.width]
    length = float(np.linalg.norm(found))
    return np.asarray(found / length if length else found)


def evaluate(
    scores: LabelScores, status: NDArray[np.int8], held_back: Mask | None = None
) -> LabelAttackResult:
    """Compare scores with the truth: ``status`` (people,) is 1, 0, or -1 (untested).

    ``held_back`` (people,) marks validation people. Their devices send the same as
    those of untested people, so they are excluded and counted.
    """
    apart = np.zeros(len(status), np.bool_) if held_back is None else held_back
    tested, counted = (status >= 0) & ~apart, ~apart
    return LabelAttackResult(
        _auc(scores.positive[tested], status[tested] == 1),
        _auc(scores.tested[counted], tested[counted]),
        int(np.count_nonzero(apart)),
    )


def from_statuses(
    statistics: UploadStatistics, likely: Floats | None = None
) -> LabelScores:
    """Infer labels from the rows of a status input.

    ``likely`` (claims,) are the probabilities that claims are true, by an attack on
    places that does not use the uploads. If a single round is informative, the recorded
    likelihood by round is used: it infers the places from the uploads and in which
    rounds a status was hidden. Otherwise the uploads of all rounds are weighted by
    ``likely``.
    """
    terms = statistics.terms
    # Squared distance of both results in a round, in noise variances.
    products = statistics.gram[0] / max(statistics.rounds, 1)
    apart = products[0, 0] + products[1, 1] - 2 * products[0, 1]
    stored = terms.stored_rows(statistics.rounds)
    certain = float(statistics.certainty[:, :stored].mean()) if stored else 0.0
    clear = certain * apart / terms.assumed_sigma**2 >= _CLEAR
    if likely is None or terms.input_dropout or clear:
        return LabelScores.of("rows", np.array(statistics.status))
    return LabelScores.of("rows", _weighed(statistics, likely))


@dataclass(frozen=True, eq=False)
class HeadGradients:
    """Head gradients of each person along one direction, in units of their noise."""

    along: Floats
    """Signal of each person, (people,), negative for a positive test."""
    stands_out: bool
    """True if the largest singular value exceeds that of noise alone at the 1 % level
    (Johnstone 2001)."""
    most: float
    """The largest signal that the clip allows."""
    usual: float
    """Expected signal of a tested person if nothing stands out: half of ``most`` in
    the rounds with a loss, at most the noise."""


def read_head_gradients(statistics: UploadStatistics) -> HeadGradients:
    """Project the sums of head gradients on the direction of ``[h || 1]``.

    If the largest singular value exceeds that of noise, the direction is the first
    singular vector of the sums. Otherwise it is the expected one: unit j of the last
    layer reads a row of approximately normal coordinates, so its mean is
    E relu(N(b_j, |W_j|^2 s^2)), where s^2 is the variance of a received coordinate.
    """
    gradients = statistics.gradients
    weight, bias = gradients["head.weight"], gradients["head.bias"]
    sums = np.concatenate([weight[:, 1] - weight[:, 0], bias[:, 1:] - bias[:, :1]], 1)
    rounds, sigma = max(statistics.rounds, 1), _gradient_noise(statistics)
    sums = sums / (sigma * np.sqrt(2 * rounds))
    _, sizes, directions = np.linalg.svd(sums, full_matrices=False)
    direction = directions[0] * (1.0 if directions[0].sum() >= 0 else -1.0)
    stands_out = bool(sizes[0] ** 2 > _noise_edge(sums.shape))
    parameters = statistics.parameters
    if not stands_out and parameters and "cell.weight" not in parameters:
        direction = expected_direction(statistics)
    most = float(_largest_gradient(statistics) * np.sqrt(rounds) / sigma)
    usual = min(_SHARE * (statistics.terms.mask_share or 1.0) * most, 1.0)
    return HeadGradients(sums @ direction, stands_out, most, usual)


def expected_direction(statistics: UploadStatistics) -> Floats:
    """Compute the mean of ``[h || 1]`` from the newest parameters, as a unit vector."""
    parameters, width = statistics.parameters, statistics.terms.width
    last = sum(name.startswith("layer") for name in parameters) // 2 - 1
    weight = parameters[f"layer{last}.weight"][:, :width].astype(float)
    bias = parameters[f"layer{last}.bias"].astype(float)
    spread = np.linalg.norm(weight, axis=1) * _received_spread(statistics)
    spread = np.maximum(spread, 1e-12)
    away = bias / spread
    opened = bias * stats.norm.cdf(away) + spread * stats.norm.pdf(away)
    made = np.append(opened, 1.0)
    return np.asarray(made / np.linalg.norm(made))


def _gradient_noise(statistics: UploadStatistics) -> float:
    """Return sigma, or a small assumed value where there is no noise."""
    terms = statistics.terms
    clip = 1.0 if terms.gradient_clip is None else terms.gradient_clip
    return max(terms.gradient_sigma, _LEAST_NOISE * clip)


def _largest_gradient(statistics: UploadStatistics) -> float:
    """Return the largest norm of a gradient: the clip, or the largest one seen."""
    if statistics.terms.gradient_clip is not None:
        return statistics.terms.gradient_clip
    return float(np.sqrt(statistics.gradient_energy.max(initial=0.0)))


def fit_mixture(values: Floats, most: float, sides: Sequence[float]) -> Floats:
    """Compute the log-likelihood of each value by kind: (people, 1 + sides).

    The first kind are people without a signal, N(0, 1); the others have centres of
    known signs. Shares, centres and variances are fitted by expectation maximisation
    (Dempster, Laird and Rubin 1977). ``values`` (people,) are in units of their
    noise; ``sides`` are the signs of the centres, ``most`` is the largest signal that
    the protocol allows. The fitted noise is at least 1. Without any signal all kinds
    become equal, so the result can be added to other evidence.
    """
    signs = np.concatenate([[0.0], np.asarray(sides, float)])
    excess = max(float(np.mean(values * values)) - 1, _LEAST)
    centre = signs * min(np.sqrt(2 * excess), most)
    variance = np.full(len(signs), 1 + min(excess, most * most) / 2)
    variance[0] = 1.0
    share = np.full(len(signs), 0.5 / len(sides))
    share[0] = 0.5
    before = -np.inf

    def log_densities() -> Floats:
        return np.asarray(stats.norm.logpdf(values[:, None], centre, np.sqrt(variance)))

    for _ in range(_STEPS):
        joint = log_densities() + np.log(share)
        whole = np.logaddexp.reduce(joint, axis=1)
        total = float(whole.mean())
        if total - before < _STEADY * max(1.0, abs(total)):
            break
        before = total
        belongs = np.exp(joint - whole[:, None])
        # If everybody is of one kind, the other shares must stay above 0.
        weight = belongs.sum(axis=0) + _LEAST
        share = weight / weight.sum()
        found = (belongs * values[:, None]).sum(axis=0) / weight
        centre = signs * np.clip(signs * found, 0.0, most)
        away = (belongs * (values[:, None] - centre) ** 2).sum(axis=0)
        noise = max(float(away[0] / weight[0]), 1.0)
        spread = float(away[1:].sum() / weight[1:].sum()) - noise
        variance = np.full(len(signs), noise + np.clip(spread, 0.0, most * most / 4))
        variance[0] = noise
    return log_densities()


def _auc(score: Floats, truth: NDArray[np.bool_]) -> Interval:
    """Return the AUC with DeLong's interval, or Clopper-Pearson's if it is perfect."""
    if not len(score):
        return Interval()
    found = auc_interval(curve(score, truth))
    if found.estimate is None or found.low is not None:
        return found
    fewer = min(np.count_nonzero(truth), np.count_nonzero(~truth))
    unseen = 1 - ((1 - LEVEL) / 2) ** (1 / fewer)
    low, high = max(0.0, found.estimate - unseen), min(1.0, found.estimate + unseen)
    return Interval(found.estimate, low, high)


def _mean(rows: NDArray[np.float32], sure: NDArray[np.float32]) -> Floats:
    """Return the mean row of some rounds, weighted by certainty: (people, width)."""
    total = sure.sum(axis=1, dtype=float)
    mean = (rows * sure[..., None]).sum(axis=1, dtype=float)
    return np.asarray(mean / np.maximum(total, 1e-9)[:, None])


def _received_spread(statistics: UploadStatistics) -> float:
    """Return the expected standard deviation of received rows, per coordinate."""
    terms = statistics.terms
    if terms.upload_clip is None:
        return float(1 / np.sqrt(terms.width))
    gain = max(1.0, 1 / terms.upload_clip)
    signal = (gain * terms.upload_clip) ** 2 / terms.width
    counted = ~np.isnan(statistics.counts)
    if not counted.any():
        return float(np.sqrt(signal))
    # Noise of all claims of a place, divided by the people assumed there.
    there = np.maximum(statistics.counts[counted], 1.0)
    each = float(np.mean(statistics.claimed[counted] / there**2)) / terms.windows
    return float(np.sqrt(signal + (gain * terms.upload_sigma) ** 2 * each))


def _noise_edge(shape: tuple[int, ...]) -> float:
    """Return the 99 % quantile of the largest squared singular value of unit noise."""
    many, wide = np.sqrt(max(shape[0] - 1, 1)), np.sqrt(shape[1])
    spread = (many + wide) * (1 / many + 1 / wide) ** (1 / 3)
    return float((many + wide) ** 2 + _TRACY_WIDOM * spread)


def _weighed(statistics: UploadStatistics, likely: Floats) -> Floats:
    """Compute log-likelihoods (people, 3) from products of uploads and known rows.

    A person's products are summed with the probabilities w of its claims and are
    Gaussian. Their mean is sum w^2 times the products of the rows, weighted by how
    often each is shown; their covariance is that of noise and of hiding the status.
    """
    people, person = len(statistics.people), statistics.person
    sums = [np.bincount(person, likely * one, people) for one in statistics.matched]
    matched = np.stack(sums, axis=1)
    certain = np.bincount(person, likely * likely, people)
    mask = float(statistics.terms.mask_share or 0.0)
    products = statistics.gram[0]
    hidden = (*statistics.gram[1:], np.zeros_like(products))
    noise = statistics.terms.assumed_sigma**2 * products
    ridge = _RIDGE * float(np.trace(noise)) * np.eye(len(noise))
    made = np.zeros((people, len(products)))
    seen = certain > 0
    for status, spread in enumerate(hidden):
        mean = (1 - mask) * products[status] + mask * products[-1]
        away = matched[seen] / certain[seen, None] - mean
        around = (noise + ridge) / certain[seen, None, None] + spread
        _, size = np.linalg.slogdet(around)
        square = (away * np.linalg.solve(around, away[..., None])[..., 0]).sum(axis=1)
        made[seen, status] = -(square + size) / 2
    return made
