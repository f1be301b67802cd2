"""Logistic regression and boosted trees on the daily exposure to known contacts.

Tested people are predicted out of fold: neither inputs nor model of a fold contain its
results. These predictions select the hyperparameter and are the masked risks.
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

from epifalcon.checks import Checked, Count, NonNegative, Positive, Share, whole
from epifalcon.epidemic.test_results import TestResults, exclude_people, random_folds
from epifalcon.errors import SettingsError
from epifalcon.logistic import log_losses
from epifalcon.methods.base import Method, Scores, require_both
from epifalcon.methods.contact_tracing import CHANNELS, daily_exposure
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, PersonIds, Probabilities

_DAILY = (1, -1, 0, 0)
_SUMMARIES = (1, -1, 0, 0, 1, 1, 1, 1, 1)
"""Monotonic constraint of each input: increasing, decreasing, or none."""
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class Fold:
    """Training rows, each without the person's own result, and people to predict."""

    x: Floats
    """(training people, inputs)"""
    infected: Mask
    """(training people,)"""
    people: PersonIds
    """(predicted,)"""
    people_x: Floats
    """(predicted, inputs)"""

    @property
    def share(self) -> float:
        """Share of positive results, with half a result of each kind added."""
        return float((self.infected.sum() + 0.5) / (len(self.x) + 1))

    @property
    def one_class(self) -> bool:
        """Return True if all results are equal, as in a fold of a small city."""
        return bool(self.infected.all() or not self.infected.any())


class ExposureMethod(Method):
    """A learner whose hyperparameter is chosen by out-of-fold log loss."""

    @abstractmethod
    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        """Return (people, inputs) from ``daily_exposure``."""

    @abstractmethod
    def risks(self, fold: Fold) -> Iterator[Probabilities]:
        """Yield the risk of the predicted people with each candidate."""

    @abstractmethod
    def outcome(self, best: int, days: int) -> dict[str, Any]:
        """Return the fields of ``Scores`` that describe the chosen candidate."""

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Predict each fold with every candidate; fit the best to all tests."""
        require_both(known)

        def fold(seen: TestResults, people: PersonIds) -> Fold:
            x = self.inputs(daily_exposure(traces, seen.status))
            infected = np.equal(seen.status[seen.tested], 1)
            return Fold(x[seen.tested], infected, people, x[people])

        count = self.settings.folds
        numbers = random_folds(known, count, Streams(self.seed).numpy("folds"))
        found: list[tuple[PersonIds, Floats]] = []
        for number in range(count):
            people = np.flatnonzero(numbers == number).astype(np.int32)
            seen = exclude_people(known, people)
            if len(people) and seen.tested.any():
                found.append((people, np.stack(list(self.risks(fold(seen, people))))))
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
            list(self.risks(fold(known, everybody)))[best],
            masked=people,
            masked_risk=risks[best],
            **outcome,
        )


@dataclass(frozen=True, kw_only=True)
class ExposureLogisticSettings(Checked):
    """Regularisation of the regression."""

    strengths: tuple[Positive, ...] = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.1)
    """Scikit-learn's C, chosen by the out-of-fold log loss."""
    folds: Annotated[int, partial(whole, 2)] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strengths:
            raise SettingsError("strengths must name at least one")


class ExposureLogistic(ExposureMethod):
    """Scikit-learn's logistic regression on the daily exposure of all days.

    The inputs are those of ``daily_exposure``, standardised; shares enter by their
    square root, which had a lower out-of-fold loss.
    """

    name = "exposure-logistic"
    settings_type = ExposureLogisticSettings
    settings: ExposureLogisticSettings

    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        """Return (people, days * channels), the two shares by their square root."""
        x = exposure.astype(np.float64)
        x[:, :, :2] = np.sqrt(x[:, :, :2])
        return x.reshape(len(x), -1)

    def outcome(self, best: int, days: int) -> dict[str, Any]:
        """Return the chosen strength."""
        strength = self.settings.strengths[best]
        parameters = days * CHANNELS + 1
        return {"parameters": parameters, "diagnostics": {"strength": strength}}

    def risks(self, fold: Fold) -> Iterator[Probabilities]:
        """Yield the risk of the predicted people for each strength."""
        scale = StandardScaler().fit(fold.x)
        for strength in self.settings.strengths:
            if fold.one_class:
                yield np.full(len(fold.people), fold.share)
                continue
            # Newton's method converges to the exact solution in a few more steps.
            model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-8)
            model.fit(scale.transform(fold.x), fold.infected)
            yield model.predict_proba(scale.transform(fold.people_x))[:, 1]


@dataclass(frozen=True, kw_only=True)
class ExposureBoostingSettings(Checked):
    """The size of the trees, and their maximum number."""

    trees: Count = 200
    learning_rate: Share = 0.05
    leaves: Annotated[int, partial(whole, 2)] = 8
    least_people: Count = 50
    """Minimum people per leaf; a tenth of the people if there are few."""
    l2: NonNegative = 1.0
    folds: Annotated[int, partial(whole, 2)] = 5


class ExposureBoosting(ExposureMethod):
    """Scikit-learn's histogram gradient boosting on daily exposure and summaries.

    The summaries are means over all observed slots (known positives, known negatives,
    crowd, share observed), the share of positives among the known contacts in all and
    in the mean of days, the worst day, and the contribution of each half of the days.
    Risk may not fall with known positives met nor rise with known negatives, which had
    a lower out-of-fold loss. The number of trees is chosen by that loss; with none,
    everybody gets the share of positive tests.
    """

    name = "exposure-boosting"
    settings_type = ExposureBoostingSettings
    settings: ExposureBoostingSettings

    def inputs(self, exposure: NDArray[np.float32]) -> Floats:
        """Return (people, days * 4 + 9)."""
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
        """Return the chosen number of trees."""
        parameters = best * (2 * self.settings.leaves - 1)
        chosen = {"trees": best}
        return {"steps": best, "parameters": parameters, "diagnostics": chosen}

    def risks(self, fold: Fold) -> Iterator[Probabilities]:
        """Yield the risk of the predicted people with 0, 1, ... all trees."""
        settings = self.settings
        base = np.full(len(fold.people), fold.share)
        yield base
        if fold.one_class:
            yield from [base] * settings.trees
            return
        days = (fold.x.shape[1] - len(_SUMMARIES)) // len(_DAILY)
        model = HistGradientBoostingClassifier(
            learning_rate=settings.learning_rate,
            max_iter=settings.trees,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=min(settings.least_people, max(1, len(fold.x) // 10)),
            l2_regularization=settings.l2,
            monotonic_cst=np.array(_DAILY * days + _SUMMARIES),
            early_stopping=False,
            random_state=Streams(self.seed).seed_for("trees") % 2**32,
        )
        model.fit(fold.x, fold.infected)
        for risk in model.staged_predict_proba(fold.people_x):
            yield risk[:, 1]
