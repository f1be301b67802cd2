"""Falcon Field: the field of beliefs with one exchange a sweep, regions estimated.

People send, for all the places and slots they were in and in one message, how
infectious they expect to have been and what became of them afterwards; the server
adds up and tells the sums. Each person then runs its own chain forward and back.
The equations stand in ``docs/explanation-falcon-field.md``, the chain in
``models/field``, what leaves a device in ``federation/field``, and the runs that it
takes in ``field_runs``.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_interval import interval, shaken, spread_of
from epifalcon.baselines.field_rates import PUBLISHED, RunsByTimes, as_plain
from epifalcon.baselines.field_runs import (
    MEAN_NOW,
    KeptField,
    Runs,
    ledger_of,
    mean_of,
    on_a_grid,
)
from epifalcon.baselines.field_telling import (
    AtHome,
    Held,
    Telling,
    find_telling,
)
from epifalcon.baselines.hbp import known_late, without_own_tests
from epifalcon.baselines.method import INTERVAL_WIDTH, Method, Scores
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.federation.field.settings import TUNING, FieldWishes
from epifalcon.federation.field.tuning import Tuner, TuningPlan
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.calibrating import still
from epifalcon.models.field.settings import LEAST_FOLDS, Law
from epifalcon.store import Origin
from epifalcon.streams import Streams
from epifalcon.types import Probabilities


@dataclass(frozen=True, eq=False)
class Folds:
    """The runs with all tests and without each fold."""

    of: NDArray[np.int64]
    """(people,) the fold of each tested person, -1 for everybody else."""
    laws: list[Law]
    """Of the run with all tests first."""
    ends: list[AtHome]
    """The same."""
    runs: list[Runs]
    """The same: under the times that its tests speak for."""


class FalconField(Method):
    """The field of beliefs, coupled with a region model of tested people alone.

    A tested person's risk is told from the tests of the other folds alone, and
    so is the law of transmission that tells it.
    """

    name = "falcon-field"
    title = "Falcon Field"
    kind = "reference"
    settings_type: ClassVar[type] = FieldWishes
    settings: FieldWishes
    _kept: KeptField | None = None
    """Of the run that knew all tests, in the order of the fit."""

    def score(self, traces: Traces, known: Known) -> Scores:
        """Choose the law, sweep, and tell the risks; of each fold without it.

        A private run is one run: what other runs would release is not paid for.
        """
        settings, by_times = (
            self.settings.field,
            RunsByTimes(self.scene, traces, self.settings),
        )
        if self.settings.privacy.mode != "off":
            found, self._kept = by_times.under(PUBLISHED).private(known)
            return found
        parts = min(settings.folds, int(known.tested.sum()))
        fold = blind_folds(known, max(parts, 1), self._deal())
        folds, times = Folds(fold, [], [], []), []
        self._kept = None

        def run(tests: Known) -> AtHome:
            times.append(by_times.chosen(tests, fold))
            runs = by_times.under(times[-1])
            folds.runs.append(runs)
            folds.laws.append(runs.law(tests, fold))
            end, field = runs.final(tests, folds.laws[-1])
            self._kept = self._kept or field
            folds.ends.append(end)
            return end

        found = without_own_tests(known, parts, self._deal(), run)
        told = {"sweeps": found.steps, "law": folds.laws[0], **as_plain(times[0])}
        found, tellings = replace(found, told=told), [Telling()]
        if not folds.runs[0].ways.none and parts >= LEAST_FOLDS:
            found, tellings = _told(found, known, folds, traces, self._tuner())
        found.told[MEAN_NOW] = mean_of(found.now)
        return self._with_interval(found, known, traces, folds, tellings)

    def keep(self, folder: Path, origin: Origin) -> None:
        """Write what places told at last, and what people hold of their messages."""
        if (
            self._kept is not None
            and self.order is not None
            and self.settings.field.kept
        ):
            self._kept.save(folder, origin, self.order)

    def _deal(self) -> np.random.Generator:
        """Of the folds: each time the same."""
        return Streams(self.scene.seed).numpy("falcon-field folds")

    def _tuner(self) -> Tuner | None:
        """Who tunes the correction, where that is wished for."""
        wish = self.settings.tuning
        if not wish.steps:
            return None
        plan, streams = TuningPlan(settings=wish), Streams(self.scene.seed)
        ledger = ledger_of(self.scene, plan.budget)
        return Tuner(plan, ledger, streams.seed_for("falcon-field tuning"))

    def _with_interval(
        self,
        found: Scores,
        known: Known,
        traces: Traces,
        folds: Folds,
        tellings: list[Telling],
    ) -> Scores:
        """The scores with intervals, where an ensemble is wished for.

        ``tellings`` says how all others and each fold are told.
        """
        if not self.settings.field.ensemble:
            return found
        risks = self._ensemble(known, traces, folds.laws[0])
        spread = spread_of(risks, ~known.tested)
        low, high = found.risk.copy(), found.risk.copy()
        for number, telling in enumerate(tellings):
            own = np.full(known.people, True)
            if len(tellings) > 1:
                own = folds.of == number - 1
            ends = interval(found.risk[own], spread[own], telling.bend, telling.unsure)
            low[own], high[own] = ends.low, ends.high
        told = found.told | {INTERVAL_WIDTH: float((high - low).mean())}
        return replace(found, low=low, high=high, told=told)

    def _ensemble(self, known: Known, traces: Traces, law: Law) -> list[Probabilities]:
        """Everybody's risk by runs that know half of the tests and other rates."""
        rng = Streams(self.scene.seed).numpy("falcon-field ensemble")
        risks = []
        for _ in range(self.settings.field.ensemble):
            kept = rng.random(known.people) < 0.5
            scene = replace(self.scene, pathogen=shaken(self.scene.pathogen, rng))
            runs = Runs(scene, traces, self.settings)
            risks.append(runs.shortly(known.of_people(kept), law).risk)
        return risks


