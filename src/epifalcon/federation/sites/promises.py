"""What a site has promised its people over all runs, and whether one more fits.

Every run of mode ``local`` keeps its own promise. Two of them keep less than either,
and a server may hand in as many as it likes under new names. So a site writes down
each promise before it takes part, and adds them up: mu^2 of Gaussian releases adds
up exactly. A run counts whole from its first call, whether or not it comes to an
end; it can be gone on with under its name at no further cost. Epsilon is that at
the site's own delta and for its own relation, whatever the runs promise.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from epifalcon.errors import BudgetExceededError, CorruptFileError
from epifalcon.federation.settings import PrivacySettings
from epifalcon.locks import FileLock
from epifalcon.privacy.accounting import DELTA, epsilon_of, mu_for
from epifalcon.privacy.chain import Journal
from epifalcon.privacy.events import Relation, Releases

PROMISES = "promises.jsonl"
_ROUNDING = 1e-9
_LONGER: dict[Relation, float] = {"zero-out": 1.0, "replace": 4.0}
"""What mu^2 is multiplied with where a row is compared with any other row."""


@dataclass(frozen=True)
class Promise:
    """What one run may show of a person."""

    run: str
    squared_mu: float
    """For rows against zero, which every relation can be told from."""

    @classmethod
    def of(cls, run: str, wish: PrivacySettings, releases: Releases) -> "Promise":
        """Of a ``local`` run.

        What is promised of a visit or a day holds of a person so many times as it
        has visits or days.
        """
        times = releases.person / releases.of(wish.unit)
        squared_mu = times * mu_for(wish.epsilon, wish.delta) ** 2
        return cls(run, squared_mu / _LONGER[wish.relation])


@dataclass(frozen=True)
class Bound:
    """What all promises together may come to."""

    most_epsilon: float | None
    """None: every promise is written down, for the day when there is a bound."""
    delta: float = DELTA
    relation: Relation = "zero-out"

    def epsilon(self, squared_mu: float) -> float:
        """Of a person, at this delta and for this relation."""
        return epsilon_of(math.sqrt(_LONGER[self.relation] * squared_mu), self.delta)


def admit(path: Path, new: Promise, bound: Bound) -> None:
    """Write ``new`` down, or refuse it where all together pass the bound.

    Two processes of a site take turns.
    """
    with FileLock(path.with_suffix(".lock"), wait=True):
        _admit(Journal(path), new, bound)


def _admit(journal: Journal, new: Promise, bound: Bound) -> None:
    known = {one.run: one for one in map(_parse, journal.read().splitlines())}
    before, most = known.get(new.run), bound.most_epsilon
    if before is not None and new.squared_mu <= before.squared_mu * (1 + _ROUNDING):
        return
    others = sum(one.squared_mu for one in known.values() if one.run != new.run)
    together = bound.epsilon(others + new.squared_mu)
    if most is not None and together > most * (1 + _ROUNDING):
        raise BudgetExceededError(
            f"run {new.run}: with {len(known)} runs before it, a person would have an "
            f"epsilon of {together:.4g}; most_epsilon is {most:g}"
        )
    journal.append([json.dumps([new.run, new.squared_mu])])


def _parse(line: str) -> Promise:
    try:
        run, squared_mu = json.loads(line)
        return Promise(str(run), float(squared_mu))
    except (ValueError, TypeError):
        raise CorruptFileError(
            f"{PROMISES}: holds a line that was not written there"
        ) from None
