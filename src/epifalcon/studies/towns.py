"""The towns that studies are run in, by scale, and settings that studies share."""

from collections.abc import Mapping
from typing import Final

from epifalcon.methods.registry import entries
from epifalcon.reports.paper_values import Row
from epifalcon.studies.study import Cell, Column, Scale

PAPER: Final = ("privacy.mode=paper",)
"""Falcon as published: clip .1, epsilon 1 by their formula, two pseudo traces."""
EVERYBODYS: Final = ("region.macro_cases=all", "region.cases.measure=count")
"""The region model sees the cases of hidden people too: the paper's leak."""
TRUE_FACTORS: Final = "hbp-true-factors"
"""A ceiling where regions differ."""
OTHER_DATA: Final = (
    "The paper's figures are of its own 15,738 people, whatever stands beside them"
)
EPSILON: Final = Column("epsilon_person", "epsilon of a person", on_screen=False)
"""The true epsilon, of methods that noise what leaves a device."""
SARS: Final[Mapping[Scale, Cell]] = {
    "hamlet": Cell(preset="hamlet"),
    "full": Cell(preset="larger-sars"),
}
"""Towns without methods, on which studies build their cells; at full size the paper's
Larger scenario."""
OMICRON: Final[Mapping[Scale, Cell]] = {
    "hamlet": SARS["hamlet"].also(("pathogen=omicron", "outbreak.seed_count=10")),
    "full": Cell(preset="larger-omicron"),
}


def all_methods() -> tuple[str, ...]:
    """Return every method of the package but HBP with true factors."""
    ours = (one.name for one in entries() if not one.is_own)
    return tuple(name for name in ours if name != TRUE_FACTORS)


def printed(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return the paper's figures by our names of methods, and by metric."""
    return {name.replace("_", "-"): row.figures for name, row in rows.items()}
