"""What Gaussian releases cost together, exactly, and how much noise a wish needs.

Gaussian releases in which everybody takes part compose into one Gaussian
mechanism with mu^2 = sum of (sensitivity / sigma)^2, whatever their order and
however later ones depend on earlier ones (Dong, Roth and Su 2022, corollary
3.3). Its (epsilon, delta) curve is known in closed form (Balle and Wang 2018,
theorem 8)::

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

The paper's own formula stands beside it (``paper_sigma``, ``paper_epsilon``).

>>> round(epsilon_of(gaussian_mu(0.1, 0.2, releases=500), delta=1e-6), 2)
114.81
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, log_ndtr, ndtri

from epifalcon import checks
from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.errors import SettingsError
from epifalcon.privacy.events import (
    UNITS,
    GaussianRelease,
    Relation,
    Releases,
    Terms,
    Unit,
)

DELTA = 1e-6
"""The delta used where none is named: well under one over the number of people."""

PAPER_DELTA = 0.001
"""The delta of the paper's own formula, whatever the exact figures use."""
_MOST_FOR_PLD = 500.0
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)


def gaussian_mu(sensitivity: float, sigma: float, releases: int = 1) -> float:
    """The mu of ``releases`` Gaussian releases, K layers x T rounds x slots of a unit.

    ``sensitivity`` is the L2 distance that one release can move between
    neighbours. ``sigma=0`` gives infinity.
    """
    non_negative(sensitivity=sensitivity, sigma=sigma)
    whole(0, releases=releases)
    if sensitivity == 0 or releases == 0:
        return 0.0
    return math.inf if sigma == 0 else math.sqrt(releases) * (sensitivity / sigma)


def log_delta_of(epsilon: float, mu: float) -> float:
    """The logarithm of the smallest delta at which ``mu`` keeps ``epsilon``.

    Written with Mills' ratio h, the closed form is phi(x) (h(x) - h(x + mu)) at
    x = epsilon/mu - mu/2, which neither overflows nor cancels: relative error
    of delta under 1e-8 for mu from 1e-6 to 1e4.
    """
    non_negative(epsilon=epsilon)
    _check_mu(mu)
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    return _log_delta(epsilon / mu - mu / 2, mu)


