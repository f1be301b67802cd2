"""Attack a finished run of Falcon Field with what its server sees; its privacy card.

Nothing need be recorded: what a device sends follows from its trace, its tests and
what it was told, so that the audit lets devices send again. The truth makes those
messages and judges guesses; attacks read the messages and public knowledge alone.
"""

import math

import numpy as np

from epifalcon.errors import CorruptFileError
from epifalcon.evaluation.attacks import label_inference
from epifalcon.evaluation.attacks.field_messages import (
    Overheard,
    from_counts,
    from_messages,
)
from epifalcon.evaluation.audit.field_canaries import audit_field_releases
from epifalcon.evaluation.audit.neighbours import OtherPromises
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.checkpoints import spent_figures
from epifalcon.federation.field.plan import PRESENCE, TESTS, opening_receipts
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.plan import RunSeeds
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress
from epifalcon.reports.privacy_card import Attack, Guarantee, PrivacyCard
from epifalcon.streams import Streams
from epifalcon.studies.audit_wishes import AuditWish
from epifalcon.studies.diagnosing import RESULT, TESTED, ranking
from epifalcon.studies.shadow_runs import inferences
from epifalcon.types import PersonIds

_NO_LEDGER = "it was not written to the end, or changed: run it again"


def audit_field(run: FinishedRun, wish: AuditWish, progress: Progress) -> PrivacyCard:
    """Try every attack on ``run`` and put what was found beside what was claimed."""
    experiment = run.experiment
    task = FieldTask.of(
        experiment.settings_of(run.method),
        experiment.believed_pathogen,
        experiment.believed_rule,
        experiment.labels.test_errors,
    )
    ledger = _ledger(run, task)
    noise = RunSeeds(run.seed).noise
    heard = Overheard.of(task, run.traces, run.known, run.seed, noise)
    people = _drawn(run, 0 if task.mode == "sums" else wish.people, wish.seed)
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=len(people),
        guarantee=Guarantee(
            spent=spent_figures(task.mode, ledger),
            rounds=len(heard.told),
            trained=False,
            other=_other_promises(ledger) if task.private else None,
        ),
        attacks=(
            *_attacks(heard, people, progress),
            *inferences(run, task.wishes, wish.shadow_runs, progress),
        ),
        releases=audit_field_releases(heard, wish.seed, wish.field_canaries, progress),
        settings_toml=experiment.to_toml(),
    )


def _ledger(run: FinishedRun, task: FieldTask) -> Ledger:
    """The run's own; of one that promises nothing, what leaves in any such run."""
    clock = run.traces.clock
    if not task.private:
        ledger = Ledger(Budget())
        ledger.record(*opening_receipts(task, clock))
        return ledger
    if not run.ledger.exists():
        raise CorruptFileError(f"{run.ledger}: is missing; {_NO_LEDGER}")
    return Ledger.open(run.ledger)


def _drawn(run: FinishedRun, people: int, seed: int) -> PersonIds:
    rng = Streams(seed).numpy("attacked people")
    count = min(people, run.traces.people)
    chosen = rng.choice(run.traces.people, count, replace=False)
    return np.sort(chosen).astype(np.int32)


def _attacks(heard: Overheard, people: PersonIds, progress: Progress) -> list[Attack]:
    """Places, results and who was tested, where people's messages leave apart.

    Where the server sees sums over a site alone there is no message of anybody to
    attack; what a sum gives away the canaries show.
    """
    if not len(people):
        return []
    places = Attack(
        name="places",
        title="places",
        what="the places that a message is for",
        error=0.0,
        low=0.0,
        high=0.0,
        random=0.0,
    )
    made = [places]
    status = heard.known.status[people]
    for told in (from_messages(heard, people, progress), from_counts(heard, people)):
        judged = label_inference.judge(told, status)
        made += [
            ranking(f"result from {told.name}", RESULT, judged.positive),
            ranking(f"tested from {told.name}", TESTED, judged.tested),
        ]
    return made


def _other_promises(ledger: Ledger) -> OtherPromises:
    """For neighbours whose message is any other one, not none: two clips apart.

    A test is in all that is sent but the count of who was where; in the count of
    tests no two people are further apart than one is from none.
    """
    test = replaced = 0.0
    for one in ledger.releases:
        if not isinstance(one, GaussianRelease):
            continue
        channel = one.terms.channel
        apart = 1.0 if channel == TESTS else 2.0
        squared = one.terms.releases.person * (apart * one.clip / one.sigma) ** 2
        replaced += squared
        test += 0.0 if channel == PRESENCE else squared
    delta = ledger.budget.delta
    return OtherPromises(
        test=epsilon_of(math.sqrt(test), delta),
        replace=epsilon_of(math.sqrt(replaced), delta),
    )
