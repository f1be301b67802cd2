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

from epifalcon.errors import SettingsError
from epifalcon.federation.field.cuts import excess_cut, presence_cut
from epifalcon.federation.field.home import Counted, FieldHome, FieldRun
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.plan import INFECTIOUS, PRESENCE, TESTS, FieldPlan
from epifalcon.federation.field.private import by_slot, places_by, presence_by
from epifalcon.federation.field.reading import (
    Noisy,
    Profile,
    read_crowd,
    read_share,
    share_of_others,
)
from epifalcon.federation.field.task import FieldTask
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.disease import force_by_share, rates_for
from epifalcon.models.field.people import add_up
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import LAWS, FieldSettings, Law
from epifalcon.models.field.sweeps import Exchange, Stage, Start, infer
from epifalcon.models.field.tables import Manner, Sums, Told
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
        region = task.wishes.field.region
        self._laws = {
            law: Transmission.of(law, region, setting.regions, _no_flows)
            for law in ("one", *region.laws)
        }
        self.found = Found()
        self._noisy: _Noisy | None = None
        if task.private:
            plan = FieldPlan.of(task.wishes.privacy, setting.clock)
            self._noisy = _Noisy(plan, self._counted, setting.people)
            self._city = self._private_city(self._noisy.crowd)
        else:
            self._city = self._open_city()

    def go(self) -> Found:
        """Choose the law, sweep for everybody, then for each fold without it."""
        there = self._there()
        self.found.law = self._law(None, there)
        stage = self._run(FieldRun(self._rates), self.found.law)
        self.found.field = {**vars(stage.places), "factor": stage.factor.mean}
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
        if self._task.private:
            return "one"
        laws = self._task.wishes.field.region.laws
        if len(laws) == 1 or len(there) < 2:
            return laws[0]
        held = there
        aside: tuple[int, ...] = ()
        if missing is not None:
            held = [there[(there.index(missing) + 1) % len(there)]]
            aside = (missing,)
        for part in held:
            for law in laws:
                number = LAWS.index(law)
                run = FieldRun(self._rates, (*aside, part), "judged", part, number)
                self._run(run, law, self._few)
        return self._people.judged(held).best(laws)

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
        tested, positive = float(tests[0]), float(tests[1])
        exchange = self._people.exchange(run)
        if self._noisy is not None:
            tested, positive = self._noisy.tests(tested, positive)
            exchange = _Shrunk(exchange, self._noisy, run)
        slots = self._setting.clock.slots
        start = Start.by_share(tested, positive, self._rates, slots)
        self._tell(1)
        return infer(exchange, self._city, start, settings, self._laws[law], self._tell)

    def _tell(self, sweep: int) -> None:
        del sweep
        self.found.sweeps += 1
        self._tell_of(self.found.sweeps, max(self._planned, self.found.sweeps))

    @property
    def _planned(self) -> int:
        settings, folds = self._task.inference, len(self._there())
        finals = (1 + folds) * settings.sweeps
        laws = settings.region.laws
        if self._task.private or len(laws) == 1 or folds < 2:
            return finals
        each = len(laws) * settings.region.choosing_sweeps
        return finals + 2 * folds * each

    def _open_city(self) -> City:
        crowd = self._counted.crowd
        there = crowd[:, 1:]
        lost = (there > 0) if self._task.rule.contact == "I/N" else (there == 1)
        observed = int(there.sum())
        share = 1 - float(int(lost.sum()) / observed) if observed else None
        return self._city_of(crowd, share)

    def _private_city(self, crowd: Floats) -> City:
        """By counts with noise: what is told of contacts comes from them alone."""
        share = share_of_others(crowd)
        present = by_slot(1 + crowd[None], self._setting.clock.slots)
        return replace(self._city_of(present, share), own_in_sums=False)

    def _city_of(self, present: Floats, share: float | None) -> City:
        task, clock = self._task, self._setting.clock
        force = 0.0
        if share is not None:
            force = force_by_share(share, clock, task.pathogen, task.rule)
        return City(clock, force, task.rule.chance, present, task.rule.contact == "I/S")


class _Noisy:
    """What the counts of a private run tell, and how much noise its sums have."""

    def __init__(self, plan: FieldPlan, counted: Counted, people: int) -> None:
        self.plan, self.noises = plan, counted.noises[:, 1:]
        self._local = plan.settings.mode == "local"
        self._people = people
        if self._local:
            presence = presence_by(self.noises)
        else:
            reach = presence_cut(plan)[1]
            presence = self.noisy(counted.crowd, PRESENCE, 0, reach)
        self.crowd = read_crowd(presence, people)

    def noisy(self, total: Floats, channel: str, number: int, reach: float) -> Noisy:
        """Sums that came, with their standard errors."""
        scale = reach * self.plan.receipt(channel, number).sigma
        noises = self.noises if channel == INFECTIOUS else self.noises[:1]
        return Noisy(total[:, 1:], scale * np.sqrt(noises))

    def tests(self, tested: float, positive: float) -> tuple[float, float]:
        """How many were tested and positive; with little told, as many as usual."""
        count = self._people if self._local else self.noises.max()
        scale = self.plan.receipt(TESTS, 0).sigma * float(np.sqrt(count))
        told = max(tested, 1.0)
        return told, told * read_share(told, positive, scale)


class _Shrunk:
    """An exchange whose people add noise: what is read of the sums that come."""

    def __init__(self, inner: Exchange, noisy: _Noisy, run: FieldRun) -> None:
        self._inner, self._noisy, self._run = inner, noisy, run
        self._profile: Profile | None = None
        self._heard: list[Noisy] = []

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring what noise leaves of the sums."""
        plan, number = self._noisy.plan, 1 + len(self._heard)
        if self._profile is None:
            rates = self._run.rates
            self._profile = Profile.of(told, rates, plan.clock, manner.bound)
        sums = self._inner.sweep(told, manner, well=well, tally=tally)
        reach = excess_cut(plan, self._profile, number)[1]
        came = self._noisy.noisy(sums.infectious, INFECTIOUS, number, reach)
        self._heard.append(came)
        crowd = self._noisy.crowd
        ill, news = places_by(self._heard, self._profile, crowd, manner.bound)
        return sums._replace(infectious=ill, evidence=news)

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        self._inner.end(told, manner)


def _no_flows() -> Flows:
    """Sites tell where people were, not where they went."""
    raise SettingsError("flows of people are not told by sites")


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
