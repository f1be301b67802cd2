"""Attack a finished run with what its server saw, and make its privacy card.

Attacks on Falcon read the recorded notes; devices of Falcon Field send again, since all
they send follows from their traces, tests and what they received. Attacks also know
what is public. The truth is used only to evaluate them.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import CorruptFileError, SettingsError
from epifalcon.evaluation.attacks import label_inference, uploads
from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.field_messages import (
    Overheard,
    from_counts,
    from_messages,
)
from epifalcon.evaluation.attacks.label_inference import Diagnosis
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import (
    Pass,
    Rehearsal,
    SetBelief,
    by_sets,
    combined,
    learn,
    learn_sets,
    recurrence,
    slots_of_set,
)
from epifalcon.evaluation.attacks.upload_recorder import Notes, read_notes
from epifalcon.evaluation.audit.field_canaries import audit_field_releases
from epifalcon.evaluation.audit.neighbours import OtherPromises
from epifalcon.evaluation.audit.releases import audit_releases
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.experiments.simulation import make_city
from epifalcon.federation.checkpoints import spent_figures
from epifalcon.federation.field.plan import PRESENCE, TESTS, opening_receipts
from epifalcon.federation.plan import PrivacyPlan, RunSeeds, releases_of
from epifalcon.federation.settings import ViewSettings
from epifalcon.federation.training import Task, finished_ledger, public_mobility
from epifalcon.methods.registry import entry
from epifalcon.mobility.markov import MobilityModel
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
    "consistency": ("consistency (EM)", "the row that comes back at all true places"),
    "counts": ("counts", "how many, or who, are at a place, of those who claim it"),
    "uploads and counts": ("uploads and counts", "consistency and counts together"),
}
_CERTAIN = Interval(1.0, 1.0, 1.0)
_FIELD_PEOPLE = 100
"""People whose messages of Falcon Field are attacked, at most."""
_LIVING, _REHEARSED = 2000, 500
"""People of the attacker's own city, at most, and how many of them it attacks."""
_LEAST_LOG = -50.0


def audit(
    run: FinishedRun,
    *,
    seed: int = 0,
    shadow_runs: int = 0,
    progress: Progress = silent,
) -> PrivacyCard:
    """Try every attack on ``run`` and compare what it found with what was claimed.

    ``seed`` is that of intervals and canaries. ``shadow_runs`` trainings on half of the
    tests, for membership and label inference, are stored in the method's folder.
    Raises ``DataError`` if nothing was recorded.
    """
    chosen = entry(run.method)
    if chosen.runs_in_sweeps:
        return _audit_field(run, seed, shadow_runs, progress)
    if not chosen.trains_in_rounds:
        raise SettingsError(
            f"{run.folder}: method={run.method!r} sends nothing from devices; audit "
            "a run of falcon, hgnn or falcon-field"
        )
    ledger, notes = finished_ledger(run.place), read_notes(run.place)
    settings, releases = run.settings, releases_of(run.traces.clock)
    copies = notes.terms.copies
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases, copies)
    other = None
    if plan.mode != "off":
        other = OtherPromises.of(
            ledger.releases, settings.model, plan.way.exchanged, ledger.budget.delta
        )
    # Canaries choose among the rounds that the run had.
    model = replace(settings.model, rounds=max(1, notes.rounds))
    unwatched = replace(settings, view=ViewSettings())
    spent = spent_figures(settings.privacy.mode, ledger)
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=len(notes.people),
        guarantee=Guarantee(spent=spent, rounds=notes.rounds, other=other),
        attacks=(
            *attacks_on(run, notes, seed, progress),
            *inferences(run, unwatched, shadow_runs, progress),
        ),
        releases=audit_releases(plan, model, seed, progress=progress),
        settings_toml=run.experiment.to_toml(),
    )


def attacks_on(
    run: FinishedRun, notes: Notes, seed: int, progress: Progress
) -> tuple[Attack, ...]:
    """Evaluate every attack that needs no further run: on places, then on tests."""
    claims = uploads.claims_of(notes, run.traces.clock)
    places = Places(
        claims=claims,
        model=public_mobility(run.traces, run.settings.pseudo, run.seed, progress),
        learnt=learn_attacks(run.experiment, notes.terms.copies, run.seed, progress),
        claimed=notes.claimed,
    )
    true = true_claims(claims, people_of(run.traces, notes.people))
    tried = [
        Tried(name, what, uploads.ATTACKS[name](notes), title=title)
        for name, (title, what) in _UPLOADS.items()
    ]
    tried += places.tried(notes)
    on_places = [judged(one, claims, true, seed) for one in tried]
    return (*on_places, *diagnoses(run, notes, places.likely()))


