"""Runs of the field on one city, each on some of the tests: what Falcon Field asks.

Which law of transmission some tests speak for, what people believe then, and one run
behind noise.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.field_telling import AtHome, Ways
from epifalcon.baselines.method import Scene, Scores
from epifalcon.baselines.ordering import Order
from epifalcon.epidemic.known import Known
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.together import Together
from epifalcon.federation.spending import spent_figures
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.at_home import Situation, numbers_at_home
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.disease import (
    force_by_share,
    force_of_infection,
    rates_of,
)
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City, told_by
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.models.field.reading import Now
from epifalcon.models.field.settings import (
    ALIKE,
    LAWS,
    LEAST_FOLDS,
    FieldSettings,
    Law,
)
from epifalcon.models.field.sweeps import Stage, Start, begin, go_on, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.privacy.ledger import Budget, Ledger
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


@dataclass(frozen=True, eq=False)
class _Swept:
    """People between sweeps, and where the server stands."""

    together: Together
    city: City
    stage: Stage

    def copy(self) -> "_Swept":
        """To go on from, apart from others."""
        cohorts = [cohort.copy() for cohort in self.together.cohorts]
        return replace(self, together=Together(cohorts))


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
        wish = settings.region
        flows = cache(lambda: count_flows(traces))
        self._laws = {
            law: Transmission.of(law, wish, traces.regions, flows)
            for law in LAWS
            if law in (*wish.laws, "one", "scaled")
        }
        self.ways = Ways.of(settings, scene.test_errors)
        self._numbers = numbers or self.ways.correction is not None
        self._short: dict[tuple[bytes, Law], AtHome] = {}
        self._begun: tuple[bytes, _Swept] | None = None
        self._done = 0

    def law(self, tests: Known, fold: NDArray[np.int64]) -> Law:
        """The law that these tests speak for, some folds of them held out in turn.

        All folds where all are there; where one was left out, the next one alone.
        """
        laws, held = self._settings.region.laws, held_out(tests, fold)
        if len(laws) == 1 or not held:
            return laws[0]
        lost: dict[Law, list[Floats]] = {law: [] for law in laws}
        for part in held:
            out = fold == part
            left = tests.of_people(~out)
            for law in laws:
                risk = self.shortly(left, law).risk[out]
                lost[law].append(losses(risk, tests.status[out] == 1))
        whole = {law: np.concatenate(parts) for law, parts in lost.items()}
        return choose(whole, ALIKE)

    def shortly(self, tests: Known, law: Law) -> AtHome:
        """What is believed after the fewer sweeps that choose; asked again, kept."""
        key = (tests.person.tobytes(), law)
        if key not in self._short:
            sweeps = self._settings.region.choosing_sweeps
            few = replace(self._settings, sweeps=sweeps)
            self._short[key] = self._at_home(self._sweep(tests, law, few), tests, few)
        return self._short[key]

    def final(self, tests: Known, law: Law) -> tuple[AtHome, KeptField]:
        """What is believed after all sweeps, who is infected now, and the field."""
        swept = self._sweep(tests, law, self._settings)
        found = self._at_home(swept, tests, self._settings)
        now, kept = self._read(swept)
        return replace(found, now=now), kept

    def private(self, known: Known) -> tuple[Scores, KeptField]:
        """One run behind noise, what it spent, and the field."""
        wish = self._wishes.privacy
        plan = FieldPlan.of(wish, self._traces.clock)
        together, seed = self._people(known), Streams(self._scene.seed)
        ledger = ledger_of(self._scene, plan.budget)
        noised = Noised(together, plan, ledger, seed.seed_for("falcon-field noise"))
        tested, positive = noised.tests(
            int(known.tested.sum()), int((known.status == 1).sum())
        )
        start = Start.by_share(tested, positive, self._rates, self._traces.slots)
        settings = replace(self._settings, sweeps=wish.sweeps)
        scene, clock = self._scene, self._traces.clock
        # What true contacts would tell is not paid for.
        force = force_by_share(
            noised.share_of_others, clock, scene.pathogen, scene.rule
        )
        city = replace(self._city(noised.crowd()), own_in_sums=False, force=force)
        stage = infer(noised, city, start, settings, self._laws["one"], self._tell)
        now, kept = self._read(_Swept(together, city, stage))
        spent = spent_figures(wish.mode, noised.ledger)
        told = {"sweeps": wish.sweeps, "law": "one", "spent": spent}
        told[MEAN_NOW] = mean_of(now.aside)
        scores = Scores(
            on_a_grid(together.risk),
            steps=wish.sweeps,
            told=told,
            now=now.aside,
            now_tested=now.tested,
        )
        return scores, kept

    def _sweep(self, tests: Known, law: Law, settings: FieldSettings) -> _Swept:
        """All sweeps by ``law``, knowing ``tests`` alone."""
        swept, transmission = self._begin(tests), self._laws[law]
        stage = infer(
            swept.together, swept.city, swept.stage, settings, transmission, self._tell
        )
        return replace(swept, stage=stage)

    def _begin(self, tests: Known) -> _Swept:
        """The sweeps before transmission is estimated, which all laws share."""
        key = tests.person.tobytes()
        if self._begun is None or self._begun[0] != key:
            together, settings = self._people(tests), self._settings
            city = self._city(together.crowd())
            start = Start.of(tests, self._rates, self._traces.slots)
            stage = begin(together, city, start, settings)
            shared = min(settings.region.from_sweep - 1, settings.sweeps)
            while stage.sweep < min(shared, settings.region.choosing_sweeps):
                stage = go_on(together, city, stage, settings)
            self._begun = key, _Swept(together, city, stage)
        return self._begun[1].copy()

    def _at_home(self, swept: _Swept, tests: Known, settings: FieldSettings) -> AtHome:
        numbers, risk = None, on_a_grid(swept.together.risk)
        if self._numbers:
            factor = swept.stage.factor
            last = told_by(swept.city, swept.stage.places, factor)
            situation = Situation(tests, self._rates, self._scene.test_errors)
            home = swept.together.cohorts[0].home
            numbers = numbers_at_home(home, last, factor.mean, situation)
        return AtHome(risk, settings.sweeps, 0.0, numbers=numbers)

    def _read(self, swept: _Swept) -> tuple[Now, KeptField]:
        """Who is infected at the end, and what there is to keep."""
        field = PublishedField(
            swept.city,
            swept.stage.places,
            swept.stage.factor,
            self._rates,
            self._scene.test_errors,
        )
        home = swept.together.cohorts[0].home
        now = swept.together.now(field.told())
        grid = Now(*map(on_a_grid, (now.aside, now.tested, now.ever)))
        return grid, KeptField(field, Messages(home.infectious, home.evidence))

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
        """Sweeps in all, but those that laws share."""
        settings, folds = self._settings, self._settings.folds
        shared = settings.region.from_sweep - 1
        finals = (1 + folds) * (settings.sweeps - shared)
        each = settings.region.choosing_sweeps - shared
        if len(settings.region.laws) == 1:
            tells = not self.ways.none and folds >= LEAST_FOLDS
            return finals + tells * folds * each
        return finals + 2 * folds * len(settings.region.laws) * each


def ledger_of(scene: Scene, budget: Budget) -> Ledger:
    """Kept in the run's folder; a run that is begun again draws the same noise."""
    folder = scene.folder
    if folder is None:
        return Ledger(budget)
    folder.mkdir(parents=True, exist_ok=True)
    return Ledger.open(folder / LEDGER, budget=budget, replay_from=0)


def mean_of(now: Probabilities | None) -> float | None:
    """The mean chance of being infected at the end."""
    return None if now is None else float(now.mean())


def on_a_grid(risk: Probabilities) -> Probabilities:
    """Rounded to whole multiples of a power of two, as no order of people shows."""
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
