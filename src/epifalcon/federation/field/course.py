"""The course of Falcon Field over people who may be anywhere: which runs, which law.

As the method in one process has it (``baselines.falcon_field``), but of what sites
can know by themselves: folds follow from seed and person, and a law of transmission
is chosen by sums of losses. A private run is one run, without folds and by the
pathogen's rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from epifalcon.epidemic.hazard import kappa_by_share
from epifalcon.federation.field.cells import CellShape, shrunk_means
from epifalcon.federation.field.home import Counted, FieldHome, FieldRun
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.plan import EVIDENCE, INFECTIOUS, FieldPlan
from epifalcon.federation.field.task import FieldTask
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.chains import Manner, Sums, Told
from epifalcon.models.field.disease import rates_for
from epifalcon.models.field.people import add_up
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import LAWS, FieldSettings, Law
from epifalcon.models.field.sweeps import Exchange, Stage, Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.types import Floats, Probabilities


class Reached(Protocol):
    """All people of a task, wherever they are."""

    def counted(self) -> Counted:
        """What all sites counted, added up."""
        ...

    def exchange(self, run: FieldRun) -> Exchange:
        """The way to all people and back for one run."""
        ...

    def judged(self, folds: list[int]) -> Judgement:
        """How well each law told the people of ``folds``."""
        ...


@dataclass(frozen=True)
class Setting:
    """What all sites have in common."""

    people: int
    clock: Clock
    regions: Regions


@dataclass
class Found:
    """What the server knows at the end: nobody's risk."""

    law: Law = "one"
    laws_of_folds: list[Law] = field(default_factory=list)
    sweeps: int = 0
    field: dict[str, Floats] = field(default_factory=dict)
    """What the places told everybody at the end."""


class Course:
    """All runs of a task; people then know their risks."""

    def __init__(
        self,
        people: Reached,
        task: FieldTask,
        setting: Setting,
        tell: Callable[[int, int], None] = lambda _done, _planned: None,
    ) -> None:
        self._people, self._task, self._setting = people, task, setting
        self._tell_of, self._counted = tell, people.counted()
        self._rates = rates_for(setting.people, setting.clock, task.pathogen, task.rule)
        self._laws = {
            law: Transmission.of(law, task.wishes.field.region, setting.regions)
            for law in LAWS
        }
        self.found = Found()
        self._city = self._private_city() if task.private else self._open_city()

    def go(self) -> Found:
        """Choose the law, sweep for everybody, then for each fold without it."""
        there = self._there()
        self.found.law = self._law(None, there)
        stage = self._run(FieldRun(self._rates), self.found.law)
        self.found.field = {**vars(stage.places), "factor": stage.factor}
        for part in there:
            law = self._law(part, there)
            self.found.laws_of_folds.append(law)
            self._run(FieldRun(self._rates, (part,), "fold", part), law)
        return self.found

    def _there(self) -> list[int]:
        """Folds with anybody in them."""
        if not self._task.folds:
            return []
        return [int(part) for part in np.flatnonzero(self._counted.tests[:, 0])]

    def _law(self, missing: int | None, there: list[int]) -> Law:
        """The law that the tests speak for, ``missing`` aside, by held-out folds.

        All folds in turn; where one is missing the one after it alone, so that it
        never meets a law that it had a part in.
        """
        wish = self._task.wishes.field.region.law
        if self._task.private:
            return "one"
        if wish != "auto":
            return wish
        if len(there) < 2:
            return "one"
        held, aside = there, ()
        if missing is not None:
            held = [there[(there.index(missing) + 1) % len(there)]]
            aside = (missing,)
        for part in held:
            for number, law in enumerate(LAWS):
                run = FieldRun(self._rates, (*aside, part), "judged", part, number)
                self._run(run, law, self._few)
        return self._people.judged(held).best()

    @property
    def _few(self) -> FieldSettings:
        """For choosing a law."""
        settings = self._task.wishes.field
        return replace(settings, sweeps=settings.region.choosing_sweeps)

    def _run(
        self, run: FieldRun, law: Law, settings: FieldSettings | None = None
    ) -> Stage:
        settings = settings or self._task.inference
        tests = np.delete(self._counted.tests, run.without, axis=0).sum(axis=0)
        tested = tests[0]
        positive = tests[1]
        if self._task.private:
            tested = max(tested, 1.0)
            positive = float(np.clip(positive, 0, tested))
        start = Start.by_share(
            float(tested), float(positive), self._rates, self._setting.clock.slots
        )
        exchange = self._people.exchange(run)
        if self._task.private:
            exchange = _Shrunk(exchange, self._task, self._setting, self._counted)
        return infer(exchange, self._city, start, settings, self._laws[law], self._tell)

    def _tell(self, sweep: int) -> None:
        del sweep
        self.found.sweeps += 1
        self._tell_of(self.found.sweeps, max(self._planned, self.found.sweeps))

    @property
    def _planned(self) -> int:
        settings, folds = self._task.inference, len(self._there())
        finals = (1 + folds) * settings.sweeps
        if self._task.private or settings.region.law != "auto" or folds < 2:
            return finals
        each = len(LAWS) * settings.region.choosing_sweeps
        return finals + 2 * folds * each

    def _open_city(self) -> City:
        crowd = self._counted.crowd
        there = crowd[:, 1:]
        lost = (there > 0) if self._task.rule.contact == "I/N" else (there == 1)
        observed = int(there.sum())
        share = 1 - float(int(lost.sum()) / observed) if observed else None
        return self._city_of(crowd, share)

    def _private_city(self) -> City:
        """By counts with noise: what is told of contacts comes from them alone."""
        shape = CellShape(self._setting.clock, self._task.wishes.privacy.cells)
        present = self._counted.crowd / shape.slots_per_cell
        there = np.maximum(present[:, 1:], 0)
        others = shape.crowd(present) - 1
        share = float(others[:, 1:].mean() / max(there.mean(), 1e-9))
        city = self._city_of(shape.crowd(present), min(share, 1.0))
        return replace(city, own_in_sums=False)

    def _city_of(self, present: Floats, share: float | None) -> City:
        task, clock = self._task, self._setting.clock
        force = 0.0
        if share is not None:
            kappa = kappa_by_share(share, task.pathogen, task.rule)
            weight = task.rule.mean_infectious_days(task.pathogen) * task.pathogen.mu
            force = kappa * task.pathogen.beta * clock.slot_days * weight
        return City(clock, force, task.rule.chance, present, task.rule.contact == "I/S")


