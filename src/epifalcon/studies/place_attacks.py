"""Attacks on claimed places, put together and evaluated: for audits and studies.

The attacker knows what is public: the mobility model, and how pseudo traces are
made, which it rehearses on a city of its own.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from epifalcon.evaluation.attacks import uploads
from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import (
    Pass,
    Rehearsal,
    combined,
    learn,
    recurrence,
)
from epifalcon.evaluation.attacks.repeated_claims import (
    SetBelief,
    by_sets,
    learn_sets,
    slots_of_set,
)
from epifalcon.evaluation.attacks.upload_recorder import Notes
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city
from epifalcon.federation.training import public_mobility
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack
from epifalcon.streams import Streams
from epifalcon.types import Counts, Floats, Mask

_LIVING, _REHEARSED = 2000, 500
"""People of the attacker's own city, at most, and how many of them it attacks."""
_LEAST_LOG = -50.0


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
        """Return the chances of the claims by the attack that was best: (claims,).

        With ``notes``, by all that the server saw; without, by places alone.
        """
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
    claimed = claimants(everybody)[: attacked.claims]
    some_traces = people_of(traces, np.arange(some))
    return Rehearsal(attacked, some_traces, model, claimed)


def claimants(everybody: Candidates) -> Counts:
    """Count the people who claim the place of each claim: (claims,)."""
    key = everybody.key
    return np.asarray(np.bincount(key)[key])


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


def ranking(name: str, what: str, auc: Interval) -> Attack:
    """Return an attack that ranks people: its error is the share of wrong pairs."""

    def wrong(value: float | None) -> float | None:
        return None if value is None else float(np.clip(1 - value, 0, 1))

    error, low, high = wrong(auc.estimate), wrong(auc.high), wrong(auc.low)
    return Attack(
        name=name, title=name, what=what, error=error, low=low, high=high, random=0.5
    )
