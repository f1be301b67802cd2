"""Exact composition of Gaussian releases, and the noise needed for an epsilon.

Gaussian releases in which everybody takes part compose into one Gaussian
mechanism with mu^2 = sum of (sensitivity / sigma)^2, in any order and with any
adaptive dependence of later on earlier ones (Dong, Roth and Su 2022, corollary
3.3). Its (epsilon, delta) curve is known in closed form (Balle and Wang 2018,
theorem 8)::

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

``paper_sigma`` and ``paper_epsilon`` are the paper's own formula.

>>> round(epsilon_of(gaussian_mu(0.1, 0.2, releases=500), delta=1e-6), 2)
114.81
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, log_ndtr, ndtri

from epifalcon import checks
from epifalcon.checks import extra_module, non_negative, positive, whole
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
"""Default delta: well below 1 / number of people."""

PAPER_DELTA = 0.001
"""Delta used in the paper's own formula; exact accounting uses ``DELTA``."""
_MOST_FOR_PLD = 500.0
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)


def _check_delta(**values: float) -> None:
    positive(**values)
    for name, value in values.items():
        if value >= 1:
            raise SettingsError(f"{name}={value} must be less than 1")


Delta = Annotated[float, _check_delta]


def gaussian_mu(sensitivity: float, sigma: float, releases: int = 1) -> float:
    """Return the total mu of ``releases`` Gaussian releases of equal noise.

    ``releases`` is layers x rounds x slots of a unit; ``sensitivity`` the maximum L2
    distance of one release between neighbours. ``sigma=0`` gives infinity.
    """
    non_negative(sensitivity=sensitivity, sigma=sigma)
    whole(0, releases=releases)
    if sensitivity == 0 or releases == 0:
        return 0.0
    return math.inf if sigma == 0 else math.sqrt(releases) * (sensitivity / sigma)