def _told(
    found: Scores, known: Known, folds: Folds, traces: Traces, tuner: Tuner | None
) -> tuple[Scores, list[Telling]]:
    """The scores as they are told, and how; their risks have come from ``folds``.

    What is told of a fold is found without it, by the next one alone.
    """
    if tuner is not None:
        tuner.begin()
    whole, *others = folds.ends
    judges, count = known_late(known, traces), len(others)
    held = [Held(end, judges & (folds.of == part)) for part, end in enumerate(others)]
    ways = folds.runs[0].ways
    telling = find_telling(whole, held, known, ways, tuner)
    risk, tellings = telling(whole).copy(), [telling]
    if tuner is not None:
        # Each fold is tuned on by one other alone: for a person it is once more.
        tuner.begin()
    for part, end in enumerate(others):
        own, after = folds.of == part, folds.of == (part + 1) % count
        left = known.of_people(~own & ~after)
        end_before = folds.runs[1 + part].shortly(left, folds.laws[1 + part])
        before = Held(end_before, judges & after)
        tellings.append(find_telling(end, [before], known, ways, tuner))
        risk[own] = tellings[-1](end)[own]
    risk = on_a_grid(risk)
    more = telling.as_plain()
    if tuner is not None:
        more[TUNING] = {"taken": telling.tuned, **tuner.as_plain()}
    found = replace(
        found,
        risk=risk,
        masked_risk=risk[known.tested],
        told=found.told | more,
        **_now_told(found, risk, known),
    )
    return found, tellings


def _now_told(found: Scores, risk: Probabilities, known: Known) -> dict[str, Any]:
    """The risks now that go with ``risk``; own tests count as they are."""
    if found.now is None or found.now_tested is None:
        return {}
    now = on_a_grid(still(found.now, found.risk, risk))
    return {"now": now, "now_tested": np.where(known.tested, found.now_tested, now)}
