"""Attack a finished run with what its server saw, and create its privacy card.

Attacks on Falcon read the recorded uploads. Messages of Falcon Field are recomputed:
they are a function of traces, tests and received messages. Attacks also use public
data. The true places and test results serve only to evaluate the attacks.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.attacks import label_inference, recurrence, upload_attacks
from epifalcon.attacks.audit.field_canaries import audit_field_releases
from epifalcon.attacks.audit.neighbouring import OtherRelations
from epifalcon.attacks.audit.releases import audit_releases
from epifalcon.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.attacks.field_messages import RecordedRun, from_counts, from_messages
from epifalcon.attacks.label_inference import LabelScores
from epifalcon.attacks.localisation import forward_backward, log_visits
from epifalcon.attacks.upload_recorder import (
    UploadStatistics,
    draw_sample,
    read_statistics,
)
from epifalcon.errors import CorruptFileError, SettingsError
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.experiments.simulation import make_city
from epifalcon.federation.checkpoints import privacy_spent
from epifalcon.federation.field.privacy_plan import PRESENCE, TESTS, opening_receipts
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds, releases_of
from epifalcon.federation.settings import ViewSettings
from epifalcon.federation.training import TrainingTask, finished_ledger, public_mobility
from epifalcon.methods.registry import entry
from epifalcon.mobility.mobility_model import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack, Guarantee, PrivacyCard
from epifalcon.streams import Streams
from epifalcon.studies.shadow_runs import inferences, ranking
from epifalcon.types import Counts, Floats, Mask

_UPLOADS = {
    "norm": ("upload norm, one round", "the longest upload of a slot (the paper's)"),
    "energy": ("upload energy", "squared norms over all rounds"),
    "consistency": ("consistency (EM)", "the row repeated at all true places"),
    "counts": ("counts", "counts at a place, compared with the people claiming it"),
    "uploads and counts": ("uploads and counts", "consistency and counts together"),
}
_CERTAIN = Interval(1.0, 1.0, 1.0)
_FIELD_PEOPLE = 100
"""Maximum number of people whose messages of Falcon Field are attacked."""
_LIVING, _REHEARSED = 2000, 500
"""Maximum numbers of people, and of attacked people, in the attacker's own city."""
_LEAST_LOG = -50.0


def audit(
    run: FinishedRun,
    *,
    seed: int = 0,
    shadow_runs: int = 0,
    progress: Progress = silent,
) -> PrivacyCard:
    """Evaluate every attack on ``run`` and compare it with the stated guarantee.

    ``seed`` is the seed of intervals and canaries. ``shadow_runs`` trainings on half of
    the tests, for membership and label inference, are stored in the method's folder.
    Raises ``DataError`` if nothing was recorded.
    """
    chosen = entry(run.method)
    if chosen.runs_in_sweeps:
        return _audit_field(run, seed, shadow_runs, progress)
    if not chosen.trains_in_rounds:
        raise SettingsError(
            f"{run.folder}: method={run.method!r} has no uploads; audit a run of "
            "falcon, hgnn or falcon-field"
        )
    ledger, statistics = finished_ledger(run.place), read_statistics(run.place)
    settings, releases = run.settings, releases_of(run.traces.clock)
    copies = statistics.terms.copies
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases, copies)
    other, delta = None, ledger.budget.delta
    if plan.mode != "off":
        exchanged = plan.exchange_rules.exchanged
        other = OtherRelations.of(ledger.releases, settings.model, exchanged, delta)
    # Canaries choose among the rounds that the run really had.
    model = replace(settings.model, rounds=max(1, statistics.rounds))
    unwatched = replace(settings, view=ViewSettings())
    spent = privacy_spent(settings.privacy.mode, ledger)
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=len(statistics.people),
        guarantee=Guarantee(
            spent=spent,
            rounds=statistics.rounds,
            other=other,
            insecure_seed=plan.is_private and run.insecure_seed,
        ),
        attacks=(
            *attacks_on(run, statistics, seed, progress),
            *inferences(run, unwatched, shadow_runs, progress),
        ),
        releases=audit_releases(plan, model, seed, progress=progress),
        settings_toml=run.experiment.to_toml(),
    )


def attacks_on(
    run: FinishedRun, statistics: UploadStatistics, seed: int, progress: Progress
) -> tuple[Attack, ...]:
    """Evaluate all attacks without shadow runs: first on places, then on tests."""
    claims = upload_attacks.claims_of(statistics, run.traces.clock)
    copies = statistics.terms.copies
    places = ClaimedPlaces(
        claims=claims,
        model=public_mobility(run.traces, run.settings.pseudo, run.seed, progress),
        parameters=learn_attacks(run.experiment, copies, run.seed, progress),
        claimed=statistics.claimed,
    )
    true = true_claims(claims, people_of(run.traces, statistics.people))
    on_places = places.attacks(true, seed, statistics)
    return (*on_places, *label_attacks(run, statistics, places.likely()))


