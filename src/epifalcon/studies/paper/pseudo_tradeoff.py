"""Pseudo traces of five kinds: accuracy against what an attacker gets wrong."""

from typing import Any

from epifalcon.studies import figures
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.towns import PAPER, SARS
from epifalcon.types import Plain

GENERATORS = ("plausible", "uniform", "aggregate", "walk", "recurring")
"""The paper's own, its three rivals, and ours."""
COPIES = (1, 5, 10)
PLACES = ("claimants", "moves", "recurrence", "moves and recurrence", "moves by sets")
_DRAWN = ("moves", "moves by sets")
"""The paper's attack, and the strongest of ours."""


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    return [
        Cell(
            label=f"{generator} {copies}",
            preset=town.preset,
            overrides=(
                *town.overrides,
                *PAPER,
                f"pseudo.method={generator}",
                f"pseudo.pseudo_copies={copies}",
                "region.macro_cases=none",
            ),
            methods=("falcon",),
            facts={"generator": generator, "copies": copies},
            against=(Against(f"plausible {copies}", f"plausible {copies}"),),
            then="places",
        )
        for generator in GENERATORS
        for copies in COPIES
    ]


def _draw(result: Plain) -> dict[str, Drawn]:
    drawn = {}
    for attack in _DRAWN:
        error = f"share that the attack by {attack} gets wrong"
        listed: dict[str, list[dict[str, Any]]] = {}
        for row in result["rows"]:
            if row["seeds"] and row["figures"].get(attack, {}).get("mean") is not None:
                point = _point(row, attack, error)
                listed.setdefault(row["facts"]["generator"], []).append(point)
        if not listed:
            continue
        title = "Pseudo traces: 1, 5 and 10 of them, no region model"
        picture = figures.tradeoff(listed, error, ("AUC", "best F1"), title)
        caption = (
            f"AUC and F1 against the share of true places that the attack by {attack} "
            "gets wrong, for 1, 5 and 10 pseudo traces of each kind, with 95 % "
            "intervals."
        )
        drawn[f"tradeoff-{attack.replace(' ', '-')}"] = Drawn(picture, caption)
    return drawn


def _point(row: Plain, attack: str, error: str) -> dict[str, Any]:
    told = {
        error: row["figures"][attack],
        "AUC": row["metrics"]["auc"],
        "best F1": row["metrics"]["f1"],
    }
    spread = {
        name: (
            one["mean"],
            0.0 if one["low"] is None else one["mean"] - one["low"],
        )
        for name, one in told.items()
    }
    return {"copies": row["facts"]["copies"], **spread}


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        "The paper shows this as curves alone; the region model is off, as there",
        (
            "Attacks are on at most 2,000 people, the attacker having rehearsed on a "
            "city of its own"
        ),
    )


STUDY = Study(
    name="pseudo-tradeoff",
    title="Pseudo traces",
    what="Four generators and ours with 1, 5 and 10 traces: accuracy and attack error.",
    shows="the figure of privacy and utility",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "f1", "dep"),
    columns=(
        Column("random", "blind guess"),
        *(Column(name, name) for name in PLACES),
    ),
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
