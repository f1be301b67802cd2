"""HBP: belief propagation on the hypergraph, with the disease's own rates.

Nothing is trained. A person is a hidden Markov chain, susceptible, exposed,
infectious, recovered, that steps once a slot as in the simulator. A hyperedge is
a region in a slot: whoever is infectious there infects each other person there
with the chance d = 1 - exp(-kappa beta dt / n). To each edge that it visits a
person i sends two numbers, and gets back the sums over everybody there:

    f_i = -log(1 - d P_i)         P_i = P(i is infectious in the slot)
    c_i = log(1 + d (L_i1 - L_i0) / L_i)

L_i is the likelihood of all that i knows, L_i1 and L_i0 the same if the edge
does and does not infect i. With its own numbers taken out of the sums F and C,
person i has escaped infection in the slot with the chance exp(-(F - f_i)), and
to be infectious there makes what became of the others exp(C - c_i) times as
likely. The chain's forward and backward recursions turn these factors into P_i
and L_i, and so on: a sweep costs a few operations per person and slot. A person
leaves out of what it sends to an edge what it heard from that edge, which makes
the sweeps exact where two meet at most once and nobody meets in circles.

To first order in d this is f = d P and c = d s (e - 1) / ((1 - s) e + s), s the
chance to escape throughout and e the mean evidence of having been infectious:
the linear form with which such methods are often written. Keeping the chain
instead of its mean needs no cap on evidence and takes the slot of a test as it is.

What is not exact: two people who meet again and again hear their own news from
each other; three or more in an edge are taken as independent; people with and
without symptoms count as one kind of mean weight; and under the contact law
``I/S`` the susceptible are counted by expectation.

After Altarelli et al., "Bayesian inference of epidemics on networks via belief
propagation" (PRL 2014), and Baker et al., "Epidemic mitigation by statistical
inference from contact tracing data" (PNAS 2021), whose messages go from person
to person, a table over two infection times for each pair that ever met. Where
places are shared there are fifty times more meetings of pairs than visits; here
a message is one number per visit and direction of time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from epifalcon.baselines.field import Field
from epifalcon.baselines.method import Kind, Method, Scene, Scores
from epifalcon.baselines.started import begun_by
from epifalcon.checks import positive, unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.reading import Now
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, Probabilities

_FASTER = 2.0
_ATTEMPTS = 3
_CONTRADICTED = 0.2
# Coarse enough that sums of products are exact, whatever the order of people.
_CHANGE_STEPS = 2.0**12
_RISK_STEPS = 2.0**30


@dataclass(frozen=True, kw_only=True)
class HbpSettings:
    """How long beliefs are passed on, and how much of the old ones is kept."""

    sweeps: int = 40
    """At most."""
    damping: float = 0.9
    """Share of the old evidence in the new, at first; then see ``Damping``."""
    least_renewed: float = 0.02
    most_renewed: float = 0.3
    """Bounds of the share of new evidence that ``Damping`` chooses."""
    hazard_damping: float = 0.3
    tolerance: float = 0.002
    """Ends when an undamped sweep would move risks by less in the mean."""
    folds: int = 4
    """Parts of the tested people whose results are left out in turn, to tell the
    risks of the tested without them; 0 leaves out only their own messages."""
    start_share: float | None = None
    """Share of people infected when the traces begin, where that is later than the
    outbreak did; the rule's number of seeds unless given. Too small a share ranks
    people as well, but all risks come out too low. Runs that report the latest days
    alone hand over a rule with a number of seeds that tests let expect."""

    def __post_init__(self) -> None:
        whole(1, sweeps=self.sweeps)
        for name in ("damping", "hazard_damping"):
            unit_interval(**{name: getattr(self, name)})
            if getattr(self, name) == 1:
                raise SettingsError(f"{name}=1 would keep the first guess for ever")
        unit_interval(least_renewed=self.least_renewed, most_renewed=self.most_renewed)
        positive(least_renewed=self.least_renewed, tolerance=self.tolerance)
        if self.least_renewed > self.most_renewed:
            raise SettingsError(
                f"least_renewed={self.least_renewed} is more than "
                f"most_renewed={self.most_renewed}"
            )
        whole(0, folds=self.folds)
        if self.start_share is not None:
            unit_interval(start_share=self.start_share)


class Hbp(Method):
    """Belief propagation on the hypergraph.

    A tested person's risk is told from the tests of the other folds alone. With
    ``folds=0`` it is told from one run, without its own messages; but what it
    heard has passed through people who had heard its result, and ranks tested
    people visibly better than hidden ones (AUC .80 against .72 on a city of the
    Larger size): nothing to calibrate by.

    Without any positive test the prior decides: the number of seeds, where they
    were not, and who tested negative.
    """

    name = "hbp"
    title = "HBP"
    kind: ClassVar[Kind] = "reference"
    settings_type: ClassVar[type] = HbpSettings
    settings: HbpSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Sweep until the risks rest, once for all tests and once for each fold."""
        scene, runs, done = self._started(), 1 + self.settings.folds, 0

        def run(tests: Known) -> Beliefs:
            nonlocal done
            late = tests.of_people(known_late(tests, traces))
            found = believe(
                lambda: self.field(scene, traces, tests), late, self.settings, tell_of
            )
            done += 1
            return found

        def tell_of(sweep: int, moved: float) -> None:
            at = done * self.settings.sweeps + sweep
            total = runs * self.settings.sweeps
            self.scene.progress("hbp: sweeps", at, total, f"risks moved {moved:.4f}")

        rng = Streams(self.scene.seed).numpy("hbp folds")
        return without_own_tests(known, self.settings.folds, rng, run)

    def field(self, scene: Scene, traces: Traces, tests: Known) -> Field:
        """The people, who know ``tests``, before any sweep."""
        return Field(scene, traces, tests)

    def _started(self) -> Scene:
        """The scene, with as many seeds as were infected at the start."""
        share = self.settings.start_share
        if share is None:
            return self.scene
        return replace(self.scene, rule=begun_by(self.scene.rule, share))


