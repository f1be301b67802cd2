"""Base scenarios of studies by scale, and overrides shared by studies."""

from collections.abc import Mapping
from typing import Final

from epifalcon.methods.registry import entries
from epifalcon.reports.paper_values import Row
from epifalcon.studies.study import Cell, Column, Scale

PAPER: Final = ("privacy.mode=paper",)
"""Falcon as published: clip 0.1, epsilon 1 by its formula, two pseudo traces."""
EVERYBODYS: Final = ("region.macro_cases=all", "region.cases.measure=count")
"""The region model also uses cases of hidden people: the label leak of the paper."""
TRUE_FACTORS: Final = "hbp-true-factors"
"""Upper bound in scenarios with region-specific transmission."""
OTHER_DATA: Final = (
    "The paper's values are for its own 15,738 people, not for the people of the row"
)
EPSILON: Final = Column("epsilon_person", "epsilon per person", in_terminal=False)
"""True epsilon per person of methods that add noise to uploads."""
SARS: Final[Mapping[Scale, Cell]] = {
    "hamlet": Cell(preset="hamlet"),
    "full": Cell(preset="larger-sars"),
}
"""Cells without methods, from which studies derive theirs; at full size the Larger
scenario of the paper."""
OMICRON: Final[Mapping[Scale, Cell]] = {
    "hamlet": SARS["hamlet"].also(("pathogen=omicron", "outbreak.seed_count=10")),
    "full": Cell(preset="larger-omicron"),
}


def all_methods() -> tuple[str, ...]:
    """Return all built-in methods except HBP with true factors."""
    built_in = (one.name for one in entries() if not one.is_own)
    return tuple(name for name in built_in if name != TRUE_FACTORS)


def printed(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return the values printed in the paper, by registered method and metric."""
    return {name.replace("_", "-"): row.values for name, row in rows.items()}
