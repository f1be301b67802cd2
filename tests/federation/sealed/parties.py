"""Clients and two aggregators of a small sealed task, and noise that tests choose."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epifalcon.federation.sealed.aggregator import Aggregator, TaskReports
from epifalcon.federation.sealed.combine import agreed, combine
from epifalcon.federation.sealed.fixed_point import encode
from epifalcon.federation.sealed.sealing import report_id, seal_report
from epifalcon.federation.sealed.task import SealedTask
from epifalcon.privacy.events import ONE_VECTOR, Releases, Terms
from epifalcon.privacy.ledger import Budget

LENGTH = 5
NO_LIMIT = Budget()


def terms_of(number=1, channel="infectious", relation="zero-out", person=1):
    return Terms(
        channel=channel,
        releases=ONE_VECTOR if person == 1 else Releases(visit=1, day=1, person=person),
        round=number,
        relation=relation,
        adversary="sums",
    )


def task_for(aggregators, **changed):
    given = {
        "run": "town",
        "terms": terms_of(),
        "unit": "person",
        "bound": 1.0,
        "sigma": 0.0,
        "least_reports": 2,
        "most_people": 1000,
        "fraction_bits": 24,
        "length": LENGTH,
        "aggregators": tuple(aggregators),
    }
    return SealedTask(**(given | changed))


def pins_of(task):
    return {one.name: one.fingerprint for one in task.aggregators}


def ones(scale, length):
    """Not noise: known numbers of about its size."""
    return np.full(length, int(scale), dtype=np.uint64)


def report_of(task, person, values):
    secret = person.to_bytes(32, "big")
    return seal_report(task, encode(values, task), report_id(secret, task))


@dataclass
class Pair:
    """Both aggregators in two folders."""

    a: Aggregator
    b: Aggregator

    @classmethod
    def at(cls, folder: Path, budget=NO_LIMIT):
        return cls(
            Aggregator(folder / "a", "health-office", budget),
            Aggregator(folder / "b", "university", budget),
        )

    @property
    def identities(self):
        return self.a.identity, self.b.identity

    def close(self):
        self.a.close()
        self.b.close()

    def reopened(self, budget=NO_LIMIT):
        self.close()
        return Pair.at(self.a.folder.parent, budget)

    def task(self, **changed):
        return task_for(self.identities, **changed)

    def open(self, task, **options) -> tuple[TaskReports, TaskReports]:
        pins = pins_of(task)
        return self.a.open(task, pins, **options), self.b.open(task, pins, **options)

    def filled(self, task, reports, **options):
        both = self.open(task, **options)
        for one in reports:
            both[0].accept(one.report, one.a)
            both[1].accept(one.report, one.b)
        return both


def sum_of(task, both):
    """The server's part of one exchange."""
    chosen = agreed(both[0].accepted, both[1].accepted)
    return combine(task, chosen, both[0].answer(chosen), both[1].answer(chosen))


def messages(people, seed=0, length=LENGTH):
    """(people, length) of norm at most 1."""
    drawn = np.random.default_rng(seed).normal(size=(people, length))
    return drawn / np.maximum(1.0, np.linalg.norm(drawn, axis=1, keepdims=True)) * 0.999
