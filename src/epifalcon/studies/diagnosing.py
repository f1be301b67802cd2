"""The attacks on who was tested and with which result, judged: for audits."""

import numpy as np

from epifalcon.evaluation.attacks import label_inference
from epifalcon.evaluation.attacks.label_inference import from_statuses
from epifalcon.evaluation.attacks.upload_notes import Notes
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.training import Task, validation_people
from epifalcon.reports.privacy_card import Attack
from epifalcon.types import Floats

RESULT = "who is positive, in pairs with a negative"
TESTED = "who was tested, in pairs with an untested"


def tried(
    notes: Notes, likely: Floats | None = None
) -> list[label_inference.Diagnosis]:
    """Every attack on tests; ``likely`` are the chances of the claims to be true.

    A status input's rows and the gradients have likelihoods, which add up.
    """
    gradients = label_inference.from_gradients(notes)
    if not notes.terms.statuses:
        return [gradients, label_inference.from_rows(notes)]
    rows = from_statuses(notes, likely)
    return [gradients, rows, label_inference.both(rows, gradients)]


def diagnoses(run: FinishedRun, notes: Notes, likely: Floats) -> list[Attack]:
    """Who is positive and who was tested, by every attack.

    Judged apart are people whose tests were held back for validation: nothing of
    them entered the training, so that there is nothing to find.
    """
    task = Task(run.traces, run.known, run.settings, run.seed)
    held_back = np.isin(notes.people, validation_people(task))
    status = run.known.status[notes.people]
    made = []
    for told in tried(notes, likely):
        judged = label_inference.judge(told, status, held_back)
        apart = _apart(judged.held_back)
        made += [
            ranking(f"result from {told.name}", RESULT + apart, judged.positive),
            ranking(f"tested from {told.name}", TESTED + apart, judged.tested),
        ]
    return made


def ranking(name: str, what: str, auc: Interval) -> Attack:
    """An attack that ranks people is wrong in a share of the pairs."""

    def wrong(value: float | None) -> float | None:
        return None if value is None else float(np.clip(1 - value, 0, 1))

    return Attack(
        name=name,
        title=name,
        what=what,
        error=wrong(auc.estimate),
        low=wrong(auc.high),
        high=wrong(auc.low),
        random=0.5,
    )


def _apart(people: int) -> str:
    if not people:
        return ""
    who = "validation person" if people == 1 else "validation people"
    return f"; without {people} {who}"
