"""Falcon and HGNN as estimators; training is ``federation.training.fit``."""

from typing import ClassVar

from epifalcon.epidemic.known import Known
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.training import Task, fit, validation_people
from epifalcon.methods.base import Kind, Method, Scores
from epifalcon.mobility.traces import Traces


class Falcon(Method):
    """The paper's method whole, on the in-process engine."""

    name: ClassVar[str] = "falcon"
    title: ClassVar[str] = "Falcon"
    kind: ClassVar[Kind] = "paper"
    settings_type: ClassVar[type] = PredictionSettings
    settings: PredictionSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train by rounds; the best look at the validation people is the outcome."""
        context = self.context
        if context.folder is not None:
            context.folder.mkdir(parents=True, exist_ok=True)
        task = Task(traces, known, self._settings(), self.seed)
        found = fit(
            task,
            folder=context.folder,
            checkpoint_seconds=context.checkpoint_seconds,
            progress=context.progress,
        )
        people = validation_people(task)
        return Scores(
            found.probability,
            masked=people,
            masked_risk=found.probability[people],
            steps=found.looks[-1].round,
            diagnostics={
                "learning_rate": found.learning_rate,
                "best_round": found.best_round,
                **found.spent,
            },
        )

    def _settings(self) -> PredictionSettings:
        return self.settings


class Hgnn(Falcon):
    """The person model in one place: no region model, no privacy."""

    name: ClassVar[str] = "hgnn"
    title: ClassVar[str] = "HGNN"

    def _settings(self) -> PredictionSettings:
        return self.settings.central()
