"""The attacks on claimed places, put together and judged: for audits and studies.

The attacker knows what is public: the mobility model, and how pseudo traces are
made, which it rehearses on a city of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import localisation_error, name_best
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import recurrence
from epifalcon.evaluation.attacks.rehearsal import Pass, Rehearsal, combined
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.features import public_mobility
from epifalcon.studies.pipeline import make_city
from epifalcon.studies.privacy_card import Attack
from epifalcon.types import Floats, Mask

_REHEARSED = 500
"""People of the attacker's own city, at most."""


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

    def tried(self, uploads: Floats | None = None) -> list[Tried]:
        """Every attack on places; with the log-likelihood of ``uploads``, all."""
        profile = Profile.of(self.model)
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
        ]
        if uploads is not None:
            score = combined(self.claims, profile, self.passes, uploads)
            what = "uploads, counts, moves and recurrence"
            found.append(Tried("everything", "everything together", what, score))
        return found


def rehearse(
    experiment: Experiment, copies: int, seed: int, progress: Progress = silent
) -> Rehearsal:
    """A city of the attacker's own, with pseudo traces made as the run's are.

    Where cases were reported is not rehearsed: the attacker's city has none.
    """
    streams = Streams(seed)
    people = min(experiment.city.people, _REHEARSED)
    own = replace(experiment, city=replace(experiment.city, people=people))
    traces = make_city(own, streams.seed_for("rehearsal"), progress)
    model = public_mobility(traces, streams.seed_for("rehearsal"), progress)
    cases = np.zeros((len(traces.regions), traces.clock.days))
    wanted = replace(experiment.pseudo, pseudo_copies=copies)
    rng = streams.numpy("rehearsal")
    made = generate(traces, model, cases, wanted, rng, progress)
    window = experiment.model.window_slots
    return Rehearsal(Candidates.of_pseudo(made, window), traces, model)


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