def known_late(known: Known, traces: Traces) -> Mask:
    """Whose last test was on the last day: (people,)."""
    last = np.full(known.people, -1)
    # Later assignments win, and a person's tests stand in order of slot.
    last[known.person] = known.slot
    return np.asarray(last >= traces.slots - traces.clock.slots_per_day)


class Damping:
    """How much of the old evidence is kept, learnt from sweep to sweep.

    The evidence of a whole tree of infections hangs on those who came first, so
    a small change of theirs comes back manifold, the other way round: in a fast
    outbreak a sweep overshoots tenfold. Aitken's rule (Irons and Tuck, 1969)
    reads the factor off the last two changes and renews just so much that the
    strongest swing would end. Bounds keep it from haste.
    """

    def __init__(self, settings: HbpSettings, slower: float = 1.0) -> None:
        self._renewed = (1 - settings.damping) / slower
        self._least = settings.least_renewed / slower
        self._most = max(settings.most_renewed / slower, self._renewed)
        self._before: Floats | None = None

    @property
    def share(self) -> float:
        """Share of the old evidence to be kept in the next sweep."""
        return 1 - self._renewed

    def after(self, change: Floats) -> float:
        """Take note of a sweep's change (people,); its mean size, were it undamped."""
        undamped = np.rint(change / self._renewed * _CHANGE_STEPS) / _CHANGE_STEPS
        moved = float(np.abs(undamped).mean())
        if self._before is not None:
            turn = undamped - self._before
            along, size = -float(self._before @ turn), float(turn @ turn)
            most = min(_FASTER * self._renewed, self._most)
            if 0 < along < math.inf and size > 0:
                most = min(self._renewed * along / size, most)
            self._renewed = max(most, self._least)
        self._before = undamped
        return moved


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Where the sweeps ended."""

    risk: Probabilities
    """(people,) own tests aside."""
    sweeps: int
    moved: float
    """By how much an undamped sweep would still move the risks, in the mean."""
    now: Now | None = None
    """Who is infected at the end, where that is told."""


def believe(
    start: Callable[[], Field],
    late: Known,
    settings: HbpSettings,
    tell_of: Callable[[int, float], None],
) -> Beliefs:
    """Sweep until the risks rest.

    Beliefs can run away: if everybody is thought infected, nobody's evidence
    counts any more. Then the people of ``late``, tested at the end, tell
    otherwise, and it is begun anew with smaller steps.
    """
    for attempt in range(_ATTEMPTS):
        field = start()
        damping = Damping(settings, slower=4.0**attempt)
        moved, sweeps = math.inf, 0
        while sweeps < settings.sweeps and moved > settings.tolerance:
            # Nothing of the flat hazard of the start is kept.
            kept = settings.hazard_damping if sweeps else 0.0
            change = field.sweep(damping.share, kept)
            moved = damping.after(change)
            sweeps += 1
            tell_of(sweeps, moved)
        if not _contradicted(field.risk, late):
            break
    risk = np.rint(field.risk * _RISK_STEPS) / _RISK_STEPS
    return Beliefs(risk, sweeps, moved)


def without_own_tests(
    known: Known,
    folds: int,
    rng: np.random.Generator,
    run: Callable[[Known], Beliefs],
) -> Scores:
    """Everybody's risk by ``run``, that of tested people without their own fold."""
    tested = np.flatnonzero(known.tested).astype(np.int32)
    found = run(known)
    risk = found.risk.copy()
    now = None if found.now is None else found.now.aside.copy()
    parts = min(folds, len(tested))
    fold = blind_folds(known, max(parts, 1), rng)
    for part in range(parts):
        own = fold == part
        without = run(known.of_people(~own))
        risk[own] = without.risk[own]
        if now is not None and without.now is not None:
            now[own] = without.now.aside[own]
    told = {"sweeps": found.sweeps, "moved": found.moved}
    return Scores(
        risk,
        tested,
        risk[tested],
        steps=found.sweeps,
        told=told,
        now=now,
        now_tested=None if found.now is None else found.now.tested,
    )


def _contradicted(risk: Probabilities, late: Known) -> bool:
    """Whether the tested would be told better by their share of positives."""
    tested = late.tested
    infected = late.status[tested] == 1
    if not infected.any() or infected.all():
        return False

    def lost(chance: Probabilities) -> float:
        chance = np.clip(chance, 1e-6, 1 - 1e-6)
        return float(-np.log(np.where(infected, chance, 1 - chance)).mean())

    share = np.full(infected.shape, infected.mean())
    return lost(risk[tested]) > lost(share) + _CONTRADICTED