def log_delta_of(epsilon: float, mu: float) -> float:
    """Return the log of the smallest delta at which ``mu`` satisfies ``epsilon``.

    With Mills' ratio h, the closed form is phi(x) (h(x) - h(x + mu)) at
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
    """Return the smallest epsilon of Gaussian releases of total ``mu`` at ``delta``."""
    _check_mu(mu)
    _check_delta(delta=delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or _log_delta(-mu / 2, mu) <= math.log(delta):
        return 0.0
    # delta <= Phi(-x), so the root is left of the normal quantile; the margin is for
    # rounding. Left of -40, delta is 1 to machine precision.
    quantile = -float(ndtri(delta))
    low, high = max(-mu / 2, -40.0), quantile + 1e-6 * (1 + abs(quantile))
    wanted = math.log(delta)
    x = _root(lambda x: _log_delta(x, mu) - wanted, low, high)
    return max(0.0, mu * (x + mu / 2))


def mu_for(epsilon: float, delta: float = DELTA) -> float:
    """Return the largest total mu that satisfies (``epsilon``, ``delta``)."""
    non_negative(epsilon=epsilon)
    _check_delta(delta=delta)
    if epsilon == 0:
        return 2 * math.sqrt(2) * float(erfinv(delta))
    quantile = -float(ndtri(delta))
    root = math.hypot(quantile, math.sqrt(2 * epsilon))
    # Two equivalent forms; each has no cancellation on its side.
    low = 2 * epsilon / (quantile + root) if quantile > 0 else root - quantile
    wanted = math.log(delta)
    low, high = low * (1 - 1e-9), max(2 * low, math.ulp(0.0))
    while log_delta_of(epsilon, high) < wanted:
        high *= 2
    return _root(lambda mu: log_delta_of(epsilon, mu) - wanted, low, high)


def both_honest_epsilon(epsilon: float, delta: float = DELTA) -> float:
    """Return the epsilon of two honest aggregators, each of whose noise gives one.

    Both add the whole noise for ``epsilon``, so the variance doubles.
    """
    return epsilon_of(mu_for(epsilon, delta) / math.sqrt(2), delta)


def sigma_for(
    epsilon: float, delta: float = DELTA, sensitivity: float = 1.0, releases: int = 1
) -> float:
    """Return the smallest sigma for which all ``releases`` give (epsilon, delta).

    ``releases`` is the number of vectors that the protected unit can change in the
    whole run: rounds x layers, times the slots of a day or of a person.
    """
    positive(sensitivity=sensitivity)
    whole(1, releases=releases)
    return sensitivity * math.sqrt(releases) / mu_for(epsilon, delta)


def paper_sigma(epsilon: float, delta: float, clip: float, rounds: int) -> float:
    """Return the paper's sigma_l = L C sqrt(2 ln(1.25 / delta)) / epsilon.

    A sum of ``rounds`` textbook bounds, valid for epsilon below 1 and for one visit
    only, so it does not hold for a whole run: see ``epsilon_of``.
    """
    positive(epsilon=epsilon, clip=clip)
    _check_delta(delta=delta)
    whole(1, rounds=rounds)
    return rounds * clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_epsilon(sigma: float, delta: float, clip: float, rounds: int) -> float:
    """Return the epsilon of the paper's formula; the inverse of ``paper_sigma``."""
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
) -> float:
    """Compute epsilon with Google's dp-accounting (extra ``audit``).

    ``noise_multiplier`` is sigma over sensitivity. PLD is numerically exact, RDP an
    upper bound.
    """
    dp: Any = extra_module("dp_accounting", "audit", "this check")
    package = import_module(f"dp_accounting.{method}")
    accountants = {"pld": "PLDAccountant", "rdp": "RdpAccountant"}
    accountant = getattr(package, accountants[method])()
    accountant.compose(dp.GaussianDpEvent(noise_multiplier), releases)
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Total epsilon of all uploads by unit, and the epsilon of the paper's formula.

    All are infinite without noise.
    """

    sigma: float
    visit: float
    day: float
    person: float
    paper_formula: float


@dataclass(frozen=True, kw_only=True)
class Uploads(checks.Checked):
    """Number and sensitivity of the rows that a person uploads.

    One noised row per round, layer and slot: rounds x layers releases for
    a visit, times the slots of a day for a day, times all slots for the person.

    >>> uploads = Uploads(clip=0.1, rounds=500, layers=1, slots=168)
    >>> round(uploads.cost(0.2).person)
    11188
    >>> round(uploads.sigma_for(8.0, "person"), 1)
    18.9
    """

    clip: checks.Positive = 0.1
    rounds: checks.Count = 500
    layers: checks.Count = 2
    slots: checks.Count = 168
    """Number of slots of a person's whole trace."""
    slots_per_day: checks.Count = 12
    delta: Delta = DELTA
    paper_delta: Delta = PAPER_DELTA
    relation: Relation = "zero-out"

    @property
    def sensitivity(self) -> float:
        """Maximum L2 distance of one upload between neighbours."""
        terms = Terms(channel="upload", releases=self._each, relation=self.relation)
        return GaussianRelease(terms=terms, clip=self.clip, sigma=1.0).sensitivity

    def releases(self, unit: Unit) -> int:
        """Return the number of uploads, over all rounds, that ``unit`` can change."""
        return self.rounds * self.layers * self._each.of(unit)

    def cost(self, sigma: float) -> Cost:
        """Return the exact epsilon by unit at ``sigma``, and the paper's epsilon."""
        found = {
            unit: epsilon_of(
                gaussian_mu(self.sensitivity, sigma, self.releases(unit)), self.delta
            )
            for unit in UNITS
        }
        formula = paper_epsilon(sigma, self.paper_delta, self.clip, self.rounds)
        return Cost(sigma=sigma, paper_formula=formula, **found)

    def sigma_for(self, epsilon: float, unit: Unit) -> float:
        """Return the smallest sigma that gives ``epsilon`` for ``unit``."""
        positive(epsilon=epsilon)
        return sigma_for(epsilon, self.delta, self.sensitivity, self.releases(unit))

    def checked(self, sigma: float, unit: Unit) -> dict[str, float]:
        """Compute epsilon by PLD and RDP with dp-accounting (extra ``audit``).

        RDP is an upper bound. PLD is exact up to its grid, whose size grows with
        epsilon, so it is omitted above 500.
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
    """Return log(phi(x) (h(x) - h(x + mu))), h = Mills' ratio, for x >= -mu/2."""
    if x < -1:
        # h overflows for very negative x, where the plain difference is exact.
        second = math.exp(_log_phi(x)) * _mills(x + mu)
        return math.log(math.exp(float(log_ndtr(-x))) - second)
    if mu < 1e-4 * max(1.0, x):
        # The two ratios would cancel; use the slope between them.
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


def _check_mu(mu: float) -> None:
    if mu != math.inf:
        non_negative(mu=mu)
