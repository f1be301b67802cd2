"""What a site has promised its people over all runs, and whether one more fits.

Every run of mode ``local`` keeps its own promise. Two of them keep less than either,
and a server may hand in as many as it likes under new names. So a site writes down
each promise before it takes part, and adds them up: mu^2 of Gaussian releases adds
up exactly. A run counts whole from its first call, whether or not it comes to an
end; it can be gone on with under its name at no further cost.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from epifalcon.errors import BudgetExceededError, CorruptFileError
from epifalcon.federation.settings import PrivacySettings
from epifalcon.privacy.accounting import epsilon_of, mu_for
from epifalcon.privacy.chain import Journal
from epifalcon.privacy.events import Releases

PROMISES = "promises.jsonl"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Promise:
    """What one run may show of a person."""

    run: str
    squared_mu: float

    @classmethod
    def of(cls, run: str, wish: PrivacySettings, releases: Releases) -> "Promise":
        """Of a ``local`` run.

        What is promised of a visit or a day holds of a person so many times as it
        has visits or days.
        """
        times = releases.person / releases.of(wish.unit)
        return cls(run, times * mu_for(wish.epsilon, wish.delta) ** 2)


def admit(path: Path, new: Promise, most_epsilon: float | None, delta: float) -> None:
    """Write ``new`` down, or refuse it where all together pass ``most_epsilon``.

    Without a bound every promise is written down, for the day when there is one.
    """
    journal = Journal(path)
    known = {one.run: one for one in map(_parse, journal.read().splitlines())}
    before = known.get(new.run)
    if before is not None and new.squared_mu <= before.squared_mu * (1 + _ROUNDING):
        return
    others = sum(one.squared_mu for one in known.values() if one.run != new.run)
    together = epsilon_of(math.sqrt(others + new.squared_mu), delta)
    if most_epsilon is not None and together > most_epsilon * (1 + _ROUNDING):
        raise BudgetExceededError(
            f"run {new.run}: with {len(known)} runs before it, a person would have an "
            f"epsilon of {together:.4g}; most_epsilon is {most_epsilon:g}"
        )
    # If another process wrote in between, this is refused.
    journal.append([json.dumps([new.run, new.squared_mu])])


def _parse(line: str) -> Promise:
    try:
        run, squared_mu = json.loads(line)
        return Promise(str(run), float(squared_mu))
    except (ValueError, TypeError):
        raise CorruptFileError(
            f"{PROMISES}: holds a line that was not written there"
        ) from None
