"""The towns that studies are run in, by scale, and words that several studies share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from epifalcon.methods.registry import entry, names
from epifalcon.reports.paper_values import Row
from epifalcon.studies.study import Against, Cell, FollowUp, Scale
from epifalcon.types import Plain

PAPER: Final = ("privacy.mode=paper",)
"""Falcon as published: clip .1, epsilon 1 by their formula, two pseudo traces."""
EVERYBODYS: Final = ("region.macro_cases=all", "region.cases.measure=count")
"""The region model sees the cases of hidden people too: the paper's leak."""
REPRESENTATIVE: Final = (
    *("dct", "soft-dct-ratio", "hbp", "gcn", "hgnn", "graph-wavenet", "fedpregnn"),
)
"""Rivals that sweeps are run for: of each kind one."""
TRUE_FACTORS: Final = "hbp-true-factors"
"""A ceiling where regions differ."""
OTHER_DATA: Final = (
    "The paper's figures are of its own 15,738 people, whatever stands beside them"
)


@dataclass(frozen=True)
class Town:
    """A preset, with what is changed in it."""

    preset: str
    overrides: tuple[str, ...] = ()

    def cell(
        self,
        label: str,
        methods: tuple[str, ...],
        words: Sequence[str] = (),
        *,
        group: str = "",
        facts: Plain | None = None,
        titles: Mapping[str, str] | None = None,
        against: tuple[Against, ...] = (),
        published: Mapping[str, Mapping[str, float]] | None = None,
        then: FollowUp | None = None,
        most_seeds: int | None = None,
    ) -> Cell:
        """Return a cell of a study here, with the settings ``words`` changed too."""
        return Cell(
            label=label,
            preset=self.preset,
            methods=methods,
            overrides=(*self.overrides, *words),
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
    """Every method that comes with the package, for towns whose regions are alike.

    There HBP with the true factors is HBP.
    """
    ours = (name for name in names() if entry(name).kind != "own")
    return tuple(name for name in ours if name != TRUE_FACTORS)


def printed(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """The paper's figures by our names of methods, and by metric."""
    return {name.replace("_", "-"): figures_of(row) for name, row in rows.items()}


def figures_of(row: Row) -> dict[str, float]:
    """What the paper prints of one row."""
    return {key: value for key, value in vars(row).items() if value is not None}
