"""Label inference: who was tested, and with which result?

The paper names the sign of the update as a risk and does not try it. Three attacks:

- **Gradients.** A tested person's gradient points to its own result: that of the
  head's logits is p - y, negative on the side of the result. The head's gradient is
  (p - y) times [h || 1] with h of one sign (relu), for both logits alike up to the
  sign, and 0 for untested people: along the mean of [h || 1] a person's sum over
  rounds is - for a positive and + for a negative.
- **Rows.** A person's own row is moved by nothing but that gradient, round by round,
  so that it drifts along a direction which the broadcast parameters reveal.
- **Status rows.** With ``model.input=status`` the first layer's row of a person is the
  broadcast column of its status, clipped: one of three rows that the server knows in
  every round. It compares a person's uploads with each of them (a matched filter) over
  all rounds, hidden rounds included as what they are (``upload_recorder.KnownRows``).

All are functions of ``UploadStatistics`` and public knowledge; only ``judge`` reads the
truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from epifalcon.attacks.upload_recorder import UploadStatistics
from epifalcon.checks import same_length
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
    """Scores of every recorded person; higher means more suspicious."""

    name: str
    positive: Floats
    """(people,) that its test was positive."""
    tested: Floats
    """(people,) that it was tested at all."""
    likely: Floats | None = None
    """(people, 3) the log-likelihood if it is negative, positive, untested, where the
    attack has one to be added to others."""

    @classmethod
    def of(cls, name: str, likely: Floats) -> "LabelScores":
        """Combine log-likelihoods (people, 3), with equal priors of both results."""
        negative, positive, untested = likely.T
        tested = np.logaddexp(negative, positive) - untested
        return cls(name, positive - negative, tested, likely)


@dataclass(frozen=True)
class LabelAttackResult:
    """How well a diagnosis ranks people: .5 is chance; undefined for one kind."""

    name: str
    positive: Interval
    """AUC of positive against negative among the tested."""
    tested: Interval
    """AUC of tested against untested."""
    held_back: int = 0
    """Tested people left out, since nothing of their tests entered the training."""


def from_gradients(notes: UploadStatistics) -> LabelScores:
    """Infer labels from each person's noised gradients.

    Adds the log-likelihoods of the head's gradient along the direction that people
    share, and of the energy over all parameters and rounds, which is larger for
    tested people whichever way their gradients point. Untested people have noise
    around 0, tested people around centres; no signal is larger than the clip.
    """
    head = read_head_gradients(notes)
    if head.stands_out:
        by_sum = fit_mixture(head.along, head.most, (1.0, -1.0))
    else:
        usual = np.array([0.0, head.usual, -head.usual])
        by_sum = np.asarray(stats.norm.logpdf(head.along[:, None], usual))
    # By how much squared gradients exceed their noise, in units of its spread.
    rounds, terms = max(notes.rounds, 1), notes.terms
    count = rounds * max(terms.parameters, 1)
    unit = _gradient_noise(notes) ** 2 * np.sqrt(2 * count)
    beyond = (notes.gradient_energy - count * terms.gradient_sigma**2) / unit
    most = float(rounds * _largest_gradient(notes) ** 2 / unit)
    by_energy = fit_mixture(beyond, most, sides=(1.0,))
    likely = np.column_stack([by_sum[:, 1:], by_sum[:, 0]])
    likely += np.column_stack([by_energy[:, 1], by_energy[:, 1], by_energy[:, 0]])
    return LabelScores.of("gradients", likely)


def both(one: LabelScores, other: LabelScores) -> LabelScores:
    """Combine two attacks on different messages, whose log-likelihoods add up."""
    if one.likely is None or other.likely is None:
        raise DataError(f"{one.name} and {other.name} have no likelihoods to add")
    return LabelScores.of(f"{one.name} and {other.name}", one.likely + other.likely)


def from_rows(notes: UploadStatistics) -> LabelScores:
    """Infer labels from the drift of each person's first-layer row.

    The direction is the one in which the layers, taken as linear, raise the logit of
    a positive. Weight decay moves every row too, but along itself; so only the part
    orthogonal to the early row counts, and a long drift either way indicates a test.
    """
    stored = notes.terms.stored_rows(notes.rounds)
    part = stored // _PART
    if part < 1:
        raise DataError(f"rows of {stored} rounds are too few to drift")
    early, late = (
        _mean(notes.rows[:, some], notes.certainty[:, some])
        for some in (slice(0, part), slice(stored - part, stored))
    )
    length = np.linalg.norm(early, axis=1, keepdims=True)
    own = early / np.maximum(length, _LEAST_LENGTH)
    across = late - (late * own).sum(axis=1, keepdims=True) * own
    along = across @ logit_direction(notes)
    return LabelScores("rows", along, np.abs(along))


def logit_direction(notes: UploadStatistics) -> Floats:
    """Return the unit vector along which a first-layer row raises the logit: (width,).

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
    diagnosis: LabelScores, status: NDArray[np.int8], held_back: Mask | None = None
) -> LabelAttackResult:
    """Compare with the truth: ``status`` (people,) is 1, 0, or -1 for untested.

    ``held_back`` (people,) marks tested people whose tests only validation saw.
    Their devices send what those of untested people do, so that they are neither:
    they are left out, and counted.
    """
    apart = np.zeros(len(status), np.bool_) if held_back is None else held_back
    same_length(positive=diagnosis.positive, status=status, held_back=apart)
    tested, judged = (status >= 0) & ~apart, ~apart
    return LabelAttackResult(
        diagnosis.name,
        _auc(diagnosis.positive[tested], status[tested] == 1),
        _auc(diagnosis.tested[judged], tested[judged]),
        int(np.count_nonzero(apart)),
    )


