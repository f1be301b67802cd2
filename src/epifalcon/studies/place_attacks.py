"""The attacks on claimed places, put together and judged: for audits and studies.

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
from epifalcon.evaluation.attacks.upload_notes import Notes
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city
from epifalcon.federation.training import public_mobility
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.generators import generate
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack
from epifalcon.streams import Streams
from epifalcon.types import Counts, Floats, Mask

_LIVING, _REHEARSED = 2000, 500
"""People of the attacker's own city, at most, and how many of them it attacks."""
_LEAST_LOG = -50.0


@dataclass(frozen=True, eq=False)
class Tried:
    """What an attack says of every claim."""

    name: str
    title: str
    what: str
    """What it uses, in words."""
    score: Floats
    """(claims,)"""
    then: Floats | None = None
    """(claims,) what decides between equal scores."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Places:
    """The places that some people claim, and what an attacker holds against them."""

    claims: Candidates
    model: MobilityModel
    passes: tuple[Pass, ...]
    """Learnt on a rehearsal."""
    sets: SetBelief = field(default_factory=SetBelief)
    """The same for the attack by sets."""
    by_sets: bool = False
    """Whether equal claim sets are judged together in what all is put into: see
    ``Learnt``."""
    claimed: Counts | None = None
    """(claims,) how many people claim the place, these and all others; None if that
    is not counted."""

    @cached_property
    def profile(self) -> Profile:
        """How people move, laid out for attacks."""
        return Profile.of(self.model)

    def likely(self, notes: Notes | None = None) -> Floats:
        """Chances of the claims by what was rehearsed best: (claims,).

        With ``notes``, by all that the server saw; without, by places alone.
        """
        if self.by_sets:
            told = None
            if notes is not None:
                told = uploads.by_sets(notes, slots_of_set(self.claims))
            return by_sets(self.claims, self.profile, self.sets, told, self.claimed)
        told = None if notes is None else uploads.combined(notes)
        return combined(self.claims, self.profile, self.passes, told)

    def tried(self, notes: Notes | None = None) -> list[Tried]:
        """Every attack on places; with ``notes`` of uploads also all together."""
        profile = self.profile
        found = [
            Tried(
                "moves",
                "moves",
                "the population's mobility (the paper's)",
                forward_backward(self.claims, profile),
            ),
            Tried(
                "recurrence",
                "recurrence",
                "the place claimed most at this hour of other days",
                recurrence(self.claims).same_hour.astype(float),
                profile.log_visits(self.claims),
            ),
            Tried(
                "moves and recurrence",
                "moves and recurrence",
                "both, weighed on a city of the attacker's own",
                combined(self.claims, profile, self.passes),
            ),
            Tried(
                "moves by sets",
                "moves by sets",
                "moves, slots with equal claims having equal truths",
                by_sets(self.claims, profile, self.sets, claimed=self.claimed),
            ),
        ]
        if self.claimed is not None:
            usual = np.maximum(profile.log_visits(self.claims), _LEAST_LOG)
            what = "how many usually are at a place, of how many who claim it"
            score = usual - np.log(np.maximum(self.claimed, 1))
            found.insert(0, Tried("claimants", "claimants", what, score))
        if notes is not None:
            by_places = "moves by sets" if self.by_sets else "moves and recurrence"
            what = f"uploads, counts, {by_places}"
            score = self.likely(notes)
            found.append(Tried("everything", "everything together", what, score))
        return found


@dataclass(frozen=True)
class Learnt:
    """What an attacker brings along from cities of its own."""

    passes: tuple[Pass, ...]
    sets: SetBelief
    by_sets: bool
    """Whether the attack by sets was less wrong than that by moves and recurrence,
    in another city than both had been learnt in."""


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
    """A city of the attacker's own, with pseudo traces made as the run's are.

    As large as the run's up to 2,000 people, since how far a life stands out hangs
    on how many others there are; 500 of them are attacked. Where cases were
    reported is not rehearsed: the attacker's city has none.
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
    """How many people claim the place of each claim, the person included: (claims,)."""
    key = everybody.key
    return np.asarray(np.bincount(key)[key])


def people_of(traces: Traces, people: NDArray[np.int64]) -> Traces:
    """The traces of some people alone."""
    return Traces(traces.by_slot[:, people], traces.clock, traces.regions)


def judged(tried: Tried, claims: Candidates, true: Mask, seed: int) -> Attack:
    """How wrong an attack is; ``true`` (claims,) says which claims are."""
    guess = name_best(claims, tried.score, tried.then)
    verdict = localisation_error(guess, claims, true)
    found = verdict.interval(Streams(seed).numpy(f"audit {tried.name}"))
    return Attack(
        name=tried.name,
        title=tried.title,
        what=tried.what,
        error=found.estimate,
        low=found.low,
        high=found.high,
        random=verdict.random,
    )
