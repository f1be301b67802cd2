"""Falcon Field: the field of beliefs with one exchange a sweep, regions estimated.

People send, for all the places and slots they were in and in one message, how
infectious they expect to have been and what became of them afterwards; the server
adds up and tells the sums. Each person then runs its own chain forward and back.
The equations stand in ``docs/explanation-falcon-field.md``, the chain in
``models/field``, and what leaves a device in ``federation/field``.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_interval import interval, shaken, spread_of
from epifalcon.baselines.field_telling import (
    LEAST_FOLDS,
    AtHome,
    Held,
    Telling,
    Ways,
    find_telling,
)
from epifalcon.baselines.hbp import known_late, without_own_tests
from epifalcon.baselines.method import INTERVAL_WIDTH, Method, Scene, Scores
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.together import Together
from epifalcon.federation.spending import spent_figures
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.at_home import Situation, numbers_at_home
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City, told_by
from epifalcon.models.field.settings import LAWS, FieldSettings, Law
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.privacy.ledger import Ledger
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities

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
        settings, runs = self.settings.field, Runs(self.scene, traces, self.settings)
        if self.settings.privacy.mode != "off":
            return runs.private(known)
        parts = min(settings.folds, int(known.tested.sum()))
        fold = blind_folds(known, max(parts, 1), self._deal())
        laws: list[Law] = []
        ends: list[AtHome] = []

        def run(tests: Known) -> AtHome:
            laws.append(runs.law(tests, fold))
            ends.append(runs.beliefs(tests, laws[-1], settings))
            return ends[-1]

        found = without_own_tests(known, parts, self._deal(), run)
        found = replace(found, told={"sweeps": found.steps, "law": laws[0]})
        if runs.ways.none or parts < LEAST_FOLDS:
            return runs.with_interval(found, known, laws[0])
        return runs.tell(found, known, Folds(fold, laws, ends))

    def _deal(self) -> np.random.Generator:
        """Of the folds: each time the same."""
        return Streams(self.scene.seed).numpy("falcon-field folds")


@dataclass(frozen=True, eq=False)
class Folds:
    """The runs with all tests and without each fold."""

    of: NDArray[np.int64]
    """(people,) the fold of each tested person, -1 for everybody else."""
    laws: list[Law]
    """Of the run with all tests first."""
    ends: list[AtHome]
    """The same."""


class Runs:
    """Runs of the field on one city, each on some of the tests."""

    def __init__(
        self,
        scene: Scene,
        traces: Traces,
        wishes: FieldWishes,
        *,
        numbers: bool = False,
    ) -> None:
        """``numbers`` keeps what people have at home also where nothing wants it."""
        self._scene, self._traces, self._wishes = scene, traces, wishes
        self._settings = settings = wishes.field
        self._rates = rates_of(traces, scene.pathogen, scene.rule)
        self._force = force_of_infection(traces, scene.pathogen, scene.rule)
        self._laws = {
            law: Transmission.of(law, settings.region, traces.regions) for law in LAWS
        }
        self.ways = Ways.of(settings, scene.test_errors)
        self._numbers = numbers or self.ways.correction is not None
        self._short: dict[tuple[bytes, Law], AtHome] = {}
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

    def shortly(self, tests: Known, law: Law) -> AtHome:
        """``beliefs`` by the fewer sweeps that choose; asked for again, kept."""
        key = (tests.person.tobytes(), law)
        if key not in self._short:
            sweeps = self._settings.region.choosing_sweeps
            few = replace(self._settings, sweeps=sweeps)
            self._short[key] = self.beliefs(tests, law, few)
        return self._short[key]

    def beliefs(self, tests: Known, law: Law, settings: FieldSettings) -> AtHome:
        """Sweep by ``law``, knowing ``tests`` alone."""
        together, start = self._people(tests), Start.of(tests, self._rates, self._slots)
        city = self._city(together.crowd())
        stage = infer(together, city, start, settings, self._laws[law], self._tell)
        numbers = None
        if self._numbers:
            last = told_by(city, stage.places, stage.factor)
            situation = Situation(tests, self._rates, self._scene.test_errors)
            home = together.cohorts[0].home
            numbers = numbers_at_home(home, last, stage.factor, situation)
        risk = _on_a_grid(together.risk)
        return AtHome(risk, settings.sweeps, 0.0, numbers=numbers)

    def tell(self, found: Scores, known: Known, folds: Folds) -> Scores:
        """The scores as they are told; their risks have come from ``folds``.

        What is told of a fold is found without it, by the next one alone.
        """
        whole, *others = folds.ends
        judges, count = known_late(known, self._traces), len(others)
        held = [
            Held(end, judges & (folds.of == part)) for part, end in enumerate(others)
        ]
        telling = find_telling(whole, held, known, self.ways)
        risk, tellings = telling(whole).copy(), [telling]
        for part, end in enumerate(others):
            own, after = folds.of == part, folds.of == (part + 1) % count
            left = known.of_people(~own & ~after)
            before = Held(self.shortly(left, folds.laws[1 + part]), judges & after)
            tellings.append(find_telling(end, [before], known, self.ways))
            risk[own] = tellings[-1](end)[own]
        risk = _on_a_grid(risk)
        found = replace(
            found,
            risk=risk,
            masked_risk=risk[known.tested],
            told=found.told | telling.as_plain(),
        )
        return self.with_interval(found, known, folds.laws[0], (folds.of, tellings))

    def with_interval(
        self,
        found: Scores,
        known: Known,
        law: Law,
        told_by: tuple[NDArray[np.int64], list[Telling]] | None = None,
    ) -> Scores:
        """The scores with intervals, where an ensemble is wished for.

        ``told_by``: the folds of people, and how all others and each fold are told.
        """
        if not self._settings.ensemble:
            return found
        spread = spread_of(self._ensemble(known, law), ~known.tested)
        fold, tellings = told_by or (np.full(known.people, -1), [Telling()])
        low, high = found.risk.copy(), found.risk.copy()
        for number, telling in enumerate(tellings):
            own = fold == number - 1
            ends = interval(found.risk[own], spread[own], telling.bend, telling.unsure)
            low[own], high[own] = ends.low, ends.high
        told = found.told | {INTERVAL_WIDTH: float((high - low).mean())}
        return replace(found, low=low, high=high, told=told)

    def _ensemble(self, known: Known, law: Law) -> list[Probabilities]:
        """Everybody's risk by runs that know half of the tests and other rates."""
        rng = Streams(self._scene.seed).numpy("falcon-field ensemble")
        risks = []
        for _ in range(self._settings.ensemble):
            kept = rng.random(known.people) < 0.5
            scene = replace(self._scene, pathogen=shaken(self._scene.pathogen, rng))
            runs = Runs(scene, self._traces, self._wishes)
            risks.append(runs.shortly(known.of_people(kept), law).risk)
        return risks

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
            tells = not self.ways.none and folds >= LEAST_FOLDS
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
