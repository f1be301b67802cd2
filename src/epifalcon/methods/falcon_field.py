"""Falcon Field: belief propagation with estimated transmission and calibration.

In each sweep every person sends one message. For each visited region and slot it has
the probability of being infectious and the evidence from later observations. The server
returns the sums, and each device runs forward-backward on its chain. Equations:
``docs/explanation-falcon-field.md``; inference: ``belief_propagation``; schedule and
messages: ``federation/field``. In one process, a single site has all people.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from epifalcon.belief_propagation.calibration import (
    IDENTITY,
    PlattScaling,
    choose_scaling,
    covariance,
    current_given_ever,
    ensemble_variance,
    interval,
    log_odds,
    perturbed,
)
from epifalcon.belief_propagation.saved_state import Messages, SavedField
from epifalcon.belief_propagation.seir_chain import OwnTests
from epifalcon.belief_propagation.settings import LEAST_FOLDS, TransmissionModel
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.checkpoints import privacy_spent
from epifalcon.federation.field.inference_schedule import (
    InferenceSchedule,
    run_in_process,
)
from epifalcon.federation.field.privacy_plan import FieldPlan
from epifalcon.federation.field.settings import METHOD, FalconFieldSettings, FieldTask
from epifalcon.federation.field.site_people import FieldSite, RunRisks
from epifalcon.federation.preparation import require_places
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.methods.base import INTERVAL_WIDTH, Context, Method, Scores
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.store import Origin
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, Probabilities

LEDGER = "ledger.jsonl"
FIELD_FOLDER, MESSAGES_FOLDER = "field", "messages"
MEAN_NOW = "mean_risk_now"


class HeldOutRun(NamedTuple):
    """Risks from a run that excludes the results of some people."""

    run: RunRisks
    people: Mask
    """Mask of the held-out people, (people,)."""


@dataclass(frozen=True, eq=False)
class Recalibration:
    """Platt scaling and the covariance of its slope and offset."""

    line: PlattScaling
    uncertainty: Floats

    @classmethod
    def fit(
        cls, risk: Probabilities, held_out: Sequence[HeldOutRun], known: TestResults
    ) -> "Recalibration":
        """Fit a recalibration on ``held_out``, to be applied to ``risk``.

        It is the identity unless it lowers the log loss of held-out people by more
        than one standard error. ``risk`` comes from a run with more tests, but the
        expected mean risk of untested people does not depend on which tests are known.
        The recalibrated mean is therefore set to that of ``held_out``.
        """
        if not any(people.any() for _, people in held_out):
            return cls(IDENTITY, np.zeros((2, 2)))
        before = np.concatenate([run.risk[people] for run, people in held_out])
        parts = [run.tests.of(people) for run, people in held_out]
        tests = OwnTests(*map(np.concatenate, zip(*parts, strict=True)))
        line = choose_scaling(before, tests)
        if line.is_identity:
            line = PlattScaling(middle=float(log_odds(before).mean()))
        uncertainty = covariance(line, before, tests)
        untested = ~known.tested
        if not line.is_identity and untested.any():
            means = [line(run.risk[untested]).mean() for run, _ in held_out]
            line = line.with_mean(risk[untested], float(np.mean(means)))
        return cls(line, uncertainty)


class FieldState(NamedTuple):
    """Final sums of a fit, and people's own messages if the sums include them."""

    field: SavedField
    messages: Messages | None

    @classmethod
    def of(cls, site: FieldSite, schedule: InferenceSchedule) -> "FieldState":
        """Return the state after the final run; arrays are not copied."""
        graph, state = schedule.graph, schedule.result.state
        if state is None:
            raise AssertionError("a schedule without a final run")
        field = SavedField(graph, state.sums, state.factor, site.rates)
        people = site.cohort.state
        sent = Messages(people.infectious, people.evidence)
        return cls(field, sent if graph.own_in_sums else None)


