"""What enters training beside traces and tests: split, region states, places.

Everything here can be made by a site for its own people: who is held back and in
which fold a tested person is depends on the person's number alone, so it is the
same however people are split into sites; what must be known of all people is
summed over sites (``tallies``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import without
from epifalcon.errors import DataError
from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.settings import PredictionSettings
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.models.coupling import state_of_people
from epifalcon.privacy.events import ONE_VECTOR, Terms, UnprotectedRelease
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats, PersonIds

_LEAST_SPREAD = 1e-6


def hypergraph(traces: Traces, settings: PredictionSettings) -> Incidence:
    """The hypergraph of ``traces`` with the model's windows."""
    window = HypergraphSettings(window_slots=settings.model.window_slots)
    return Incidence.of(traces, window)


def state_at_home(
    hidden: NDArray[np.float32], incidence: Incidence, traces: Traces
) -> NDArray[np.float32]:
    """Each person's mean region state, (people, width), from all regions' states."""
    mean = state_of_people(torch.tensor(hidden), incidence, traces.clock)
    return np.asarray(mean.numpy(), np.float32)


def state_by_fold(
    whole: NDArray[np.float32],
    own: Sequence[NDArray[np.float32]],
    fold: NDArray[np.int64],
    incidence: Incidence,
    traces: Traces,
) -> NDArray[np.float32]:
    """Each person's mean region state, (people, width), without its own echo.

    From the states ``whole`` (regions, days, width) for people without a test,
    from ``own[k]``, made without the cases of fold k, for the tested of fold k.
    """
    state = state_at_home(whole, incidence, traces)
    for number, hidden in enumerate(own):
        people = fold == number
        state[people] = state_at_home(hidden, incidence, traces)[people]
    return state


@dataclass(frozen=True)
class StateMoments:
    """Sums of region states over people, in double precision."""

    people: int
    total: Floats
    """(width,)"""
    squared: Floats
    """(width,)"""

    @classmethod
    def of(cls, state: NDArray[np.float32]) -> "StateMoments":
        """Of the states of some people, (people, width)."""
        wide = state.astype(np.float64)
        return cls(len(state), wide.sum(axis=0), (wide**2).sum(axis=0))

    def __add__(self, other: "StateMoments") -> "StateMoments":
        return StateMoments(
            self.people + other.people,
            self.total + other.total,
            self.squared + other.squared,
        )


@dataclass(frozen=True, eq=False)
class StateScaling:
    """Brings people's region states to the size of the rows that they stand beside.

    Raw states differ little between people around a common level, so that the
    small steps of training hardly see them. Scaled, each column has the same
    spread and a state the length 1 in the root mean square, which is the most
    that a clipped row has when it is read.
    """

    centre: NDArray[np.float32]
    """(width,)"""
    factor: NDArray[np.float32]
    """(width,), 0 for a column that is the same for all."""

    @classmethod
    def of(cls, state: NDArray[np.float32]) -> "StateScaling":
        """The scaling of the states of all people, (people, width)."""
        centre, spread = state.mean(axis=0), state.std(axis=0)
        varies = spread > _LEAST_SPREAD
        length = np.where(varies, spread, 1.0) * np.sqrt(max(varies.sum(), 1))
        return cls(centre, np.where(varies, 1 / length, 0.0).astype(np.float32))

    @classmethod
    def identity(cls, width: int) -> "StateScaling":
        """Return the scaling that changes nothing."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))

    @classmethod
    def of_moments(cls, moments: StateMoments) -> "StateScaling":
        """The same, from sums over people that may be anywhere."""
        count = max(moments.people, 1)
        centre = moments.total / count
        spread = np.sqrt(np.maximum(moments.squared / count - centre**2, 0))
        varies = spread > _LEAST_SPREAD
        length = np.where(varies, spread, 1.0) * np.sqrt(max(varies.sum(), 1))
        factor = np.where(varies, 1 / length, 0.0)
        return cls(centre.astype(np.float32), factor.astype(np.float32))

    def apply(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scaled states, (people, width)."""
        scaled: NDArray[np.float32] = (state - self.centre) * self.factor
        return scaled


