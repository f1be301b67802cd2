"""Falcon Field: the field of beliefs with one exchange a sweep, regions estimated.

People send, for all the places and slots they were in and in one message, how
infectious they expect to have been and what became of them afterwards; the server
adds up and tells the sums. Each person then runs its own chain forward and back.
The equations stand in ``docs/explanation-falcon-field.md``, the chain in
``models/field``, and what leaves a device in ``federation/field``.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.hbp import Beliefs, without_own_tests
from epifalcon.baselines.method import Method, Scene, Scores
from epifalcon.baselines.ordering import Order
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.together import Together
from epifalcon.federation.spending import spent_figures
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.models.field.reading import Now
from epifalcon.models.field.settings import FieldSettings, Law
from epifalcon.models.field.sweeps import Stage, Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.privacy.ledger import Ledger
from epifalcon.store import Origin
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities

LEDGER = "ledger.jsonl"
FIELD_FOLDER, MESSAGES_FOLDER = "field", "messages"
MEAN_NOW = "mean_risk_now"
_RISK_STEPS = 2.0**30


@dataclass(frozen=True, eq=False)
class KeptField:
    """What a run leaves behind, in the order of the fit."""

    field: PublishedField
    messages: Messages

    def save(self, folder: Path, origin: Origin, order: Order) -> None:
        """Write it in the order of the city; no messages where sums hold none."""
        self.field.in_order(order.regions).save(folder / FIELD_FOLDER, origin)
        if self.field.city.own_in_sums:
            own = self.messages.in_order(order.people)
            own.save(folder / MESSAGES_FOLDER, origin)


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
        settings, runs = self.settings.field, _Runs(self.scene, traces, self.settings)
        if self.settings.privacy.mode != "off":
            found, self._kept = runs.private(known)
            return found
        parts = min(settings.folds, int(known.tested.sum()))
        fold = blind_folds(known, max(parts, 1), self._deal())
        laws: list[Law] = []

        def run(tests: Known) -> Beliefs:
            laws.append(runs.law(tests, fold))
            found, field = runs.final(tests, laws[-1])
            self._kept = self._kept or field
            return found

        self._kept = None
        found = without_own_tests(known, parts, self._deal(), run)
        told = {"sweeps": found.steps, "law": laws[0], MEAN_NOW: mean_of(found.now)}
        return replace(found, told=told)

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


class _Runs:
    """Runs of the field on one city, each on some of the tests."""

    def __init__(self, scene: Scene, traces: Traces, wishes: FieldWishes) -> None:
        self._scene, self._traces, self._wishes = scene, traces, wishes
        self._settings = settings = wishes.field
        self._rates = rates_of(traces, scene.pathogen, scene.rule)
        self._force = force_of_infection(traces, scene.pathogen, scene.rule)
        wish = settings.region
        flows = cache(lambda: count_flows(traces))
        self._laws = {
            law: Transmission.of(law, wish, traces.regions, flows) for law in wish.laws
        }
        self._done = 0

    def law(self, tests: Known, fold: NDArray[np.int64]) -> Law:
        """The law that these tests speak for, some folds of them held out in turn.

        All folds where all are there; where one was left out, the next one alone.
        """
        wish = self._settings.region.law
        if wish != "auto":
            return wish
        held = held_out(tests, fold)
        lost: dict[Law, list[Floats]] = {law: [] for law in self._laws}
        few = replace(self._settings, sweeps=self._settings.region.choosing_sweeps)
        for part in held:
            out = fold == part
            left = tests.of_people(~out)
            for law in self._laws:
                risk = self.beliefs(left, law, few).risk[out]
                lost[law].append(losses(risk, tests.status[out] == 1))
        if not held:
            return "one"
        return choose({law: np.concatenate(parts) for law, parts in lost.items()})

    def beliefs(self, tests: Known, law: Law, settings: FieldSettings) -> Beliefs:
        """Sweep by ``law``, knowing ``tests`` alone."""
        together, start = self._people(tests), Start.of(tests, self._rates, self._slots)
        city = self._city(together.crowd())
        infer(together, city, start, settings, self._laws[law], self._tell)
        return Beliefs(_on_a_grid(together.risk), settings.sweeps, 0.0)

    def final(self, tests: Known, law: Law) -> tuple[Beliefs, KeptField]:
        """As ``beliefs`` with all sweeps; also who is infected now, and the field."""
        together, start = self._people(tests), Start.of(tests, self._rates, self._slots)
        city, settings = self._city(together.crowd()), self._settings
        stage = infer(together, city, start, settings, self._laws[law], self._tell)
        now, kept = self._read(together, city, stage)
        risk = _on_a_grid(together.risk)
        return Beliefs(risk, settings.sweeps, 0.0, now), kept

    def private(self, known: Known) -> tuple[Scores, KeptField]:
        """One run behind noise, what it spent, and the field."""
        wish = self._wishes.privacy
        plan = FieldPlan.of(wish, self._traces.clock)
        together, seed = self._people(known), Streams(self._scene.seed)
        noised = Noised(
            together, plan, self._ledger(plan), seed.seed_for("falcon-field noise")
        )
        tested, positive = noised.tests(
            int(known.tested.sum()), int((known.status == 1).sum())
        )
        start = Start.by_share(tested, positive, self._rates, self._slots)
        settings = replace(self._settings, sweeps=wish.sweeps)
        city = replace(self._city(noised.crowd()), own_in_sums=False)
        stage = infer(noised, city, start, settings, self._laws["one"], self._tell)
        now, kept = self._read(together, city, stage)
        spent = spent_figures(wish.mode, noised.ledger)
        told = {"sweeps": wish.sweeps, "law": "one", "spent": spent}
        told[MEAN_NOW] = mean_of(now.aside)
        scores = Scores(
            _on_a_grid(together.risk),
            steps=wish.sweeps,
            told=told,
            now=now.aside,
            now_tested=now.tested,
        )
        return scores, kept

    def _read(
        self, together: Together, city: City, stage: Stage
    ) -> tuple[Now, KeptField]:
        """Who is infected at the end, and what there is to keep."""
        field = PublishedField(
            city, stage.places, stage.factor, self._rates, self._scene.test_errors
        )
        home = together.cohorts[0].home
        now = together.now(field.told())
        grid = Now(*map(_on_a_grid, (now.aside, now.tested, now.ever)))
        return grid, KeptField(field, Messages(home.infectious, home.evidence))

    def _ledger(self, plan: FieldPlan) -> Ledger:
        """Kept in the run's folder; a run that is begun again draws the same noise."""
        folder = self._scene.folder
        if folder is None:
            return Ledger(plan.budget)
        folder.mkdir(parents=True, exist_ok=True)
        return Ledger.open(folder / LEDGER, budget=plan.budget, replay_from=0)

    @property
    def _slots(self) -> int:
        return self._traces.slots

    def _people(self, tests: Known) -> Together:
        cohort = Cohort.of(self._traces, tests, self._rates, self._scene.test_errors)
        return Together([cohort])

    def _city(self, present: Floats) -> City:
        rule = self._scene.rule
        return City(
            self._traces.clock,
            self._force,
            rule.chance,
            present,
            rule.contact == "I/S",
        )

    def _tell(self, sweep: int) -> None:
        self._done += 1
        total = self._planned()
        self._scene.progress(
            "falcon-field: sweeps", min(self._done, total), total, f"sweep {sweep}"
        )

    def _planned(self) -> int:
        settings, folds = self._settings, self._settings.folds
        finals = (1 + folds) * (settings.sweeps - 1)
        if settings.region.law != "auto":
            return finals
        each = len(self._laws) * (settings.region.choosing_sweeps - 1)
        return finals + 2 * folds * each


def mean_of(now: Probabilities | None) -> float | None:
    """The mean chance of being infected at the end."""
    return None if now is None else float(now.mean())


def _on_a_grid(risk: Probabilities) -> Probabilities:
    return np.asarray(np.rint(risk * _RISK_STEPS) / _RISK_STEPS)


def held_out(tests: Known, fold: NDArray[np.int64]) -> list[int]:
    """The folds by which a law is chosen: never one that ``tests`` lack.

    All, or, where one is missing, the one after it: then it never meets a law
    that it had a part in.
    """
    there = sorted({int(part) for part in fold[tests.tested] if part >= 0})
    folds = int(fold.max(initial=-1)) + 1
    if folds < 2 or len(there) == folds:
        return there if folds >= 2 else []
    missing = next(part for part in range(folds) if part not in there)
    return [(missing + 1) % folds] if there else []
