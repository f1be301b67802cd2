"""The estimator interface of all methods, in the manner of scikit-learn.

    risk = Gcn(width=32, seed=3).fit(traces, tests).predict_proba()

Hyperparameters and seed go to the constructor, data to ``fit``. A method sees traces
and test results, never a held-out label.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_results import TestErrors, TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import build
from epifalcon.store import Origin
from epifalcon.types import Floats, PersonIds, Probabilities

if TYPE_CHECKING:
    # Without torch: the list of methods is shown without loading any.
    from epifalcon.federation.early_stopping import Watch
    from epifalcon.federation.preparation import Selection
    from epifalcon.federation.training import Recorder

INTERVAL_WIDTH = "interval_width"
LEARNING_RATE = "learning_rate"
BEST_STEP = "best_step"
STEP_LIMIT = "step_limit"
"""Keys of ``Scores.diagnostics``: mean width of the intervals of risks; for a trained
method the chosen learning rate, the step of the model used, and their maximum."""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a method without hyperparameters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What a method may use besides traces and tests, and how its fit is run."""

    pathogen: Pathogen = SARS_COV_2
    """The disease's rates, as published."""
    rule: OutbreakSettings = field(default_factory=OutbreakSettings)
    """The assumed transmission rule, equal in all regions; of the seeds only their
    number may be read."""
    test_errors: TestErrors = field(default_factory=TestErrors)
    """The published error rates of tests."""
    progress: Progress = silent
    folder: Path | None = None
    """Where checkpoints of an interrupted fit are stored; None stores nothing."""
    checkpoint_seconds: float = 20.0
    ground_truth: Outbreak | None = None
    """The true outbreak, held-out people included: only for ceilings."""
    all_cases: Floats | None = None
    """(regions, days) of everybody; only for ``macro_cases="all"``."""
    test_people: "Selection | None" = None
    """Only for ``stopping.selected_on="test"``."""
    watch: "Watch | None" = None
    recorder: "Recorder | None" = None
    """Observers of a training in rounds."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of a fit."""

    risk: Probabilities
    """(people,) in [0, 1]."""
    masked: PersonIds | None = None
    """(masked people,) tested people whose results were not used for ``masked_risk``;
    the validation people where a method has them."""
    masked_risk: Probabilities | None = None
    """(masked people,)"""
    steps: int = 0
    parameters: int = 0
    seconds: float = 0.0
    """Duration of the fit, set by ``fit``."""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    """Figures for the log, such as the chosen learning rate."""
    now: Probabilities | None = None
    """(people,) of being infected at the end, without the person's own tests."""
    now_tested: Probabilities | None = None
    """(people,) the same with own tests."""
    low: Probabilities | None = None
    """(people,) lower end of the interval of each risk."""
    high: Probabilities | None = None
    """(people,) upper end."""


class Method(ABC):
    """An estimator of who is probably infected.

    A subclass defines ``name`` and ``score``, and ``title`` if a user registers it.
    ``score`` reads ``self.settings``, ``self.seed`` and ``self.context``.

    Parameters
    ----------
    settings
        An instance of ``settings_type``; its defaults if None.
    seed
        Seed of all random numbers of the fit.
    hyperparameters
        Fields of ``settings_type`` by name, instead of ``settings``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    settings_type: ClassVar[type] = NoSettings
    sees_truth: ClassVar[bool] = False
    """Whether it is a ceiling, which is given the true outbreak."""
    sees_true_traces: ClassVar[bool] = False
    """Whether a ceiling is given the true traces instead of the reported ones."""

    def __init__(
        self,
        settings: Any = None,  # noqa: ANN401
        *,
        seed: int = 0,
        **hyperparameters: Any,  # noqa: ANN401
    ) -> None:
        if settings is None and hyperparameters:
            settings = build(self.settings_type, hyperparameters, self.name)
        elif settings is None:
            settings = self.settings_type()
        elif hyperparameters:
            raise SettingsError(
                f"{self.name}: give settings or hyperparameters, not both"
            )
        elif not isinstance(settings, self.settings_type):
            raise SettingsError(
                f"{self.name} takes {self.settings_type.__name__}, "
                f"not {type(settings).__name__}"
            )
        self.settings = settings
        self.seed = seed
        self.context = Context()
        self._scores: Scores | None = None

    @abstractmethod
    def score(self, traces: Traces, known: TestResults) -> Scores | Probabilities:
        """Return everybody's risk (people,) given the tests in ``known``."""

    def fit(
        self, traces: Traces, tests: TestResults, context: Context | None = None
    ) -> Self:
        """Estimate everybody's risk from ``traces`` and ``tests``."""
        context = Context() if context is None else context
        if context.ground_truth is not None and not self.sees_truth:
            raise SettingsError(f"{self.name} is a method: the truth is not for it")
        tests.require_people_of(traces)
        self.context = context
        start = perf_counter()
        scores = self.score(traces, tests)
        scores = scores if isinstance(scores, Scores) else Scores(scores)
        risk, shape = np.asarray(scores.risk, np.float64), (traces.people,)
        if risk.shape != shape:
            raise DataError(
                f"{self.name}: scores of shape {risk.shape}, expected {shape}"
            )
        if not ((risk >= 0) & (risk <= 1)).all():
            raise DataError(f"{self.name}: a risk is not a number between 0 and 1")
        self._scores = replace(scores, risk=risk, seconds=perf_counter() - start)
        return self

    def predict_proba(
        self, people: PersonIds | Sequence[int] | None = None
    ) -> Probabilities:
        """Return the risk of ``people``, or of everybody, tested people included."""
        risk = self.scores.risk
        if people is None:
            return risk.copy()
        wanted = np.asarray(people, np.int64)
        if ((wanted < 0) | (wanted >= len(risk))).any():
            raise DataError(f"people must be numbers from 0 to {len(risk) - 1}")
        return risk[wanted]

    def require_possible(  # noqa: B027
        self, traces: Traces, tests: TestResults, context: Context
    ) -> None:
        """Raise early what ``fit`` would raise of these tests and settings."""

    def save_state(self, folder: Path, origin: Origin) -> None:  # noqa: B027
        """Write what later commands need of the fit into ``folder``."""

    @property
    def truth(self) -> Outbreak:
        """The true outbreak, for a ceiling."""
        if self.context.ground_truth is None:
            raise SettingsError(
                f"{self.name} is a ceiling: give the context the ground truth"
            )
        return self.context.ground_truth

    @property
    def scores(self) -> Scores:
        """The whole result of the fit."""
        if self._scores is None:
            raise DataError(
                f"{self.name} is not fitted yet: call fit(traces, tests) first"
            )
        return self._scores


def require_both(known: TestResults) -> None:
    """Raise ``DataError`` unless there are positive and negative results."""
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (known.status == wanted).any():
            raise DataError(
                f"nobody tested {word}: one kind of result alone teaches nothing"
            )
