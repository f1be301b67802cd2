"""The Gaussian mechanism's delta with 120 digits, straight from the definition."""

import mpmath


def log_delta(epsilon: float, mu: float) -> float:
    """log of Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu)."""
    # Far in the tail the two terms agree in many digits.
    with mpmath.workdps(120):
        eps, width = mpmath.mpf(epsilon), mpmath.mpf(mu)
        first = _normal(width / 2 - eps / width)
        second = mpmath.exp(eps) * _normal(-width / 2 - eps / width)
        return float(mpmath.log(first - second))


def _normal(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2
