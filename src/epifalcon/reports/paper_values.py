"""Values of the paper and of the authors' release, from ``paper_values.toml``.

The printed accuracy is not the best over thresholds, although the paper says so:
see ``accuracy_at_f1`` in ``evaluation.metrics``.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from epifalcon.checks import unit_interval


@dataclass(frozen=True)
class Row:
    """Values of one method; None is "-" in the paper, or a missing column."""

    dep: float | None = None
    auc: float | None = None
    f1: float | None = None
    accuracy: float | None = None
    bep: float | None = None
    norm: float | None = None
    """Error of the attack by gradient norm among one true and nine pseudo places."""

    def __post_init__(self) -> None:
        unit_interval(**self.values)

    @property
    def values(self) -> dict[str, float]:
        """The printed values by metric."""
        return {name: value for name, value in vars(self).items() if value is not None}


def _rows(table: Mapping[str, Any]) -> dict[str, Row]:
    return {name: Row(**values) for name, values in table.items()}


_FILE = resources.files("epifalcon.reports") / "paper_values.toml"
_STORED = tomllib.loads(_FILE.read_text(encoding="utf-8"))

OVERALL: Final = {name: _rows(table) for name, table in _STORED["overall"].items()}
"""Performance comparison, by preset and method."""
STAGE_DAYS: Final[Mapping[str, int]] = _STORED["stage_days"]
"""Day of each stage, counted from 1."""
STAGES: Final = {name: _rows(table) for name, table in _STORED["stages"].items()}
"""Before and after the outbreak, preset ``larger-omicron``, by stage and method."""
NOISE: Final = {float(sigma): row for sigma, row in _rows(_STORED["noise"]).items()}
"""Falcon by sigma of the upload, preset ``larger-sars``."""
ABLATION: Final = _rows(_STORED["ablation"])
"""Falcon without single components, preset ``larger-sars``."""
INFECTED_SHARE: Final[Mapping[str, float]] = _STORED["infected_share"]
"""Share of positives in the authors' released Larger labels (15,000 people)."""
DAILY_INFECTIOUS: Final[Mapping[str, list[int]]] = _STORED["daily_infectious"]
"""Mean infectious people on each of the 14 days, from the same release."""
