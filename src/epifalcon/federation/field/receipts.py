"""Receipts of all that leaves a site in a task, with a promise or without."""

from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.task import FieldTask
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.events import Release, Releases, Terms, UnprotectedRelease
from epifalcon.privacy.ledger import Budget

_CLEAR = {
    "presence": "how many people were where, added up over a site",
    "tests": "how many were tested and positive, of a site by folds",
    "infectious": "expected infectiousness at places, added up over a site",
    "evidence": "evidence of what became of people, added up over a site",
}
_TRANSMISSION = "tested people's infections and hazard by region, added up over a site"
_JUDGED = "how well held-out tested people are told, added up over a site"


def budget_of(task: FieldTask, clock: Clock) -> Budget:
    """The promise as a ledger keeps it."""
    if not task.private:
        return Budget()
    return FieldPlan.of(task.wishes.privacy, clock).budget


def opening(task: FieldTask, clock: Clock) -> tuple[Release, ...]:
    """What leaves before the first exchange; without promise, all that ever does."""
    if task.private:
        return FieldPlan.of(task.wishes.privacy, clock).opening()
    told = dict(_CLEAR)
    if task.learns_transmission:
        told["transmission"] = _TRANSMISSION
    if len(task.wishes.field.region.laws) > 1:
        told["judgement"] = _JUDGED
    releases = Releases(visit=1, day=clock.slots_per_day, person=clock.slots)
    return tuple(
        UnprotectedRelease(terms=Terms(channel=name, releases=releases), what=what)
        for name, what in told.items()
    )


def exchange(task: FieldTask, clock: Clock, number: int) -> tuple[Release, ...]:
    """What leaves in one exchange beside that."""
    if not task.private:
        return ()
    return FieldPlan.of(task.wishes.privacy, clock).exchange(number)
