"""Boosted trees on each day's known company: the usual winner on tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from epifalcon.baselines.exposure import daily_exposure
from epifalcon.baselines.method import Kind, Method, Scores, require_both
from epifalcon.baselines.out_of_fold import Fold, folds_of, log_loss, whole_of
from epifalcon.checks import non_negative, unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities

_DAILY = (1, -1, 0, 0)
_SUMMARIES = (1, -1, 0, 0, 1, 1, 1, 1, 1)
"""Whether risk may only rise with an input, only fall, or go either way."""
_LEAST = 1e-9


@dataclass(frozen=True, kw_only=True)
class ExposureBoostingSettings:
    """The size of the trees, and how many at most."""

    trees: int = 200
    learning_rate: float = 0.05
    leaves: int = 8
    least_people: int = 50
    """In a leaf; a tenth of the people where there are fewer than ten such leaves."""
    l2: float = 1.0
    folds: int = 5

    def __post_init__(self) -> None:
        whole(1, trees=self.trees, least_people=self.least_people)
        whole(2, leaves=self.leaves, folds=self.folds)
        unit_interval(learning_rate=self.learning_rate)
        non_negative(l2=self.l2)


class ExposureBoosting(Method):
    """Scikit-learn's histogram gradient boosting on daily exposure and summaries.

    The summaries are means over all observed slots (known positives, known
    negatives, crowd, share observed), the share of positives among the known
    company in all and in the mean of days, the worst day, and what each half of
    the days contributes. Risk may not fall with known positives met nor rise with
    known negatives, which fitted people left out better.

    It stops early: the number of trees (none is possible: then everybody gets the
    share of positive tests) is the one at which people left out, fold by fold,
    have the least log loss. Inputs and trees of a fold see none of its results;
    what they tell of the people in it is kept as their masked risk.
    """

    name = "exposure-boosting"
    title = "Exposure, boosting"
    kind: ClassVar[Kind] = "reference"
    settings_type = ExposureBoostingSettings
    settings: ExposureBoostingSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Everybody's risk; ``DataError`` unless both kinds of results are there."""
        require_both(known)

        def features(status: NDArray[np.int8]) -> Floats:
            return with_summaries(daily_exposure(traces, status))

        settings, streams = self.settings, Streams(self.scene.seed)
        found = np.full((settings.trees + 1, known.people), np.nan)
        folds = folds_of(known, features, settings.folds, streams.numpy("folds"))
        for number, fold in enumerate(folds):
            for trees, risk in enumerate(self._risks(fold, settings.trees)):
                found[trees, fold.asked] = risk
            done = f"fold {number + 1} of {settings.folds}"
            self.scene.progress(f"{self.name}: folds", number + 1, settings.folds, done)
        asked = np.flatnonzero(~np.isnan(found[0])).astype(np.int32)
        infected = np.equal(known.status[asked], 1)
        losses = [log_loss(row[asked], infected) for row in found]
        best = int(np.argmin(losses))
        *_, risk = self._risks(whole_of(known, features), best)
        told = {"trees": best, "masked_log_loss": losses[best]}
        return Scores(
            risk,
            asked,
            found[best, asked],
            steps=best,
            parameters=best * (2 * settings.leaves - 1),
            told=told,
        )

    def _risks(self, fold: Fold, trees: int) -> Iterator[Probabilities]:
        """The risk of the asked with 0, 1, ... ``trees`` trees."""
        share = (fold.infected.sum() + 0.5) / (len(fold.x) + 1)
        base = np.full(len(fold.asked), share)
        yield base
        if trees == 0:
            return
        if fold.infected.all() or not fold.infected.any():
            # One kind of result, which happens in a fold of a small city.
            yield from [base] * trees
            return
        settings, daily = self.settings, fold.x.shape[1] - len(_SUMMARIES)
        days = daily // len(_DAILY)
        least = min(settings.least_people, max(1, len(fold.x) // 10))
        model = HistGradientBoostingClassifier(
            learning_rate=settings.learning_rate,
            max_iter=trees,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=least,
            l2_regularization=settings.l2,
            monotonic_cst=np.array(_DAILY * days + _SUMMARIES),
            early_stopping=False,
            random_state=Streams(self.scene.seed).seed_for("trees") % 2**32,
        )
        model.fit(fold.x, fold.infected)
        for risk in model.staged_predict_proba(fold.asked_x):
            yield risk[:, 1]


def with_summaries(exposure: NDArray[np.float32]) -> Floats:
    """The inputs, (people, days * 4 + 9), of ``exposure`` (people, days, 4)."""
    x = exposure.astype(np.float64)
    positive, negative, crowd, observed = np.moveaxis(x, 2, 0)
    weight = observed / np.maximum(observed.sum(1, keepdims=True), _LEAST)
    daily = positive * weight
    mean_positive, mean_negative = daily.sum(1), (negative * weight).sum(1)
    half = x.shape[1] // 2
    summaries = [
        mean_positive,
        mean_negative,
        (crowd * weight).sum(1),
        observed.mean(1),
        _share(mean_positive, mean_negative),
        positive.max(1),
        daily[:, :half].sum(1),
        daily[:, half:].sum(1),
        (_share(positive, negative) * weight).sum(1),
    ]
    return np.concatenate([x.reshape(len(x), -1), np.stack(summaries, 1)], axis=1)


def _share(positive: Floats, negative: Floats) -> Floats:
    """Positives among the known company, 0 without any."""
    return positive / np.maximum(positive + negative, _LEAST)
