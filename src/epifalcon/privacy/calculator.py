"""The accountant's questions about uploads at places, answered without a run.

A person sends, in each of ``rounds`` rounds and for each of ``layers`` layers,
one noised row for every slot: rounds x layers releases for a visit, times the
slots of a day for a day, times all slots for the person.

>>> asked = Uploads(clip=0.1, rounds=500, layers=1, slots=168)
>>> round(asked.cost(0.2).person)
11188
>>> round(asked.sigma_for(8.0, "person"), 1)
18.9
"""

from dataclasses import dataclass
from typing import Literal

from epifalcon.checks import one_of, positive, whole
from epifalcon.errors import SettingsError
from epifalcon.privacy.accounting import (
    DELTA,
    epsilon_of,
    gaussian_mu,
    paper_epsilon,
    reference_epsilon,
    sigma_for,
)
from epifalcon.privacy.events import (
    UNITS,
    GaussianRelease,
    Relation,
    Releases,
    Terms,
    Unit,
)

PAPER_DELTA = 0.001
"""The delta of the paper's own formula, whatever the exact figures use."""
_MOST_FOR_PLD = 500.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Epsilon of all uploads together for each unit, and what the paper would say.

    Infinite without noise.
    """

    sigma: float
    visit: float
    day: float
    person: float
    paper_formula: float


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """What is sent, how often, and how strict the promise is."""

    clip: float = 0.1
    rounds: int = 500
    layers: int = 2
    slots: int = 168
    """Of a person's whole trace."""
    slots_per_day: int = 12
    delta: float = DELTA
    paper_delta: float = PAPER_DELTA
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        whole(1, rounds=self.rounds, layers=self.layers, slots=self.slots)
        whole(1, slots_per_day=self.slots_per_day)
        for name in ("delta", "paper_delta"):
            value = getattr(self, name)
            positive(**{name: value})
            if value >= 1:
                raise SettingsError(f"{name}={value} must be less than 1")
        if self.relation == "add-remove":
            raise SettingsError(
                "relation='add-remove' cannot be promised where each upload is seen: "
                "use 'zero-out' or 'replace'"
            )

    @property
    def sensitivity(self) -> float:
        """How far one upload moves between neighbours."""
        terms = Terms(channel="upload", releases=self._each, relation=self.relation)
        return GaussianRelease(terms=terms, clip=self.clip, sigma=1.0).sensitivity

    def releases(self, unit: Unit) -> int:
        """How many uploads ``unit`` can change over all rounds and layers."""
        return self.rounds * self.layers * self._each.of(unit)

    def cost(self, sigma: float) -> Cost:
        """The exact epsilon of every unit at ``sigma``, and the paper's formula."""
        found = {
            unit: epsilon_of(
                gaussian_mu(self.sensitivity, sigma, self.releases(unit)), self.delta
            )
            for unit in UNITS
        }
        formula = paper_epsilon(sigma, self.paper_delta, self.clip, self.rounds)
        return Cost(sigma=sigma, paper_formula=formula, **found)

    def sigma_for(self, epsilon: float, unit: Unit) -> float:
        """The least noise that keeps ``epsilon`` for ``unit``."""
        positive(epsilon=epsilon)
        one_of(UNITS, unit=unit)
        return sigma_for(epsilon, self.delta, self.sensitivity, self.releases(unit))

    def checked(self, sigma: float, unit: Unit) -> dict[str, float]:
        """The same epsilon by dp-accounting (extra ``audit``): PLD and RDP.

        RDP is an upper bound. PLD is exact but for its grid, whose size grows with
        epsilon, so it is left out above 500.
        """
        positive(sigma=sigma)
        ratio, times = sigma / self.sensitivity, self.releases(unit)
        methods: list[Literal["pld", "rdp"]] = ["rdp"]
        if getattr(self.cost(sigma), unit) <= _MOST_FOR_PLD:
            methods.insert(0, "pld")
        return {
            method: reference_epsilon(ratio, times, self.delta, method=method)
            for method in methods
        }

    @property
    def _each(self) -> Releases:
        day = min(self.slots_per_day, self.slots)
        return Releases(visit=1, day=day, person=self.slots)
