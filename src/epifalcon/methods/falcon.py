"""Falcon and HGNN as estimators; training is ``federation.training.fit``."""

from dataclasses import asdict, dataclass
from typing import ClassVar

from epifalcon.epidemic.known import Known
from epifalcon.federation.early_stopping import Watch
from epifalcon.federation.preparing import Selection
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.training import (
    Recorder,
    Task,
    fit,
    require_possible,
)
from epifalcon.methods.base import STEP_LIMIT, Context, Method, Scores
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundsContext(Context):
    """What a training in rounds may use besides, and who observes it."""

    all_cases: Floats | None = None
    """(regions, days) of everybody; only for ``macro_cases="all"``."""
    test_people: Selection | None = None
    """Only for ``stopping.selected_on="test"``."""
    watch: Watch | None = None
    recorder: Recorder | None = None


class Falcon(Method):
    """The paper's method whole, on the in-process engine."""

    name: ClassVar[str] = "falcon"
    settings_type: ClassVar[type] = PredictionSettings
    settings: PredictionSettings

    def require_possible(self, traces: Traces, known: Known, context: Context) -> None:
        """Raise what ``fit`` would raise because tests and settings do not fit."""
        require_possible(self._task(traces, known, context))

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train by rounds; the best look at the validation people is the outcome.

        A finished training in ``context.folder`` is read instead.
        """
        context = self.context
        if context.folder is not None and not context.folder.is_dir():
            context.folder.mkdir(parents=True)
        observed = _observed(context)
        task = self._task(traces, known, context)

        def progress(name: str, done: int, total: int, told: str = "") -> None:
            context.progress(f"{self.name}: {name}", done, total, told)

        found = fit(
            task,
            folder=context.folder,
            checkpoint_seconds=context.checkpoint_seconds,
            watch=observed.watch,
            progress=progress,
            recorder=observed.recorder,
        )
        people = task.division.held_back
        return Scores(
            found.probability,
            masked=people if len(people) else None,
            masked_risk=found.probability[people] if len(people) else None,
            steps=found.looks[-1].round,
            diagnostics={
                "macro_cases": task.settings.macro_cases,
                "selected_on": task.settings.stopping.selected_on,
                "learning_rate": found.learning_rate,
                "best_round": found.best_round,
                "rounds": found.looks[-1].round,
                "validation_auc": found.validation_auc,
                "seconds": found.seconds,
                "seconds_per_round": found.seconds_per_round,
                "forecast": found.forecast,
                "spent": found.spent,
                STEP_LIMIT: task.settings.model.rounds,
                "looks": [asdict(look) for look in found.looks],
            },
        )

    def _task(self, traces: Traces, known: Known, context: Context) -> Task:
        more = _observed(context)
        return Task(
            *(traces, known, self._settings(), self.seed),
            *(more.all_cases, more.test_people),
        )

    def _settings(self) -> PredictionSettings:
        return self.settings


class Hgnn(Falcon):
    """The person model in one place: no region model, no privacy."""

    name: ClassVar[str] = "hgnn"

    def _settings(self) -> PredictionSettings:
        return self.settings.central()


def _observed(context: Context) -> RoundsContext:
    return context if isinstance(context, RoundsContext) else RoundsContext()