def epsilon_of(mu: float, delta: float = DELTA) -> float:
    """The smallest epsilon that Gaussian releases of total ``mu`` keep at ``delta``."""
    _check_mu(mu)
    _check_delta(delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or _log_delta(-mu / 2, mu) <= math.log(delta):
        return 0.0
    # delta <= Phi(-x), so the root lies left of the normal quantile; the step
    # past it is for rounding. Left of -40, delta is 1 in every digit.
    quantile = -float(ndtri(delta))
    low, high = max(-mu / 2, -40.0), quantile + 1e-6 * (1 + abs(quantile))
    wanted = math.log(delta)
    x = _root(lambda x: _log_delta(x, mu) - wanted, low, high)
    return max(0.0, mu * (x + mu / 2))


def mu_for(epsilon: float, delta: float = DELTA) -> float:
    """The largest total mu that keeps (``epsilon``, ``delta``): the budget in mu."""
    non_negative(epsilon=epsilon)
    _check_delta(delta)
    if epsilon == 0:
        return 2 * math.sqrt(2) * float(erfinv(delta))
    quantile = -float(ndtri(delta))
    root = math.hypot(quantile, math.sqrt(2 * epsilon))
    # Two equal forms: each is free of cancellation on its side.
    low = 2 * epsilon / (quantile + root) if quantile > 0 else root - quantile
    wanted = math.log(delta)
    low, high = low * (1 - 1e-9), 2 * low
    while log_delta_of(epsilon, high) < wanted:
        high *= 2
    return _root(lambda mu: log_delta_of(epsilon, mu) - wanted, low, high)


def sigma_for(
    epsilon: float, delta: float = DELTA, sensitivity: float = 1.0, releases: int = 1
) -> float:
    """The smallest sigma at which all ``releases`` together keep (epsilon, delta).

    ``releases`` counts every vector that the protected unit can change over the
    whole run: rounds x layers, times the slots of a day or of a person.
    """
    positive(sensitivity=sensitivity)
    whole(1, releases=releases)
    return sensitivity * math.sqrt(releases) / mu_for(epsilon, delta)


def paper_sigma(epsilon: float, delta: float, clip: float, rounds: int) -> float:
    """The paper's sigma_l = L C sqrt(2 ln(1.25 / delta)) / epsilon.

    A sum of ``rounds`` textbook bounds, proved for epsilon under 1 and for one
    visit only. Neither is what an adversary of the whole run can be held to:
    see ``epsilon_of``.
    """
    positive(epsilon=epsilon, clip=clip)
    _check_delta(delta)
    whole(1, rounds=rounds)
    return rounds * clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_epsilon(sigma: float, delta: float, clip: float, rounds: int) -> float:
    """The epsilon that the paper's formula names for ``sigma``; its inverse."""
    non_negative(sigma=sigma)
    if sigma == 0:
        return math.inf
    return paper_sigma(1.0, delta, clip, rounds) / sigma


def reference_epsilon(
    noise_multiplier: float,
    releases: int,
    delta: float = DELTA,
    *,
    method: Literal["pld", "rdp"] = "pld",
    sampling: float = 1.0,
) -> float:
    """The same question asked of Google's dp-accounting (extra ``audit``).

    ``noise_multiplier`` is sigma over sensitivity. PLD is numerically exact and
    also knows Poisson sampling with probability ``sampling``; RDP is an upper
    bound. For checks and for sampled rounds; ``epsilon_of`` needs neither.
    """
    positive(noise_multiplier=noise_multiplier, sampling=sampling)
    unit_interval(sampling=sampling)
    whole(1, releases=releases)
    one_of(("pld", "rdp"), method=method)
    _check_delta(delta)
    try:
        dp = import_module("dp_accounting")
    except ImportError:
        raise SettingsError(
            "this check needs dp-accounting: install the extra 'audit' "
            "(pip install 'epifalcon[audit]')"
        ) from None
    event = dp.GaussianDpEvent(noise_multiplier)
    if sampling < 1:
        event = dp.PoissonSampledDpEvent(sampling, event)
    package = import_module(f"dp_accounting.{method}")
    accountants = {"pld": "PLDAccountant", "rdp": "RdpAccountant"}
    accountant = getattr(package, accountants[method])()
    accountant.compose(event, releases)
    return float(accountant.get_epsilon(delta))


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
class Uploads(checks.Checked):
    """What a person uploads at places, how often, and how strict the promise is.

    One noised row in each round, for each layer and slot: rounds x layers releases for
    a visit, times the slots of a day for a day, times all slots for the person.

    >>> asked = Uploads(clip=0.1, rounds=500, layers=1, slots=168)
    >>> round(asked.cost(0.2).person)
    11188
    >>> round(asked.sigma_for(8.0, "person"), 1)
    18.9
    """

    clip: checks.Positive = 0.1
    rounds: checks.Count = 500
    layers: checks.Count = 2
    slots: checks.Count = 168
    """Of a person's whole trace."""
    slots_per_day: checks.Count = 12
    delta: float = DELTA
    paper_delta: float = PAPER_DELTA
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_delta(self.delta)
        _check_delta(self.paper_delta, "paper_delta")
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


def _log_delta(x: float, mu: float) -> float:
    """Log of phi(x) (h(x) - h(x + mu)), h = Mills' ratio; needs x >= -mu/2."""
    if x < -1:
        # h overflows far to the left, where the plain difference loses nothing.
        second = math.exp(_log_phi(x)) * _mills(x + mu)
        return math.log(math.exp(float(log_ndtr(-x))) - second)
    if mu < 1e-4 * max(1.0, x):
        # The two ratios would cancel; the slope between them says the same.
        x, far = x + mu / 2, x
        fall = -2 * math.log(x) if x > 1e3 else math.log(1 - x * _mills(x))
        return _log_phi(far) + math.log(mu) + fall
    return _log_phi(x) + math.log(_mills(x) - _mills(x + mu))


def _log_phi(x: float) -> float:
    return -0.5 * x * x - _LOG_ROOT_TWO_PI


def _mills(x: float) -> float:
    return _ROOT_HALF_PI * float(erfcx(x / math.sqrt(2)))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    if low >= high or function(high) == 0:
        return high
    if function(low) == 0:
        return low
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _check_delta(delta: float, name: str = "delta") -> None:
    positive(**{name: delta})
    if delta >= 1:
        raise SettingsError(f"{name}={delta} must be less than 1")


def _check_mu(mu: float) -> None:
    if mu != math.inf:
        non_negative(mu=mu)