def from_statuses(notes: UploadStatistics, likely: Floats | None = None) -> LabelScores:
    """Infer labels from the rows of a status input.

    ``likely`` (claims,) are the probabilities of the claims to be true, by an attack
    on places that does not use the uploads. Where a single round is informative, the
    recorded round-by-round likelihood is used: it infers the places from the uploads
    and sees in which rounds a status was hidden. Otherwise the uploads of all rounds
    are weighted by ``likely``.
    """
    if not notes.terms.statuses:
        raise DataError("people have rows of their own: there is no status to read")
    if likely is None or notes.terms.input_dropout or _clarity(notes) >= _CLEAR:
        return LabelScores.of("rows", np.array(notes.status))
    return LabelScores.of("rows", _weighed(notes, likely))


@dataclass(frozen=True, eq=False)
class HeadGradients:
    """Head gradients of each person along one direction, in units of their noise."""

    along: Floats
    """(people,) below 0 for a positive."""
    stands_out: bool
    """Whether people have more in common than noise alone would give them (the
    largest singular value, Johnstone 2001, at 1 %)."""
    most: float
    """The largest signal that the clip allows."""
    usual: float
    """What to expect of a tested person where nothing stands out: half of that in
    the rounds that ask it, and no more than the noise, which would stand out."""


def read_head_gradients(notes: UploadStatistics) -> HeadGradients:
    """Project the sums of head gradients on the direction of ``[h || 1]``.

    Where people's sums have something in common beyond noise, the direction is
    their first singular vector. Where they have not, it is the one to be expected
    from the parameters: unit j of the last layer reads a row of about normal
    coordinates, so that it opens by E relu(N(b_j, |W_j|^2 s^2)); s^2 is what
    uploads of norm 1 and their noise leave in what a person receives.
    """
    if "head.weight" not in notes.gradients:
        raise DataError("the notes hold no gradients")
    weight, bias = notes.gradients["head.weight"], notes.gradients["head.bias"]
    sums = np.concatenate([weight[:, 1] - weight[:, 0], bias[:, 1:] - bias[:, :1]], 1)
    rounds, sigma = max(notes.rounds, 1), _gradient_noise(notes)
    sums = sums / (sigma * np.sqrt(2 * rounds))
    _, sizes, directions = np.linalg.svd(sums, full_matrices=False)
    direction = directions[0] * (1.0 if directions[0].sum() >= 0 else -1.0)
    stands_out = bool(sizes[0] ** 2 > _noise_edge(sums.shape))
    if not stands_out and notes.parameters and "cell.weight" not in notes.parameters:
        direction = expected_direction(notes)
    most = float(_largest_gradient(notes) * np.sqrt(rounds) / sigma)
    usual = min(_SHARE * (notes.terms.mask_share or 1.0) * most, 1.0)
    return HeadGradients(sums @ direction, stands_out, most, usual)


def expected_direction(notes: UploadStatistics) -> Floats:
    """Compute the mean of ``[h || 1]`` from the newest parameters, as a unit vector."""
    parameters = notes.parameters
    last = sum(name.startswith("layer") for name in parameters) // 2 - 1
    weight = parameters[f"layer{last}.weight"][:, : notes.terms.width].astype(float)
    bias = parameters[f"layer{last}.bias"].astype(float)
    spread = np.linalg.norm(weight, axis=1) * _received_spread(notes)
    spread = np.maximum(spread, 1e-12)
    away = bias / spread
    opened = bias * stats.norm.cdf(away) + spread * stats.norm.pdf(away)
    made = np.append(opened, 1.0)
    return np.asarray(made / np.linalg.norm(made))