@dataclass(frozen=True, eq=False)
class Household:
    """The people of one site and what is known of them there."""

    traces: Traces
    known: Known
    first: int
    """Number of the first of them in the whole city; the others follow."""

    def __post_init__(self) -> None:
        if self.known.people != self.traces.people:
            raise DataError(
                f"tests among {self.known.people:,} people, but traces of "
                f"{self.traces.people:,}"
            )

    @property
    def people(self) -> NDArray[np.int64]:
        """Their numbers in the whole city."""
        return self.first + np.arange(self.traces.people, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Division:
    """Which tested people are held back, and the folds of the others."""

    held_back: PersonIds
    """Positions at the site, ascending."""
    training: Known
    """The tests of everybody but them."""
    fold: NDArray[np.int64]
    """(people,) of each person in ``training``, -1 for everybody else."""


def divide(home: Household, settings: PredictionSettings, seed: int) -> Division:
    """Hold back a share of the tested people and deal the others into folds.

    By a draw that is fixed by seed and person: any split into sites gives the
    same. Unlike in one process the results are not dealt evenly, which no site
    could do alone.
    """
    share = settings.stopping.validation_share
    tested = home.known.tested
    held = tested & (drawn_for(home, "validation people", seed) < share)
    people = np.flatnonzero(held).astype(np.int32)
    training = without(home.known, people)
    fold = (drawn_for(home, "region folds", seed) * settings.region.folds).astype(
        np.int64
    )
    fold[~training.tested] = -1
    return Division(people, training, fold)


def drawn_for(home: Household, purpose: str, seed: int) -> Floats:
    """A number between 0 and 1 for each person, by purpose, seed and its number."""
    key = NoiseKey(seed, Terms(channel=purpose, releases=ONE_VECTOR))
    normal = keyed_normals(key, NoiseRows.of_people(home.people), 1)[:, 0]
    drawn: Floats = np.clip(ndtr(np.asarray(normal, np.float64)), 0.0, 1 - 2**-53)
    return drawn


@dataclass(frozen=True, eq=False)
class Surrounding:
    """What a site is told of the city before the rounds."""

    mobility: MobilityModel | None = None
    cases: Floats | None = None
    """(regions, days) reported, for pseudo traces that follow them."""
    states: NDArray[np.float32] | None = None
    """(1 + folds, regions, days, width): from all cases, then without each fold's."""
    scaling: StateScaling | None = None


def raw_state(
    home: Household,
    division: Division,
    settings: PredictionSettings,
    states: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Each person's mean region state before scaling, without its own echo."""
    incidence = hypergraph(home.traces, settings)
    own = list(states[1:])
    return state_by_fold(states[0], own, division.fold, incidence, home.traces)


def cohort_of(
    home: Household,
    division: Division,
    settings: PredictionSettings,
    around: Surrounding,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Cohort:
    """The site's people as they enter the rounds; ``rng`` draws pseudo traces."""
    state = None
    if around.states is not None and around.scaling is not None:
        raw = raw_state(home, division, settings, around.states)
        state = torch.from_numpy(around.scaling.apply(raw))
    pseudo: tuple[Incidence, ...] = ()
    if around.mobility is not None:
        cases = around.cases
        if cases is None:
            cases = np.zeros((len(home.traces.regions), home.traces.clock.days))
        made = generate(
            home.traces, around.mobility, cases, settings.pseudo, rng, progress
        )
        pseudo = tuple(
            hypergraph(made.copy(number), settings) for number in range(made.copies)
        )
    incidence = hypergraph(home.traces, settings)
    status = division.training.status
    return Cohort(home.people, incidence, status, state, pseudo)


def made_in_the_clear(
    plan: PrivacyPlan,
    has_states: bool,
    follows_cases: bool,
    mobility_share: float = 1.0,
) -> list[UnprotectedRelease]:
    """Receipts of what is made from people's data before the rounds, without noise.

    ``follows_cases`` says whether pseudo traces, if any, do; ``mobility_share`` is
    the share of the people that the mobility model was fitted on.
    """
    made = []
    if has_states:
        made.append(("region model", "cases by region and day, and flows"))
    if plan.copies:
        share = f"a random {100 * mobility_share:g} % of the"
        who = "all" if mobility_share == 1 else share
        made.append(("mobility model", f"visits and moves of {who} people, added up"))
    if plan.copies and follows_cases:
        made.append(("pseudo domains", "reported cases by region and day"))
    return [in_the_clear(plan, channel, what) for channel, what in made]


def in_the_clear(plan: PrivacyPlan, channel: str, what: str) -> UnprotectedRelease:
    """A receipt of something that leaves without protection, once."""
    terms = Terms(channel=channel, releases=plan.releases, relation=plan.relation)
    return UnprotectedRelease(terms=terms, what=what)