def label_attacks(
    run: FinishedRun, statistics: UploadStatistics, likely: Floats
) -> list[Attack]:
    """Evaluate all attacks that infer who is positive and who was tested.

    ``likely`` (claims,) are the probabilities that claims are true. People held back
    for validation are excluded: their tests did not enter the training.
    """
    guesses = [label_inference.from_gradients(statistics)]
    if statistics.terms.statuses:
        # With status input, rows and gradients give log-likelihoods, which are added.
        rows = label_inference.from_statuses(statistics, likely)
        guesses += [rows, label_inference.both(rows, guesses[0])]
    else:
        guesses.append(label_inference.from_rows(statistics))
    task = TrainingTask(run.traces, run.known, run.settings, run.seed)
    held_back = np.isin(statistics.people, task.split.held_back)
    return _rankings(guesses, run.known.status[statistics.people], held_back)


def _rankings(
    guesses: list[LabelScores], status: NDArray[np.int8], held_back: Mask | None = None
) -> list[Attack]:
    """Evaluate attacks on tests by how they rank people."""
    attacks = []
    for guess in guesses:
        result = label_inference.evaluate(guess, status, held_back)
        without = ""
        if people := result.held_back:
            who = "validation person" if people == 1 else "validation people"
            without = f"; without {people} {who}"
        positive = f"positive or negative, in pairs{without}"
        tested = f"tested or not tested, in pairs{without}"
        attacks += [
            ranking(f"result from {guess.name}", positive, result.positive),
            ranking(f"tested from {guess.name}", tested, result.tested),
        ]
    return attacks


def _audit_field(
    run: FinishedRun, seed: int, shadow_runs: int, progress: Progress
) -> PrivacyCard:
    task, clock = run.experiment.field_task, run.traces.clock
    if task.private:
        if not run.ledger.exists():
            raise CorruptFileError(
                f"{run.ledger}: is missing; the run was interrupted or changed: run it "
                "again"
            )
        ledger = Ledger.open(run.ledger)
    else:
        # The releases of any run without privacy.
        ledger = Ledger(Budget())
        ledger.record(*opening_receipts(task, clock))
    noise = RunSeeds(run.seed, run.secret).noise
    sent = RecordedRun.of(task, run.traces, run.known, run.seed, noise)
    # Sums contain no single person's message to attack; they are audited by canaries.
    most = 0 if task.sends_sums else _FIELD_PEOPLE
    drawn = draw_sample(run.traces.people, most, seed, "attacked people")
    people = drawn.astype(np.int32)
    attacks: list[Attack] = []
    if most:
        known = ranking("places", "the places of a message", _CERTAIN)
        known = replace(known, random=0.0)
        guesses = [from_messages(sent, people, progress), from_counts(sent, people)]
        attacks = [known, *_rankings(guesses, sent.known.status[people])]
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=len(people),
        guarantee=Guarantee(
            spent=privacy_spent(task.mode, ledger),
            rounds=len(sent.broadcasts),
            trained=False,
            other=_other_promises(ledger) if task.private else None,
            insecure_seed=task.private and run.insecure_seed,
        ),
        attacks=(*attacks, *inferences(run, task.settings, shadow_runs, progress)),
        releases=audit_field_releases(sent, seed, progress=progress),
        settings_toml=run.experiment.to_toml(),
    )


def _other_promises(ledger: Ledger) -> OtherRelations:
    """Return epsilons for neighbours of whom one message is replaced: two clips apart.

    A test result affects every release except the presence counts. In the count of
    tests, replacing a person changes no more than removing one: one clip.
    """
    test = replaced = 0.0
    for row in ledger.releases:
        if not isinstance(row, GaussianRelease):
            continue
        channel = row.terms.channel
        clips = 1.0 if channel == TESTS else 2.0
        squared = row.terms.releases.person * (clips * row.clip / row.sigma) ** 2
        replaced += squared
        test += 0.0 if channel == PRESENCE else squared
    delta = ledger.budget.delta
    return OtherRelations(
        test=epsilon_of(math.sqrt(test), delta),
        replace=epsilon_of(math.sqrt(replaced), delta),
    )


