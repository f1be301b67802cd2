"""Logistic regression on each day's known company: the simplest learner."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from epifalcon.baselines.exposure import CHANNELS, daily_exposure
from epifalcon.baselines.method import Kind, Method, Scores, require_both
from epifalcon.baselines.out_of_fold import Fold, folds_of, log_loss, whole_of
from epifalcon.checks import positive, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities


@dataclass(frozen=True, kw_only=True)
class ExposureLogisticSettings:
    """How freely the regression may fit."""

    strengths: tuple[float, ...] = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.1)
    """Scikit-learn's C, larger is freer: the log loss of people left out chooses."""
    folds: int = 5

    def __post_init__(self) -> None:
        if not self.strengths:
            raise SettingsError("strengths must name at least one")
        for strength in self.strengths:
            positive(strengths=strength)
        whole(2, folds=self.folds)


class ExposureLogistic(Method):
    """Scikit-learn's logistic regression on the daily exposure of all days.

    The inputs are those of ``daily_exposure``, standardised; shares enter by
    their root, since risk rises less and less with them (that fitted people left
    out better than the shares themselves). Each tested person is learnt from
    without its own result in its inputs. C is chosen fold by fold: inputs and
    regression of a fold see none of its results, and what they tell of the
    people in it is kept as their masked risk.
    """

    name = "exposure-logistic"
    title = "Exposure, logistic"
    kind: ClassVar[Kind] = "reference"
    settings_type = ExposureLogisticSettings
    settings: ExposureLogisticSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Everybody's risk; ``DataError`` unless both kinds of results are there."""
        require_both(known)

        def features(status: NDArray[np.int8]) -> Floats:
            return _inputs(daily_exposure(traces, status))

        strengths = self.settings.strengths
        rng = Streams(self.scene.seed).numpy("folds")
        found = np.full((len(strengths), known.people), np.nan)
        for fold in folds_of(known, features, self.settings.folds, rng):
            for row, strength in zip(found, strengths, strict=True):
                row[fold.asked] = _risk(fold, strength)
        asked = np.flatnonzero(~np.isnan(found[0])).astype(np.int32)
        infected = np.equal(known.status[asked], 1)
        losses = [log_loss(row[asked], infected) for row in found]
        best = int(np.argmin(losses))
        told = {"strength": strengths[best], "masked_log_loss": losses[best]}
        risk = _risk(whole_of(known, features), strengths[best])
        parameters = traces.clock.days * CHANNELS + 1
        return Scores(risk, asked, found[best, asked], parameters=parameters, told=told)


def _inputs(exposure: NDArray[np.float32]) -> Floats:
    """(people, days * channels), the two shares by their root."""
    x = exposure.astype(np.float64)
    x[:, :, :2] = np.sqrt(x[:, :, :2])
    return x.reshape(len(x), -1)


def _risk(fold: Fold, strength: float) -> Probabilities:
    """The risk of the asked, from a regression on those learnt from."""
    if fold.infected.all() or not fold.infected.any():
        # One kind of result, which happens in a fold of a small city.
        return np.full(len(fold.asked), (fold.infected.sum() + 0.5) / (len(fold.x) + 1))
    scale = StandardScaler().fit(fold.x)
    # Newton's method: a few more steps, and it is exact.
    model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-8)
    model.fit(scale.transform(fold.x), fold.infected)
    found: Probabilities = model.predict_proba(scale.transform(fold.asked_x))[:, 1]
    return found
