"""Number formats of all tables, pages and terminals; None is shown as a dash."""

import math

from epifalcon.types import Plain


def number(value: float | None, digits: int = 3) -> str:
    """Format with a fixed number of digits after the point."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits}f}"


def significant(value: float | None) -> str:
    """Format with three significant digits."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def signed(value: float | None) -> str:
    """Format a difference: three digits, a fourth if it would be shown as 0."""
    if value is None:
        return "-"
    return f"{value:+.{3 if value == 0 or abs(value) >= 0.0005 else 4}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share as a percentage."""
    return "-" if share is None else f"{share:.{digits}%}"


def epsilon(value: float | None) -> str:
    """Format an epsilon with four digits, or all digits of a large one."""
    if value is None or math.isinf(value):
        return "no bound"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def mean_and_half_width(interval: Plain, digits: int = 3) -> str:
    """Format an interval of ``mean``, ``low`` and ``high`` as mean ± half width."""
    if interval["mean"] is None or interval["high"] is None:
        return number(interval["mean"], digits)
    half = interval["high"] - interval["mean"]
    return f"{number(interval['mean'], digits)} ± {number(half, digits)}"


def plural(count: int, noun: str) -> str:
    """Return "1 seed", "5 seeds"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
