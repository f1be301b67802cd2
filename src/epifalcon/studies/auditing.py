"""Attack a finished run with what its server saw, and make its privacy card.

Attacks read the recorded notes and public knowledge: the protocol's constants and
the mobility model, which everybody has. The truth, traces and tests, is opened
only to judge them.
"""

from dataclasses import replace

from epifalcon.errors import SettingsError
from epifalcon.evaluation.attacks import uploads
from epifalcon.evaluation.attacks.claims import true_claims
from epifalcon.evaluation.attacks.upload_notes import Notes
from epifalcon.evaluation.attacks.upload_recorder import read_notes
from epifalcon.evaluation.audit.neighbours import OtherPromises
from epifalcon.evaluation.audit.releases import AuditRow, audit_releases
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.checkpoints import spent_figures
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PredictionSettings, ViewSettings
from epifalcon.federation.training import finished_ledger, public_mobility
from epifalcon.methods.registry import entry
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack, Guarantee, PrivacyCard
from epifalcon.studies.audit_wishes import AuditWish
from epifalcon.studies.auditing_field import audit_field
from epifalcon.studies.diagnosing import diagnoses
from epifalcon.studies.place_attacks import (
    Places,
    Tried,
    judged,
    learn_attacks,
    people_of,
)
from epifalcon.studies.shadow_runs import inferences

_UPLOADS = {
    "norm": ("upload norm, one round", "the longest upload of a slot (the paper's)"),
    "energy": ("upload energy", "squared norms over all rounds"),
    "consistency": ("consistency (EM)", "the row that comes back at all true places"),
    "counts": ("counts", "how many, or who, are at a place, of those who claim it"),
    "uploads and counts": ("uploads and counts", "consistency and counts together"),
}


def audit(
    run: FinishedRun, wish: AuditWish | None = None, progress: Progress = silent
) -> PrivacyCard:
    """Try every attack on ``run`` and put what was found beside what was claimed.

    Raises ``DataError`` where nothing was recorded, ``CorruptFileError`` where the
    ledger does not hold together. Nothing is written.
    """
    wish = wish or AuditWish()
    if run.method == FIELD:
        return audit_field(run, wish, progress)
    if not entry(run.method).trains_in_rounds:
        raise SettingsError(
            f"{run.folder}: method={run.method!r} sends nothing from devices; audit "
            "a run of falcon, hgnn or falcon-field"
        )
    ledger = finished_ledger(run.place)
    notes = read_notes(run.place)
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=len(notes.people),
        guarantee=Guarantee(
            spent=spent_figures(run.settings.privacy.mode, ledger),
            rounds=notes.rounds,
            other=_other_promises(run, notes, ledger),
        ),
        attacks=(
            *attacks_on(run, notes, wish.seed, progress),
            *inferences(run, _unwatched(run), wish.shadow_runs, progress),
        ),
        releases=_canaries(run, notes, wish, progress),
        settings_toml=run.experiment.to_toml(),
    )


def attacks_on(
    run: FinishedRun, notes: Notes, seed: int, progress: Progress
) -> tuple[Attack, ...]:
    """Every attack that needs no further run, judged: on places, then on diagnoses.

    ``seed`` is that of the intervals.
    """
    claims = uploads.claims_of(notes, run.traces.clock)
    learnt = learn_attacks(run.experiment, notes.terms.copies, run.seed, progress)
    places = Places(
        claims=claims,
        model=public_mobility(run.traces, run.settings.pseudo, run.seed, progress),
        claimed=notes.claimed,
        **vars(learnt),
    )
    true = true_claims(claims, people_of(run.traces, notes.people))
    tried = [*_upload_scores(notes), *places.tried(notes)]
    on_places = [judged(one, claims, true, seed) for one in tried]
    return (*on_places, *diagnoses(run, notes, places.likely()))


def _unwatched(run: FinishedRun) -> PredictionSettings:
    return replace(run.settings, view=ViewSettings())


def _upload_scores(notes: Notes) -> list[Tried]:
    return [
        Tried(name, title, what, uploads.ATTACKS[name](notes))
        for name, (title, what) in _UPLOADS.items()
    ]


def _canaries(
    run: FinishedRun, notes: Notes, wish: AuditWish, progress: Progress
) -> tuple[AuditRow, ...]:
    """Rounds are chosen among those that the run had."""
    model = replace(run.settings.model, rounds=max(1, notes.rounds))
    plan = _plan(run, notes)
    return audit_releases(plan, model, wish.seed, wish.canaries, progress)


def _other_promises(
    run: FinishedRun, notes: Notes, ledger: Ledger
) -> OtherPromises | None:
    plan = _plan(run, notes)
    if plan.mode == "off":
        return None
    return OtherPromises.of(
        ledger.releases, run.settings.model, plan.way.exchanged, ledger.budget.delta
    )


def _plan(run: FinishedRun, notes: Notes) -> PrivacyPlan:
    settings, releases = run.settings, releases_of(run.traces.clock)
    return PrivacyPlan.of(
        settings.privacy, settings.model, releases, notes.terms.copies
    )