def diagnoses(run: FinishedRun, notes: Notes, likely: Floats) -> list[Attack]:
    """Evaluate every attack on who is positive and who was tested.

    ``likely`` are the chances of the claims to be true. People whose tests were held
    back for validation are left out: nothing of them entered the training.
    """
    found = [label_inference.from_gradients(notes)]
    if notes.terms.statuses:
        # A status input's rows and the gradients have likelihoods, which add up.
        rows = label_inference.from_statuses(notes, likely)
        found += [rows, label_inference.both(rows, found[0])]
    else:
        found.append(label_inference.from_rows(notes))
    task = Task(run.traces, run.known, run.settings, run.seed)
    held_back = np.isin(notes.people, task.division.held_back)
    return _rankings(found, run.known.status[notes.people], held_back)


def _rankings(
    found: list[Diagnosis], status: NDArray[np.int8], held_back: Mask | None = None
) -> list[Attack]:
    """Evaluate attacks on tests by how they rank people."""
    made = []
    for one in found:
        result = label_inference.judge(one, status, held_back)
        without = ""
        if people := result.held_back:
            who = "validation person" if people == 1 else "validation people"
            without = f"; without {people} {who}"
        positive = f"who is positive, in pairs with a negative{without}"
        tested = f"who was tested, in pairs with an untested{without}"
        made += [
            ranking(f"result from {one.name}", positive, result.positive),
            ranking(f"tested from {one.name}", tested, result.tested),
        ]
    return made


def _audit_field(
    run: FinishedRun, seed: int, shadow_runs: int, progress: Progress
) -> PrivacyCard:
    task, clock = run.experiment.field_task, run.traces.clock
    if task.private:
        if not run.ledger.exists():
            raise CorruptFileError(
                f"{run.ledger}: is missing; it was not written to the end, or changed: "
                "run it again"
            )
        ledger = Ledger.open(run.ledger)
    else:
        # What leaves in any run without privacy.
        ledger = Ledger(Budget())
        ledger.record(*opening_receipts(task, clock))
    noise = RunSeeds(run.seed).noise
    heard = Overheard.of(task, run.traces, run.known, run.seed, noise)
    # A sum over a site has nobody's message to attack; canaries show what it reveals.
    count = 0 if task.mode == "sums" else min(_FIELD_PEOPLE, run.traces.people)
    rng = Streams(seed).numpy("attacked people")
    chosen = rng.choice(run.traces.people, count, replace=False)
    people = np.sort(chosen).astype(np.int32)
    attacks: list[Attack] = []
    if count:
        known = ranking("places", "the places that a message is for", _CERTAIN)
        known = replace(known, random=0.0)
        found = [from_messages(heard, people, progress), from_counts(heard, people)]
        attacks = [known, *_rankings(found, heard.known.status[people])]
    return PrivacyCard(
        run=str(run.folder),
        method=run.method,
        seed=run.seed,
        people=count,
        guarantee=Guarantee(
            spent=spent_figures(task.mode, ledger),
            rounds=len(heard.told),
            trained=False,
            other=_other_promises(ledger) if task.private else None,
        ),
        attacks=(*attacks, *inferences(run, task.wishes, shadow_runs, progress)),
        releases=audit_field_releases(heard, seed, progress=progress),
        settings_toml=run.experiment.to_toml(),
    )


