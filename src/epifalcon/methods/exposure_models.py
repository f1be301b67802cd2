"""Logistic regression and boosted trees on the daily exposure to tested contacts.

Tested people get out-of-fold predictions: inputs and model exclude the results of the
predicted fold. These predictions select the hyperparameter and are the masked risks.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from epifalcon.checks import Checked, Count, NonNegative, Positive, Share, some, whole
from epifalcon.epidemic.test_results import TestResults, exclude_people, random_folds
from epifalcon.logistic import log_losses
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.methods.contact_tracing import CHANNELS, daily_exposure
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, PersonIds, Probabilities

_DAILY = (1, -1, 0, 0)
_SUMMARIES = (1, -1, 0, 0, 1, 1, 1, 1, 1)
"""Monotonic constraint per input: 1 increasing, -1 decreasing, 0 none."""
_LEAST = 1e-9


class ExposureMethod(Method):
    """Base class of learners with a hyperparameter selected by out-of-fold log loss."""

    @abstractmethod
    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        """Compute features (people, inputs) from the output of ``daily_exposure``."""

    @abstractmethod
    def risks(self, x: Floats, infected: Mask, new: Floats) -> Iterator[Probabilities]:
        """Fit each candidate to ``x`` (people, inputs); yield the risks of ``new``."""

    @abstractmethod
    def outcome(self, best: int, days: int) -> dict[str, Any]:
        """Return the fields of ``Scores`` that describe the selected candidate."""

    def score(self, traces: Traces, known: TestResults) -> Scores:
        require_both(known)

        def predicted(seen: TestResults, people: PersonIds) -> Floats:
            x = self.inputs(daily_exposure(traces, seen.status))
            infected = np.equal(seen.status[seen.tested], 1)
            return np.stack(list(self.risks(x[seen.tested], infected, x[people])))

        count = self.settings.folds
        numbers = random_folds(known, count, Streams(self.seed).numpy("folds"))
        found: list[tuple[PersonIds, Floats]] = []
        for number in range(count):
            people = np.flatnonzero(numbers == number).astype(np.int32)
            seen = exclude_people(known, people)
            if len(people) and seen.tested.any():
                found.append((people, predicted(seen, people)))
            self.context.progress(f"{self.name}: folds", number + 1, count)
        people = np.concatenate([one for one, _ in found])
        order = np.argsort(people)
        people = people[order]
        risks = np.concatenate([one for _, one in found], axis=1)[:, order]
        infected = np.equal(known.status[people], 1)
        losses = log_losses(risks, infected, clip=1e-15).mean(axis=1)
        best = int(np.argmin(losses))
        everybody = np.arange(known.people, dtype=np.int32)
        outcome = self.outcome(best, traces.clock.days)
        outcome["diagnostics"]["masked_log_loss"] = float(losses[best])
        return Scores(
            predicted(known, everybody)[best],
            masked=people,
            masked_risk=risks[best],
            **outcome,
        )


@dataclass(frozen=True, kw_only=True)
class ExposureLogisticSettings(Checked):
    """Settings of the logistic regression."""

    strengths: Annotated[tuple[Positive, ...], some] = (
        1e-4,
        3e-4,
        1e-3,
        3e-3,
        0.01,
        0.1,
    )
    """Candidates for scikit-learn's ``C``; selected by out-of-fold log loss."""
    folds: Annotated[int, partial(whole, 2)] = 5


class ExposureLogistic(ExposureMethod):
    """Scikit-learn's logistic regression on the daily exposure of all days.

    The inputs are the standardised outputs of ``daily_exposure``. The square root of
    shares is used, which gave a lower out-of-fold loss.
    """

    name = "exposure-logistic"
    settings_type = ExposureLogisticSettings
    settings: ExposureLogisticSettings

    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        x = exposure.astype(np.float64)
        x[:, :, :2] = np.sqrt(x[:, :, :2])
        return x.reshape(len(x), -1)

    def outcome(self, best: int, days: int) -> dict[str, Any]:
        strength = self.settings.strengths[best]
        parameters = days * CHANNELS + 1
        return {"parameters": parameters, "diagnostics": {"strength": strength}}

    def risks(self, x: Floats, infected: Mask, new: Floats) -> Iterator[Probabilities]:
        if infected.all() or not infected.any():
            yield from [_share(infected, new)] * len(self.settings.strengths)
            return
        scale = StandardScaler().fit(x)
        for strength in self.settings.strengths:
            # Newton's method converges to the exact solution in a few more steps.
            model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-8)
            model.fit(scale.transform(x), infected)
            yield model.predict_proba(scale.transform(new))[:, 1]


