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


def delta_by_integration(epsilon: float, mu: float) -> float:
    """The hockey-stick integral of N(mu, 1) against N(0, 1), by quadrature."""
    with mpmath.workdps(40):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        grow = mpmath.exp(epsilon)

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, mu, 1) - grow * mpmath.npdf(x, 0, 1)

        steps = [start + step for step in (0, 1, 2, 4, 8, 16, 32)]
        return float(mpmath.quad(excess, [*steps, mpmath.inf]))