class _Shrunk:
    """An exchange whose people add noise: what is read of the cells that come."""

    def __init__(
        self, inner: Exchange, task: FieldTask, setting: Setting, counted: Counted
    ) -> None:
        self._inner, self._counted = inner, counted
        self._plan = FieldPlan.of(task.wishes.privacy, setting.clock)
        self._shape = CellShape(setting.clock, task.wishes.privacy.cells)
        self._present = counted.crowd / self._shape.slots_per_cell

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring what noise leaves of the sums."""
        sums = self._inner.sweep(told, manner, well=well, tally=tally)
        others = self._shape.crowd(self._present) - 1
        ill = np.clip(self._means(sums.infectious, INFECTIOUS), 0, 1)
        bound = self._plan.settings.evidence_bound
        news = np.clip(self._means(sums.evidence, EVIDENCE), -1, bound)
        return sums._replace(
            infectious=self._shape.slots(ill) * others,
            evidence=self._shape.slots(news) * others,
        )

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        self._inner.end(told, manner)

    def _means(self, totals: Floats, channel: str) -> Floats:
        sigma = self._plan.sigma[channel] * np.sqrt(self._counted.noises)
        return shrunk_means(totals / self._shape.slots_per_cell, self._present, sigma)


class Gathered:
    """Homes in one process, without any message."""

    def __init__(self, homes: Sequence[FieldHome]) -> None:
        self.homes = homes

    def counted(self) -> Counted:
        """What all counted, added up."""
        first, *others = [home.count() for home in self.homes]
        return sum(others, first)

    def exchange(self, run: FieldRun) -> Exchange:
        """Begin a run everywhere."""
        for home in self.homes:
            home.begin(run)
        return self

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring the sums of what they send."""
        return add_up(
            [home.sweep(told, manner, well=well, tally=tally) for home in self.homes]
        )

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        for home in self.homes:
            home.end(told, manner)

    def judged(self, folds: list[int]) -> Judgement:
        """How well each law told the people of ``folds``."""
        return sum((home.judged(folds) for home in self.homes), Judgement.none())

    @property
    def risk(self) -> Probabilities:
        """(people,) home after home."""
        return np.concatenate([home.risk for home in self.homes])
