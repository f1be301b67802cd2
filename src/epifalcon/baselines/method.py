"""The one interface of all methods, in the manner of scikit-learn.

    method = Gcn(Scene(traces, seed=3)).fit(known)
    risk = method.predict_proba()

A method is given traces and tests, never a hidden label. It sees people and
regions in an order of their own (``ordering``), so how a file numbers them
changes nothing but the order of the answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Literal, Self

import numpy as np

from epifalcon.baselines.ordering import Order, own_order
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.store import Origin
from epifalcon.types import PersonIds, Probabilities

Kind = Literal["paper", "reference", "ceiling", "own"]
"""Of the paper's table, our reference, no method but a ceiling, a user's own."""


INTERVAL_WIDTH = "interval_width"
"""Under this name ``Scores.told`` says how wide intervals of risks are in the mean."""


LEARNING_RATE = "learning_rate"
BEST_STEP = "best_step"
STEP_LIMIT = "step_limit"
"""Keys of ``Scores.told`` for a trained method: the learning rate chosen on the
validation people, the training step (or round) of the model that is used, and the
maximum number of steps per learning rate."""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Of a method that has nothing to be set."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What a method is given besides the tests."""

    traces: Traces
    """As reported."""
    seed: int = 0
    pathogen: Pathogen = SARS_COV_2
    """The disease's rates, as health offices publish and believe them."""
    rule: OutbreakSettings = field(default_factory=OutbreakSettings)
    """How the disease is believed to pass on, in all regions alike; of the seeds only
    their number may be read."""
    test_errors: TestErrors = field(default_factory=TestErrors)
    """How often tests are wrong, as their makers publish it."""
    progress: Progress = silent
    folder: Path | None = None
    """Where a training that is stopped can be gone on with; None keeps nothing."""
    checkpoint_seconds: float = 20.0
    everybody: Outbreak | None = None
    """The truth, hidden people included: only ever given to a ceiling."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a method finds."""

    risk: Probabilities
    """(people,) in [0, 1]."""
    masked: PersonIds | None = None
    """(masked people,) tested, but not learnt from for ``masked_risk``; where a method
    has validation people it is they, who chose when to stop."""
    masked_risk: Probabilities | None = None
    """(masked people,)"""
    steps: int = 0
    parameters: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    """Figures for the log, such as the learning rate that was chosen."""
    now: Probabilities | None = None
    """(people,) of being infected at the end, own tests aside, where it is told."""
    now_tested: Probabilities | None = None
    """(people,) the same, own tests counted."""
    low: Probabilities | None = None
    """(people,) lower end of the interval of each risk, where one is told."""
    high: Probabilities | None = None
    """(people,) its upper end."""


@dataclass(frozen=True)
class Cost:
    """What a fit took."""

    seconds: float
    steps: int
    parameters: int


class Method(ABC):
    """One way to tell who is probably infected.

    A method of your own needs ``name``, ``title`` and ``score``; the rest is here.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind] = "own"
    settings_type: ClassVar[type] = NoSettings
    true_traces: ClassVar[bool] = False
    """Of a ceiling: whether it is given the true traces instead of the reported."""

    def __init__(self, scene: Scene, settings: Any = None) -> None:  # noqa: ANN401
        if scene.everybody is not None and self.kind != "ceiling":
            raise SettingsError(f"{self.name} is a method: the truth is not for it")
        if settings is not None and not isinstance(settings, self.settings_type):
            raise SettingsError(
                f"{self.name} takes {self.settings_type.__name__}, "
                f"not {type(settings).__name__}"
            )
        self.scene = scene
        self.settings = self.settings_type() if settings is None else settings
        self._found: Scores | None = None
        self.order: Order | None = None
        """In which ``score`` saw people and regions, once fitted."""
        self._seconds = 0.0

    @abstractmethod
    def score(self, traces: Traces, known: Known) -> Scores | Probabilities:
        """Everybody's risk, (people,), from the tests in ``known``.

        ``traces`` and ``known`` hold the people of the scene in an order of
        their own. Draw only from ``self.scene.seed``.
        """

    def fit(self, known: Known) -> Self:
        """Learn from the tests in ``known``; ``predict_proba`` tells the outcome."""
        traces = self.scene.traces
        if known.people != traces.people:
            raise DataError(
                f"tests among {known.people:,} people, but traces of {traces.people:,}"
            )
        start = perf_counter()
        order = own_order(traces, known)
        found = self.score(order.traces(traces), order.known(known))
        found = found if isinstance(found, Scores) else Scores(found)
        self._found = _in_order_of_the_city(found, order, self.name)
        self.order = order
        self._seconds = perf_counter() - start
        return self

    def keep(self, folder: Path, origin: Origin) -> None:  # noqa: B027
        """Write what may be asked for after the fit into ``folder``; here nothing."""

    def predict_proba(
        self, people: PersonIds | Sequence[int] | None = None
    ) -> Probabilities:
        """The risk of ``people``, or of everybody: (people asked for,).

        Of tested people too it is a risk, not their result.
        """
        risk = self.found.risk
        if people is None:
            return risk.copy()
        wanted = np.asarray(people, np.int64)
        if ((wanted < 0) | (wanted >= len(risk))).any():
            raise DataError(f"people must be numbers from 0 to {len(risk) - 1}")
        return risk[wanted]

    @property
    def found(self) -> Scores:
        """All that the fit found."""
        if self._found is None:
            raise DataError(f"{self.name} is not fitted yet: call fit(known) first")
        return self._found

    @property
    def cost(self) -> Cost:
        """What the fit took."""
        found = self.found
        return Cost(self._seconds, found.steps, found.parameters)


def require_both(known: Known) -> None:
    """Raise ``DataError`` unless some tested positive and some only negative."""
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (known.status == wanted).any():
            raise DataError(
                f"nobody tested {word}: one kind of result alone teaches nothing"
            )


def _in_order_of_the_city(found: Scores, order: Order, name: str) -> Scores:
    risk = np.asarray(found.risk, np.float64)
    if risk.shape != order.people.shape:
        raise DataError(
            f"{name}: scores of shape {risk.shape}, expected ({len(order.people)},)"
        )
    if np.isnan(risk).any():
        raise DataError(f"{name}: a risk is not a number")
    if not ((risk >= 0) & (risk <= 1)).all():
        raise DataError(f"{name}: a risk is not between 0 and 1")
    masked = None
    if found.masked is not None:
        masked = order.people[found.masked].astype(np.int32)
    parts: dict[str, Any] = {
        name: _back(told, order)
        for name in ("now", "now_tested", "low", "high")
        if (told := getattr(found, name)) is not None
    }
    return replace(found, risk=_back(risk, order), masked=masked, **parts)


def _back(told: Probabilities, order: Order) -> Probabilities:
    found = np.empty_like(told)
    found[order.people] = told
    return found