@dataclass(frozen=True)
class AttackParameters:
    """Attack parameters learnt in simulated cities of the attacker."""

    passes: tuple[recurrence.EvidenceWeights, ...]
    sets: recurrence.RepeatReliability
    """Parameters of the attack by sets."""
    by_sets: bool
    """True if the attack by sets had a lower error than the attack by moves and
    recurrence, in a city that neither was learnt in."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedPlaces:
    """Claimed places of some people, and the data that an attacker has about them."""

    claims: Candidates
    model: MobilityModel
    parameters: AttackParameters
    claimed: Counts
    """(claims,) number of people who claim the place."""

    def likely(self, statistics: UploadStatistics | None = None) -> Floats:
        """Return (claims,) probabilities of being true, by the strongest attack."""
        slots, hints = None, None
        if self.parameters.by_sets:
            slots = recurrence.slots_of_set(self.claims)
        if statistics is not None:
            hints = upload_attacks.combined(statistics, slots)
        if self.parameters.by_sets:
            return self._by_sets(hints)
        passes = self.parameters.passes
        return recurrence.combined(self.claims, self.model, passes, hints)

    def _by_sets(self, hints: Floats | None = None) -> Floats:
        sets = self.parameters.sets
        return recurrence.by_sets(self.claims, self.model, sets, self.claimed, hints)

    def attacks(
        self, true: Mask, seed: int, statistics: UploadStatistics | None = None
    ) -> list[Attack]:
        """Evaluate all attacks on places; ``true`` (claims,) marks the true claims.

        With ``statistics``, also those on uploads and the joint attack. ``seed`` is the
        seed of intervals.
        """
        claims, model = self.claims, self.model
        visits = log_visits(claims, model)

        def attack(
            name: str,
            what: str,
            score: Floats,
            then: Floats | None = None,
            title: str = "",
        ) -> Attack:
            verdict = localisation_error(name_best(claims, score, then), claims, true)
            interval = verdict.interval(Streams(seed).numpy(f"audit {name}"))
            return Attack(
                name=name,
                title=title or name,
                what=what,
                error=interval.estimate,
                low=interval.low,
                high=interval.high,
                random=verdict.random,
            )

        attacks = [
            attack(name, what, upload_attacks.ATTACKS[name](statistics), title=title)
            for name, (title, what) in _UPLOADS.items()
            if statistics is not None
        ]
        what = "usual visits of a place, compared with the people claiming it"
        usual = np.maximum(visits, _LEAST_LOG)
        score = usual - np.log(np.maximum(self.claimed, 1))
        attacks.append(attack("claimants", what, score))
        what = "the population's mobility (the paper's)"
        attacks.append(attack("moves", what, forward_backward(claims, model)))
        often = recurrence.recurrence(claims).same_hour.astype(float)
        what = "the place claimed most often at this hour of other days"
        attacks.append(attack("recurrence", what, often, visits))
        what = "both, weighted by a simulated city of the attacker"
        both = recurrence.combined(claims, model, self.parameters.passes)
        attacks.append(attack("moves and recurrence", what, both))
        what = "moves, with equal true places in slots with equal claims"
        attacks.append(attack("moves by sets", what, self._by_sets()))
        if statistics is not None:
            sets = self.parameters.by_sets
            best = "moves by sets" if sets else "moves and recurrence"
            what, title = f"uploads, counts, {best}", "everything together"
            likely = self.likely(statistics)
            attacks.append(attack("everything", what, likely, title=title))
        return attacks


def learn_attacks(
    experiment: Experiment, copies: int, seed: int, progress: Progress = silent
) -> AttackParameters:
    """Learn the attacks in one simulated city and select the better one in a second."""
    streams = Streams(seed)
    own = rehearse(experiment, copies, seed, progress)
    passes = recurrence.learn(own)
    sets = recurrence.learn_sets(own, streams.numpy("rehearsed hints"))
    other = rehearse(experiment, copies, streams.seed_for("second city"), progress)
    claims, model = other.candidates, other.model
    by_moves = recurrence.combined(claims, model, passes)
    one_per_set = recurrence.by_sets(claims, model, sets, other.claimed)
    better = other.error(one_per_set) < other.error(by_moves)
    return AttackParameters(passes, sets, better)


def rehearse(
    experiment: Experiment, copies: int, seed: int, progress: Progress = silent
) -> recurrence.ShadowCity:
    """Simulate a city for the attacker, with pseudo traces as in the run.

    It has as many people as the run's city, at most 2,000, since the distinctness of
    a trace depends on the population size; 500 people are attacked. It has no cases.
    """
    streams = Streams(seed)
    people = min(experiment.city.people, _LIVING)
    own = replace(experiment, city=replace(experiment.city, people=people))
    traces = make_city(own, streams.seed_for("rehearsal"), progress)
    pseudo = replace(experiment.pseudo, pseudo_copies=copies)
    model = public_mobility(traces, pseudo, streams.seed_for("rehearsal"), progress)
    cases = np.zeros((len(traces.regions), traces.clock.days))
    rng = streams.numpy("rehearsal")
    pseudo_traces = generate(traces, model, cases, pseudo, rng, progress)
    everybody = Candidates.of_pseudo(pseudo_traces, experiment.model.window_slots)
    some = min(people, _REHEARSED)
    attacked = everybody.of_people(some)
    claimed = np.bincount(everybody.key)[attacked.key]
    some_traces = people_of(traces, np.arange(some))
    return recurrence.ShadowCity(attacked, some_traces, model, claimed)


def people_of(traces: Traces, people: NDArray[np.int64]) -> Traces:
    """Return the traces restricted to ``people``."""
    return Traces(traces.by_slot[:, people], traces.clock, traces.regions)
