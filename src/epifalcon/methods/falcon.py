"""Falcon and HGNN as estimators; ``federation.training.fit`` trains them."""

from dataclasses import asdict, replace
from typing import ClassVar

from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.training import TrainingTask, fit, require_possible
from epifalcon.methods.base import STEP_LIMIT, Context, Method, Scores
from epifalcon.mobility.traces import Traces


class Falcon(Method):
    """The complete method of the paper, trained in one process."""

    name: ClassVar[str] = "falcon"
    settings_type: ClassVar[type] = PredictionSettings
    settings: PredictionSettings
    central: ClassVar[bool] = False
    """True to train only the person model, without privacy."""

    def require_possible(
        self, traces: Traces, known: TestResults, context: Context
    ) -> None:
        require_possible(self._task(traces, known, context))

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Train in rounds; return the risks of the round with the best validation."""
        context = self.context
        if context.folder is not None and not context.folder.is_dir():
            context.folder.mkdir(parents=True)
        task = self._task(traces, known, context)
        if task.settings.privacy.is_private:
            task = replace(task, secret=self.noise_secret())

        def progress(name: str, done: int, total: int, message: str = "") -> None:
            context.progress(f"{self.name}: {name}", done, total, message)

        result = fit(
            task,
            folder=context.folder,
            checkpoint_seconds=context.checkpoint_seconds,
            watch=context.watch,
            progress=progress,
            recorder=context.recorder,
        )
        people = task.split.held_back
        return Scores(
            result.probability,
            masked=people if len(people) else None,
            masked_risk=result.probability[people] if len(people) else None,
            steps=result.checks[-1].round,
            diagnostics={
                "macro_cases": task.settings.macro_cases,
                "selected_on": task.settings.stopping.selected_on,
                "learning_rate": result.learning_rate,
                "best_round": result.best_round,
                "rounds": result.checks[-1].round,
                "validation_auc": result.validation_auc,
                "seconds": result.seconds,
                "seconds_per_round": result.seconds_per_round,
                "forecast": result.forecast,
                "spent": result.spent,
                STEP_LIMIT: task.settings.model.rounds,
                "looks": [asdict(check) for check in result.checks],
            },
        )

    def _task(self, traces: Traces, known: TestResults, used: Context) -> TrainingTask:
        settings = self.settings.central() if self.central else self.settings
        cases, people = used.all_cases, used.test_people
        return TrainingTask(traces, known, settings, self.seed, cases, people)


class Hgnn(Falcon):
    """Person model trained centrally, without region model and privacy."""

    name: ClassVar[str] = "hgnn"
    central: ClassVar[bool] = True
