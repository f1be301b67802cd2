"""Newcomers in a run of Falcon Field: told from its field alone, without exchange."""

import numpy as np

from epifalcon import store
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.models.field.calibrating import AS_IT_IS, Bend, still
from epifalcon.studies.explaining import load_field
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.method_folder import PREDICTION
from epifalcon.studies.newcomers import Newcomers
from epifalcon.studies.risks import Risks, Scored


def score_at_home(run: FinishedRun, newcomers: Newcomers) -> Scored:
    """Everybody's risk of the newcomers, each as the only one who is new.

    Nothing leaves: it is made from what the places of the run told everybody, the
    newcomer's trace and, for the risk now with tests, its own tests. The newcomer
    was in no sum, and makes each place fuller by one.
    """
    field = load_field(run.place / PREDICTION)
    _require_days(newcomers.traces.clock, run.traces.clock)
    people = field.people(newcomers.traces, newcomers.known)
    told = field.told_to_newcomers()
    people.listen(told)
    now, tests = people.now(told), newcomers.known
    risk = _bend_of(run)(people.risk)
    now_told = still(now.aside, people.risk, risk)
    risks = Risks(
        risk,
        tests.status,
        newcomers.traces.names,
        now=now_told,
        now_tested=np.where(tests.tested, now.tested, now_told),
    )
    return Scored(run.method, risks, None)


def _bend_of(run: FinishedRun) -> Bend:
    """How the run's own people were told; a correction is not for newcomers."""
    told = store.read(run.place / PREDICTION, PREDICTION).meta["told"]
    parts = ("slope", "offset", "middle")
    return Bend(*(told[name] for name in parts)) if "slope" in told else AS_IT_IS


def _require_days(clock: Clock, of_run: Clock) -> None:
    """Raise ``DataError`` where these are not the days that the field tells of."""
    if clock.days != of_run.days:
        raise DataError(
            f"traces of {clock.days} days, but the field tells of {of_run.days}: give "
            "the same days; later ones come with epifalcon update"
        )
    if None not in (clock.start, of_run.start) and clock.start != of_run.start:
        raise DataError(
            f"traces from {clock.start} on, but the field tells of {of_run.days} days "
            f"from {of_run.start} on: give the same days"
        )