class FalconField(Method):
    """Belief propagation with a transmission model estimated from tested people.

    The risks of tested people are out-of-fold, as are the transmission model and the
    calibration used for them.
    """

    name = METHOD
    settings_type: ClassVar[type] = FalconFieldSettings
    settings: FalconFieldSettings
    state: FieldState | None = None
    """State of the last fit; None before a fit or if it was not stored."""

    def require_possible(
        self, traces: Traces, _known: TestResults, _context: Context
    ) -> None:
        if self.settings.privacy.is_private:
            require_places(traces)

    def score(self, traces: Traces, known: TestResults) -> Scores:
        """Infer all risks; private runs have no folds and no calibration."""
        context, progress = self.context, self.context.progress
        self.require_possible(traces, known, context)
        because = context.tested_because
        if not self.settings.privacy.is_private:
            because, known = known.because(because), known.with_reason(because)
        task = FieldTask.of(self.settings, context.pathogen, context.rule, because)
        secret = self.noise_secret() if task.private else None
        ledger = self._ledger(task, traces, secret) if task.private else None
        site, schedule = run_in_process(
            task,
            traces,
            known,
            seed=self.seed,
            noise=RunSeeds(self.seed, secret).noise,
            ledger=ledger,
            report=lambda *numbers: progress("falcon-field: sweeps", *numbers),
        )
        self.state = FieldState.of(site, schedule)
        found, risk, now = schedule.result, site.risk, site.current
        scores = Scores(
            risk,
            steps=found.sweeps,
            diagnostics={"sweeps": found.sweeps, "law": found.transmission},
            now=now.without_tests,
            now_tested=now.tested,
        )
        if found.rates is not None:
            scores.diagnostics["rates"] = found.rates.intervals
        if ledger is not None:
            scores.diagnostics["spent"] = privacy_spent(task.mode, ledger)
            scores.diagnostics["released"] = schedule.released_tests
            scores.diagnostics[MEAN_NOW] = float(now.without_tests.mean())
            return scores
        recalibrations = self._recalibrations(site, schedule, known)
        ever = risk.copy()
        for without in sorted(site.finals):
            own = site.own(without)
            risk[own] = recalibrations[without].line(ever)[own]
        current = current_given_ever(now.without_tests, ever, risk)
        scores.diagnostics.update(vars(recalibrations[()].line))
        scores.diagnostics[MEAN_NOW] = float(current.mean())
        tested = np.flatnonzero(known.tested).astype(np.int32)
        scores = replace(
            scores,
            masked=tested,
            masked_risk=risk[tested],
            now=current,
            now_tested=np.where(known.tested, now.tested, current),
        )
        if not self.settings.field.ensemble:
            return scores
        risks = self._ensemble(task, known, traces, found.transmission)
        return _with_interval(scores, risks, site, recalibrations)

    def save_state(self, folder: Path, origin: Origin) -> None:
        """Write the final sums, and people's messages if the sums include them."""
        if self.state is None or not self.settings.field.save_messages:
            return
        self.state.field.save(folder / FIELD_FOLDER, origin)
        if self.state.messages is not None:
            self.state.messages.save(folder / MESSAGES_FOLDER, origin)

    def load_state(self, folder: Path) -> None:
        if (folder / FIELD_FOLDER).is_dir():
            field, sent = SavedField.load(folder / FIELD_FOLDER), None
            if field.graph.own_in_sums:
                sent = Messages.load(folder / MESSAGES_FOLDER)
            self.state = FieldState(field, sent)

    def _ledger(self, task: FieldTask, traces: Traces, secret: int | None) -> Ledger:
        """Open the ledger in the run folder; a resumed run draws the same noise."""
        budget = FieldPlan(task.settings.privacy, traces.clock).budget
        folder = self.context.folder
        if folder is None:
            return Ledger(budget)
        folder.mkdir(parents=True, exist_ok=True)
        record = SpendingRecord.of_user(secret)
        return Ledger.open(folder / LEDGER, budget=budget, replay_from=0, record=record)

    def _recalibrations(
        self, site: FieldSite, schedule: InferenceSchedule, known: TestResults
    ) -> dict[tuple[int, ...], Recalibration]:
        """Fit the recalibration of each final run; keys are the excluded folds.

        The recalibration of the run without a fold is fitted on its partner fold, in
        the run that excludes both.
        """
        chosen = schedule.result.transmission_of_folds
        folds = list(chosen)
        none = Recalibration(IDENTITY, np.zeros((2, 2)))
        found = dict.fromkeys(site.finals, none)
        if site.task.settings.field.calibration != "auto" or len(folds) < LEAST_FOLDS:
            return found
        held = [HeldOutRun(site.finals[(fold,)], site.fold == fold) for fold in folds]
        found[()] = Recalibration.fit(site.finals[()].risk, held, known)
        for pair in schedule.pairs():
            for fold in pair.owned:
                run = site.candidates[pair.folds, chosen[fold]]
                held_out = HeldOutRun(run, site.fold == pair.partner(fold))
                risk = site.finals[(fold,)].risk
                found[(fold,)] = Recalibration.fit(risk, [held_out], known)
        return found

    def _ensemble(
        self,
        task: FieldTask,
        known: TestResults,
        traces: Traces,
        transmission: TransmissionModel,
    ) -> list[Probabilities]:
        """Return risks of runs with half of the tests and perturbed rates."""
        rng = Streams(self.seed).numpy("falcon-field ensemble")
        region = replace(task.settings.field.region, transmission=transmission)
        sweeps = region.choosing_sweeps
        field = replace(task.settings.field, folds=0, sweeps=sweeps, region=region)
        settings, risks = replace(task.settings, field=field), []
        for _ in range(self.settings.field.ensemble):
            half = rng.random(known.people) < 0.5
            pathogen = perturbed(task.pathogen, rng)
            new = replace(task, settings=settings, pathogen=pathogen)
            site, _ = run_in_process(new, traces, known.of_people(half), seed=self.seed)
            risks.append(site.risk)
        return risks


def _with_interval(
    scores: Scores,
    risks: list[Probabilities],
    site: FieldSite,
    recalibrations: dict[tuple[int, ...], Recalibration],
) -> Scores:
    """Return the scores with intervals computed from an ensemble of risks."""
    variance = ensemble_variance(risks, site.fold < 0)
    low, high = scores.risk.copy(), scores.risk.copy()
    for without, fit in sorted(recalibrations.items(), key=lambda item: item[0]):
        own = site.own(without)
        ends = interval(scores.risk[own], variance[own], fit.line, fit.uncertainty)
        low[own], high[own] = ends.low, ends.high
    width = float((high - low).mean())
    diagnostics = scores.diagnostics | {INTERVAL_WIDTH: width}
    return replace(scores, low=low, high=high, diagnostics=diagnostics)
