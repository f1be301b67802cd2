"""The towns that studies are run in, by scale, and settings that studies share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from epifalcon.methods.registry import entries
from epifalcon.reports.paper_values import Row
from epifalcon.studies.study import Against, Cell, FollowUp, Scale
from epifalcon.types import Plain

PAPER: Final = ("privacy.mode=paper",)
"""Falcon as published: clip .1, epsilon 1 by their formula, two pseudo traces."""
EVERYBODYS: Final = ("region.macro_cases=all", "region.cases.measure=count")
"""The region model sees the cases of hidden people too: the paper's leak."""
TRUE_FACTORS: Final = "hbp-true-factors"
"""A ceiling where regions differ."""
OTHER_DATA: Final = (
    "The paper's figures are of its own 15,738 people, whatever stands beside them"
)


@dataclass(frozen=True)
class Town:
    """A preset with overrides, in which studies place their cells."""

    preset: str
    overrides: tuple[str, ...] = ()

    def cell(
        self,
        label: str,
        methods: tuple[str, ...],
        overrides: Sequence[str] = (),
        *,
        group: str = "",
        facts: Plain | None = None,
        titles: Mapping[str, str] | None = None,
        against: tuple[Against, ...] = (),
        published: Mapping[str, Mapping[str, float]] | None = None,
        then: FollowUp | None = None,
        most_seeds: int | None = None,
    ) -> Cell:
        """Return a cell of a study here, with further overrides."""
        return Cell(
            label=label,
            preset=self.preset,
            methods=methods,
            overrides=(*self.overrides, *overrides),
            group=group,
            facts=facts or {},
            titles=titles or {},
            against=against,
            published=published or {},
            then=then,
            most_seeds=most_seeds,
        )


SARS: Final[Mapping[Scale, Town]] = {
    "hamlet": Town("hamlet"),
    "full": Town("larger-sars"),
}
"""The paper's Larger scenario."""
OMICRON: Final[Mapping[Scale, Town]] = {
    "hamlet": Town("hamlet", ("pathogen=omicron", "outbreak.seed_count=10")),
    "full": Town("larger-omicron"),
}


def all_methods() -> tuple[str, ...]:
    """Return every method of the package, for towns whose regions are alike.

    There HBP with the true factors is HBP.
    """
    ours = (one.name for one in entries() if not one.is_own)
    return tuple(name for name in ours if name != TRUE_FACTORS)


def printed(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return the paper's figures by our names of methods, and by metric."""
    return {name.replace("_", "-"): row.figures for name, row in rows.items()}
