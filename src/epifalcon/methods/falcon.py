"""Falcon and HGNN as estimators; training is ``federation.training.fit``."""

from dataclasses import asdict
from typing import ClassVar

from epifalcon.epidemic.known import Known
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.training import Task, fit, require_possible
from epifalcon.methods.base import STEP_LIMIT, Context, Method, Scores
from epifalcon.mobility.traces import Traces


class Falcon(Method):
    """The paper's method whole, on the in-process engine."""

    name: ClassVar[str] = "falcon"
    settings_type: ClassVar[type] = PredictionSettings
    settings: PredictionSettings

    def require_possible(self, traces: Traces, known: Known, context: Context) -> None:
        """Raise what ``fit`` would raise because tests and settings do not fit."""
        require_possible(self._task(traces, known, context))

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train by rounds; the best look at the validation people is the outcome."""
        context = self.context
        if context.folder is not None and not context.folder.is_dir():
            context.folder.mkdir(parents=True)
        task = self._task(traces, known, context)

        def progress(name: str, done: int, total: int, told: str = "") -> None:
            context.progress(f"{self.name}: {name}", done, total, told)

        found = fit(
            task,
            folder=context.folder,
            checkpoint_seconds=context.checkpoint_seconds,
            watch=context.watch,
            progress=progress,
            recorder=context.recorder,
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
        return Task(
            *(traces, known, self._settings(), self.seed),
            *(context.all_cases, context.test_people),
        )

    def _settings(self) -> PredictionSettings:
        return self.settings


class Hgnn(Falcon):
    """The person model in one place: no region model, no privacy."""

    name: ClassVar[str] = "hgnn"

    def _settings(self) -> PredictionSettings:
        return self.settings.central()
