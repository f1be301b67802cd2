"""Falcon Field: the field of beliefs with one exchange a sweep, regions estimated.

People send, for all the places and slots they were in and in one message, how
infectious they expect to have been and what became of them afterwards; the server
adds up and tells the sums. Each person then runs its own chain forward and back.
The equations stand in ``docs/explanation-falcon-field.md``, the chain in
``models/field``, and what leaves a device in ``federation/field``.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_telling import LEAST_FOLDS, Held, Telling, find_telling
from epifalcon.baselines.hbp import Beliefs, known_late, without_own_tests
from epifalcon.baselines.method import Method, Scene, Scores
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.together import Together
from epifalcon.federation.spending import spent_figures
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import LAWS, FieldSettings, Law
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.privacy.ledger import Ledger
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, Probabilities

LEDGER = "ledger.jsonl"
_RISK_STEPS = 2.0**30


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

    def score(self, traces: Traces, known: Known) -> Scores:
        """Choose the law, sweep, and tell the risks; of each fold without it.

        A private run is one run: what other runs would release is not paid for.
        """
        settings, runs = self.settings.field, _Runs(self.scene, traces, self.settings)
        if self.settings.privacy.mode != "off":
            return runs.private(known)
        parts = min(settings.folds, int(known.tested.sum()))
        fold = blind_folds(known, max(parts, 1), self._deal())
        laws: list[Law] = []
        ends: list[Beliefs] = []

        def run(tests: Known) -> Beliefs:
            laws.append(runs.law(tests, fold))
            ends.append(runs.beliefs(tests, laws[-1], settings))
            return ends[-1]

        found = without_own_tests(known, parts, self._deal(), run)
        told = {"sweeps": found.steps, "law": laws[0]}
        if settings.calibration == "none" or parts < LEAST_FOLDS:
            return replace(found, told=told)
        judges = known_late(known, traces)
        risk, telling = runs.tell(known, fold, laws, ends, judges)
        return replace(
            found,
            risk=risk,
            masked_risk=risk[known.tested],
            told=told | telling.as_plain(),
        )

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
        self._laws = {
            law: Transmission.of(law, settings.region, traces.regions) for law in LAWS
        }
        self._short: dict[tuple[bytes, Law], Beliefs] = {}
        self._done = 0

    def law(self, tests: Known, fold: NDArray[np.int64]) -> Law:
        """The law that these tests speak for, some folds of them held out in turn.

        All folds where all are there; where one was left out, the next one alone.
        """
        wish = self._settings.region.law
        if wish != "auto":
            return wish
        held = held_out(tests, fold)
        lost: dict[Law, list[Floats]] = {law: [] for law in LAWS}
        for part in held:
            out = fold == part
            left = tests.of_people(~out)
            for law in LAWS:
                risk = self.shortly(left, law).risk[out]
                lost[law].append(losses(risk, tests.status[out] == 1))
        if not held:
            return "one"
        return choose({law: np.concatenate(parts) for law, parts in lost.items()})

    def shortly(self, tests: Known, law: Law) -> Beliefs:
        """``beliefs`` by the fewer sweeps that choose; asked for again, kept."""
        key = (tests.person.tobytes(), law)
        if key not in self._short:
            sweeps = self._settings.region.choosing_sweeps
            few = replace(self._settings, sweeps=sweeps)
            self._short[key] = self.beliefs(tests, law, few)
        return self._short[key]

    def beliefs(self, tests: Known, law: Law, settings: FieldSettings) -> Beliefs:
        """Sweep by ``law``, knowing ``tests`` alone."""
        together, start = self._people(tests), Start.of(tests, self._rates, self._slots)
        city = self._city(together.crowd())
        infer(together, city, start, settings, self._laws[law], self._tell)
        return Beliefs(_on_a_grid(together.risk), settings.sweeps, 0.0)

    def tell(
        self,
        known: Known,
        fold: NDArray[np.int64],
        laws: list[Law],
        ends: list[Beliefs],
        judges: Mask,
    ) -> tuple[Probabilities, Telling]:
        """Everybody's risk as it is told, and how that of untested people is.

        ``laws`` and ``ends`` of the run with all tests and of those without each
        fold. What is told of a fold is found without it, by the next one alone.
        """
        whole, *others = ends
        errors = self._scene.test_errors
        held = [
            Held(end.risk, judges & (fold == part)) for part, end in enumerate(others)
        ]
        telling = find_telling(whole.risk, held, known, errors)
        risk = telling(whole.risk).copy()
        for part, end in enumerate(others):
            own, after = fold == part, fold == (part + 1) % len(others)
            end_before = self.shortly(known.of_people(~own & ~after), laws[1 + part])
            held = [Held(end_before.risk, judges & after)]
            risk[own] = find_telling(end.risk, held, known, errors)(end.risk)[own]
        return _on_a_grid(risk), telling

    def private(self, known: Known) -> Scores:
        """One run behind noise, and what it spent."""
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
        settings = replace(
            self._settings, sweeps=wish.sweeps, evidence_bound=wish.evidence_bound
        )
        city = replace(self._city(noised.crowd()), own_in_sums=False)
        infer(noised, city, start, settings, self._laws["one"], self._tell)
        spent = spent_figures(wish.mode, noised.ledger)
        told = {"sweeps": wish.sweeps, "law": "one", "spent": spent}
        return Scores(_on_a_grid(together.risk), steps=wish.sweeps, told=told)

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
            tells = settings.calibration != "none" and folds >= LEAST_FOLDS
            return finals + tells * folds * (settings.region.choosing_sweeps - 1)
        each = len(LAWS) * (settings.region.choosing_sweeps - 1)
        return finals + 2 * folds * each


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