def _gradient_noise(notes: UploadStatistics) -> float:
    """Return sigma, or a small assumed value where there is no noise."""
    clip = 1.0 if notes.terms.gradient_clip is None else notes.terms.gradient_clip
    return max(notes.terms.gradient_sigma, _LEAST_NOISE * clip)


def _largest_gradient(notes: UploadStatistics) -> float:
    """Return the largest norm of a gradient: the clip, or the largest one seen."""
    if notes.terms.gradient_clip is not None:
        return notes.terms.gradient_clip
    return float(np.sqrt(notes.gradient_energy.max(initial=0.0)))


def fit_mixture(values: Floats, most: float, sides: Sequence[float]) -> Floats:
    """Compute the log-likelihood of each value by kind: (people, 1 + sides).

    Values are those of people without a signal, N(0, 1), the first kind, and of
    people with one, around centres of known sides. Shares, centres and spread are
    found by expectation maximisation (Dempster, Laird and Rubin 1977).
    ``values`` (people,) are in units of their noise; ``sides`` are the signs of the
    centres, ``most`` the largest signal that the protocol allows. Noise may turn
    out larger than 1 but not smaller. Without any signal the kinds end alike, so
    that the numbers can be added to other evidence.
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
        # Where everybody is of one kind, the shares of others must stay above 0.
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


def _received_spread(notes: UploadStatistics) -> float:
    """Return the standard deviation of a coordinate that people receive."""
    terms = notes.terms
    if terms.upload_clip is None:
        return float(1 / np.sqrt(terms.width))
    gain = max(1.0, 1 / terms.upload_clip)
    signal = (gain * terms.upload_clip) ** 2 / terms.width
    counted = ~np.isnan(notes.counts)
    if not counted.any():
        return float(np.sqrt(signal))
    # The noise of all who claim a place, over how many are taken to be there.
    there = np.maximum(notes.counts[counted], 1.0)
    each = float(np.mean(notes.claimed[counted] / there**2)) / terms.windows
    return float(np.sqrt(signal + (gain * terms.upload_sigma) ** 2 * each))


def _noise_edge(shape: tuple[int, ...]) -> float:
    """Return the 99 % quantile of the largest squared singular value of unit noise."""
    many, wide = np.sqrt(max(shape[0] - 1, 1)), np.sqrt(shape[1])
    spread = (many + wide) * (1 / many + 1 / wide) ** (1 / 3)
    return float((many + wide) ** 2 + _TRACY_WIDOM * spread)


def _clarity(notes: UploadStatistics) -> float:
    """Return the mean squared distance of both results per round, in noise units."""
    products = notes.gram[0] / max(notes.rounds, 1)
    apart = products[0, 0] + products[1, 1] - 2 * products[0, 1]
    stored = notes.terms.stored_rows(notes.rounds)
    certain = float(notes.certainty[:, :stored].mean()) if stored else 0.0
    return float(certain * apart / notes.terms.assumed_sigma**2)


def _weighed(notes: UploadStatistics, likely: Floats) -> Floats:
    """Compute log-likelihoods from the products with the three known rows.

    Weighted by the chances w and added up they are Gaussian: their mean is
    sum w^2 times the rows' own products, by how often each is shown, their
    covariance that of the noise and that of being hidden at random.
    """
    people = len(notes.people)
    met = np.stack(
        [np.bincount(notes.person, likely * one, people) for one in notes.met], axis=1
    )
    certain = np.bincount(notes.person, likely * likely, people)
    mask = float(notes.terms.mask_share or 0.0)
    products, hidden = notes.gram[0], (*notes.gram[1:], np.zeros_like(notes.gram[0]))
    noise = notes.terms.assumed_sigma**2 * products
    ridge = _RIDGE * float(np.trace(noise)) * np.eye(len(noise))
    made = np.zeros((people, len(products)))
    seen = certain > 0
    for status, spread in enumerate(hidden):
        mean = (1 - mask) * products[status] + mask * products[-1]
        away = met[seen] / certain[seen, None] - mean
        around = (noise + ridge) / certain[seen, None, None] + spread
        _, size = np.linalg.slogdet(around)
        square = (away * np.linalg.solve(around, away[..., None])[..., 0]).sum(axis=1)
        made[seen, status] = -(square + size) / 2
    return made
