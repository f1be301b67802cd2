"""How wrong attacks on a finished run are, as plain figures for a study's table."""

import numpy as np

from epifalcon.epidemic.splits import without
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import true_claims
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.progress import Progress
from epifalcon.streams import Streams
from epifalcon.studies.audit_wishes import AuditWish
from epifalcon.studies.auditing import attacks_on
from epifalcon.studies.features import (
    Task,
    pseudo_traces,
    public_mobility,
    validation_people,
)
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.place_attacks import (
    Places,
    judged,
    learn_attacks,
    people_of,
)
from epifalcon.studies.recording import read_notes

RANDOM = "random"
"""The error of a blind guess."""
_PEOPLE = 500


def audit_errors(run: FinishedRun, progress: Progress) -> dict[str, float | None]:
    """The error of every attack on a recorded run of Falcon, by the attack's name.

    ``strongest`` is the lowest error of all attacks on places.

    Those of ``epifalcon audit``, without its canaries: whether noise is what the
    ledger says does not differ from row to row of a table.
    """
    notes = read_notes(run.place)
    found = attacks_on(run, notes, AuditWish().seed, progress)
    blind = found[0].random
    errors = [one.error for one in found if one.random == blind]
    strongest = min((one for one in errors if one is not None), default=None)
    named = {one.name: one.error for one in found}
    return named | {"strongest": strongest, RANDOM: blind}


def place_errors(run: FinishedRun, progress: Progress) -> dict[str, float | None]:
    """Errors of the attacks on the places that some people claim.

    On pseudo traces as the run's devices make them; at most 500 people, drawn
    by the run's seed. Nothing needs to have been recorded.
    """
    task = Task(run.traces, run.known, run.settings, run.seed)
    made = pseudo_traces(task, without(run.known, validation_people(task)), progress)
    rng = Streams(run.seed).numpy("attacked people")
    count = min(_PEOPLE, run.traces.people)
    people = np.sort(rng.choice(run.traces.people, count, replace=False))
    traces = people_of(run.traces, people)
    some = PseudoTraces(traces, np.ascontiguousarray(made.pseudo[:, :, people]))
    window = run.settings.model.window_slots
    claims = Candidates.of_pseudo(some, window)
    all_claims = np.bincount(Candidates.of_pseudo(made, window).key)
    places = Places(
        claims=claims,
        model=public_mobility(run.traces, run.settings.pseudo, run.seed, progress),
        claimed=all_claims[claims.key],
        **vars(learn_attacks(run.experiment, made.copies, run.seed, progress)),
    )
    true = true_claims(claims, traces)
    found = [judged(one, claims, true, run.seed) for one in places.tried()]
    return {one.name: one.error for one in found} | {RANDOM: found[0].random}