def _other_promises(ledger: Ledger) -> OtherPromises:
    """Return epsilons for neighbours whose message is replaced: two clips apart.

    A test is in everything that is sent but the count of who was where; in the count
    of tests no two people are further apart than one is from none.
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


@dataclass(frozen=True, eq=False)
class Tried:
    """The scores that an attack gives to all claims."""

    name: str
    what: str
    """What it uses, in words."""
    score: Floats
    """(claims,)"""
    then: Floats | None = None
    """(claims,) what decides between equal scores."""
    title: str = ""
    """Shown in tables; the name if empty."""


@dataclass(frozen=True)
class Learnt:
    """What an attacker has learnt in cities of its own."""

    passes: tuple[Pass, ...]
    sets: SetBelief = field(default_factory=SetBelief)
    """The same for the attack by sets."""
    by_sets: bool = False
    """Whether the attack by sets was less wrong than that by moves and recurrence,
    in another city than both had been learnt in."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Places:
    """The places that some people claim, and what an attacker knows about them."""

    claims: Candidates
    model: MobilityModel
    learnt: Learnt
    claimed: Counts | None = None
    """(claims,) how many people claim the place; None if that is not counted."""

    @cached_property
    def profile(self) -> Profile:
        """How people move, laid out for attacks."""
        return Profile.of(self.model)

    def likely(self, notes: Notes | None = None) -> Floats:
        """Return the chances of the claims by the attack that was best."""
        if self.learnt.by_sets:
            slots = slots_of_set(self.claims)
            hints = None if notes is None else uploads.by_sets(notes, slots)
            return self._by_sets(hints)
        hints = None if notes is None else uploads.combined(notes)
        return combined(self.claims, self.profile, self.learnt.passes, hints)

    def _by_sets(self, hints: Floats | None = None) -> Floats:
        return by_sets(self.claims, self.profile, self.learnt.sets, hints, self.claimed)

    def tried(self, notes: Notes | None = None) -> list[Tried]:
        """Return every attack on places; with ``notes``, all together too."""
        claims, profile = self.claims, self.profile
        visits = profile.log_visits(claims)
        moves = forward_backward(claims, profile)
        often = recurrence(claims).same_hour.astype(float)
        both = combined(claims, profile, self.learnt.passes)
        at_this_hour = "the place claimed most at this hour of other days"
        weighed = "both, weighed on a city of the attacker's own"
        equal_sets = "moves, slots with equal claims having equal truths"
        found = [
            Tried("moves", "the population's mobility (the paper's)", moves),
            Tried("recurrence", at_this_hour, often, visits),
            Tried("moves and recurrence", weighed, both),
            Tried("moves by sets", equal_sets, self._by_sets()),
        ]
        if self.claimed is not None:
            usual = np.maximum(visits, _LEAST_LOG)
            score = usual - np.log(np.maximum(self.claimed, 1))
            what = "how many usually are at a place, of how many who claim it"
            found.insert(0, Tried("claimants", what, score))
        if notes is not None:
            by_places = (
                "moves by sets" if self.learnt.by_sets else "moves and recurrence"
            )
            what, title = f"uploads, counts, {by_places}", "everything together"
            score = self.likely(notes)
            found.append(Tried("everything", what, score, title=title))
        return found


def learn_attacks(
    experiment: Experiment, copies: int, seed: int, progress: Progress = silent
) -> Learnt:
    """Learn the attacks in one city of the attacker's own, and choose in a second."""
    streams = Streams(seed)
    own = rehearse(experiment, copies, seed, progress)
    passes, sets = learn(own), learn_sets(own, streams.numpy("rehearsed hints"))
    other = rehearse(experiment, copies, streams.seed_for("second city"), progress)
    claims, profile = other.candidates, Profile.of(other.model)
    truth = true_claims(claims, other.traces)
    errors = [
        localisation_error(name_best(claims, likely), claims, truth).error
        for likely in (
            combined(claims, profile, passes),
            by_sets(claims, profile, sets, claimed=other.claimed),
        )
    ]
    return Learnt(passes, sets, errors[1] < errors[0])


def rehearse(
    experiment: Experiment, copies: int, seed: int, progress: Progress = silent
) -> Rehearsal:
    """Make a city of the attacker's own, with pseudo traces made as the run's are.

    As large as the run's up to 2,000 people, since how distinct a trace is depends on
    how many others there are; 500 of them are attacked. The city has no cases.
    """
    streams = Streams(seed)
    people = min(experiment.city.people, _LIVING)
    own = replace(experiment, city=replace(experiment.city, people=people))
    traces = make_city(own, streams.seed_for("rehearsal"), progress)
    wanted = replace(experiment.pseudo, pseudo_copies=copies)
    model = public_mobility(traces, wanted, streams.seed_for("rehearsal"), progress)
    cases = np.zeros((len(traces.regions), traces.clock.days))
    rng = streams.numpy("rehearsal")
    made = generate(traces, model, cases, wanted, rng, progress)
    everybody = Candidates.of_pseudo(made, experiment.model.window_slots)
    some = min(people, _REHEARSED)
    attacked = everybody.of_people(some)
    claimed = np.bincount(everybody.key)[attacked.key]
    some_traces = people_of(traces, np.arange(some))
    return Rehearsal(attacked, some_traces, model, claimed)


def people_of(traces: Traces, people: NDArray[np.int64]) -> Traces:
    """Return the traces of some people alone."""
    return Traces(traces.by_slot[:, people], traces.clock, traces.regions)


def judged(tried: Tried, claims: Candidates, true: Mask, seed: int) -> Attack:
    """Evaluate an attack; ``true`` (claims,) says which claims are."""
    guess = name_best(claims, tried.score, tried.then)
    verdict = localisation_error(guess, claims, true)
    found = verdict.interval(Streams(seed).numpy(f"audit {tried.name}"))
    return Attack(
        name=tried.name,
        title=tried.title or tried.name,
        what=tried.what,
        error=found.estimate,
        low=found.low,
        high=found.high,
        random=verdict.random,
    )
