"""Analyses of finished runs for a study's table: attack errors and graph sizes."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from epifalcon.evaluation.attacks.claims import Candidates, true_claims
from epifalcon.evaluation.attacks.upload_recorder import read_notes
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.preparing import hypergraph
from epifalcon.federation.training import Task, pseudo_traces_of, public_mobility
from epifalcon.hypergraph.contacts import contacts_of
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.progress import Progress
from epifalcon.streams import Streams
from epifalcon.studies.audit_wishes import AuditWish
from epifalcon.studies.auditing import attacks_on
from epifalcon.studies.place_attacks import (
    Places,
    judged,
    learn_attacks,
    people_of,
)
from epifalcon.studies.study import FollowUp

RANDOM = "random"
"""The error of a blind guess."""
_PEOPLE = 500
_MOST_MEETINGS = 60_000_000
"""Contact graphs with more meetings are not built."""


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
    made = pseudo_traces_of(task, progress)
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


def graph_sizes(run: FinishedRun, _progress: Progress) -> dict[str, float | None]:
    """Return the sizes of the run's hypergraph and contact graph.

    ``edges``: regions by window; ``incidences``: people at them; ``contacts``: pairs
    of people who ever met, None if too many to count; ``meetings``: pairs by slot.
    The contact graph grows with the square of people, the hypergraph with people
    times regions (paper, computational complexity).
    """
    incidence = hypergraph(run.traces, run.settings)
    contacts = contacts_of(run.traces)
    size = contacts.groups.size.astype(np.int64)
    pairs = size * (size - 1) // 2
    few = int(pairs.sum()) <= _MOST_MEETINGS
    return {
        "people": float(run.traces.people),
        "edges": float(len(incidence.edge_key)),
        "incidences": float(len(incidence.by_edge.index)),
        "contacts": float(contacts.matrix.nnz // 2) if few else None,
        "meetings": float((contacts.groups.edges * pairs).sum()),
    }


Analysis = Callable[[FinishedRun, Progress], Mapping[str, float | None]]
ANALYSES: Final[Mapping[FollowUp, Analysis]] = {
    "audit": audit_errors,
    "places": place_errors,
    "sizes": graph_sizes,
}