@dataclass(frozen=True, kw_only=True)
class ExposureBoostingSettings(Checked):
    """Settings of the gradient boosting."""

    trees: Count = 200
    learning_rate: Share = 0.05
    leaves: Annotated[int, partial(whole, 2)] = 8
    least_people: Count = 50
    """Minimum number of people per leaf; at most a tenth of the training people."""
    l2: NonNegative = 1.0
    folds: Annotated[int, partial(whole, 2)] = 5


class ExposureBoosting(ExposureMethod):
    """Scikit-learn's histogram gradient boosting on daily exposure and summaries.

    The summaries are means over observed slots (known positives, known negatives,
    people present, share observed), the share of positives among tested contacts
    (overall and averaged over days), the maximum over days, and the sum over each half.
    The risk is constrained to be monotonic in positives and negatives met, which gave
    a lower out-of-fold loss. That loss selects the number of trees; without trees,
    everybody gets the share of positive tests.
    """

    name = "exposure-boosting"
    settings_type = ExposureBoostingSettings
    settings: ExposureBoostingSettings

    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        """Return daily exposures and nine summaries, (people, days * 4 + 9)."""
        x = exposure.astype(np.float64)
        positives, negatives, crowd, observed = np.moveaxis(x, 2, 0)
        weight = observed / np.maximum(observed.sum(1, keepdims=True), _LEAST)
        daily = positives * weight
        mean_positive, mean_negative = daily.sum(1), (negatives * weight).sum(1)
        half = x.shape[1] // 2
        summaries = [
            mean_positive,
            mean_negative,
            (crowd * weight).sum(1),
            observed.mean(1),
            mean_positive / np.maximum(mean_positive + mean_negative, _LEAST),
            positives.max(1),
            daily[:, :half].sum(1),
            daily[:, half:].sum(1),
            (positives / np.maximum(positives + negatives, _LEAST) * weight).sum(1),
        ]
        return np.concatenate([x.reshape(len(x), -1), np.stack(summaries, 1)], axis=1)

    def outcome(self, best: int, days: int) -> dict[str, Any]:  # noqa: ARG002
        parameters = best * (2 * self.settings.leaves - 1)
        chosen = {"trees": best}
        return {"steps": best, "parameters": parameters, "diagnostics": chosen}

    def risks(self, x: Floats, infected: Mask, new: Floats) -> Iterator[Probabilities]:
        """Yield predicted risks after 0, 1, ..., ``trees`` boosting iterations."""
        settings, share = self.settings, _share(infected, new)
        yield share
        if infected.all() or not infected.any():
            yield from [share] * settings.trees
            return
        days = (x.shape[1] - len(_SUMMARIES)) // len(_DAILY)
        model = HistGradientBoostingClassifier(
            learning_rate=settings.learning_rate,
            max_iter=settings.trees,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=min(settings.least_people, max(1, len(x) // 10)),
            l2_regularization=settings.l2,
            monotonic_cst=np.array(_DAILY * days + _SUMMARIES),
            early_stopping=False,
            random_state=Streams(self.seed).seed_for("trees") % 2**32,
        )
        model.fit(x, infected)
        for risk in model.staged_predict_proba(new):
            yield risk[:, 1]


def _share(infected: Mask, new: Floats) -> Probabilities:
    """Return the share of positives, with half a positive and half a negative added."""
    return np.full(len(new), (infected.sum() + 0.5) / (len(infected) + 1))
