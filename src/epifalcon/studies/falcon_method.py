"""Falcon and HGNN by the interface of all methods.

``epifalcon run`` trains both on people as the city numbers them; by ``fit`` they
see people in the order of all methods, so the draws differ, not the method.
"""

from typing import ClassVar

from epifalcon.baselines.method import Kind, Method, Scores
from epifalcon.epidemic.known import Known
from epifalcon.federation.settings import PredictionSettings
from epifalcon.mobility.traces import Traces
from epifalcon.studies.features import Task, validation_people
from epifalcon.studies.fitting import Desk, fit


class Falcon(Method):
    """The paper's method whole, on the in-process engine."""

    name: ClassVar[str] = "falcon"
    title: ClassVar[str] = "Falcon"
    kind: ClassVar[Kind] = "paper"
    settings_type: ClassVar[type] = PredictionSettings
    settings: PredictionSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train by rounds; the best look at the validation people is the outcome."""
        scene = self.scene
        if scene.folder is not None:
            scene.folder.mkdir(parents=True, exist_ok=True)
        task = Task(traces, known, self._settings(), scene.seed)
        desk = Desk(
            folder=scene.folder,
            checkpoint_seconds=scene.checkpoint_seconds,
            progress=scene.progress,
        )
        found = fit(task, desk)
        people = validation_people(task)
        return Scores(
            found.probability,
            masked=people,
            masked_risk=found.probability[people],
            steps=found.looks[-1].round,
            told={
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
