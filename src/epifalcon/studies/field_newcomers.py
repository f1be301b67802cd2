"""Newcomers in a run of Falcon Field: told from its field alone, without exchange."""

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
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
    now = people.now(told)
    risks = Risks(
        people.risk,
        newcomers.known.status,
        newcomers.traces.names,
        now=now.aside,
        now_tested=now.tested,
    )
    return Scored(run.method, risks, None)


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
