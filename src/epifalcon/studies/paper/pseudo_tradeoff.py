"""Pseudo traces of five kinds: accuracy against what an attacker gets wrong."""

from typing import Any

from epifalcon.studies import study_figures
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.study_reading import mean
from epifalcon.studies.towns import PAPER, SARS
from epifalcon.types import Plain

GENERATORS = ("plausible", "uniform", "aggregate", "walk", "recurring")
"""The paper's own, its three rivals, and ours."""
COPIES = (1, 5, 10)
PLACES = ("claimants", "moves", "recurrence", "moves and recurrence", "moves by sets")
_DRAWN = ("moves", "moves by sets")
"""The paper's attack, and the strongest of ours."""
_MEASURES = {"auc": "AUC", "f1": "best F1"}


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
        listed: dict[str, list[dict[str, Any]]] = {}
        for row in result["rows"]:
            if row["seeds"] and row["figures"].get(attack, {}).get("mean") is not None:
                point = {
                    "copies": row["facts"]["copies"],
                    attack: row["figures"][attack],
                    **{name: row["metrics"][name] for name in _MEASURES},
                }
                listed.setdefault(row["facts"]["generator"], []).append(point)
        if not listed:
            continue
        title = "Pseudo traces: 1, 5 and 10 of them, no region model"
        error = (attack, f"share that the attack by {attack} gets wrong")
        picture = study_figures.tradeoff(listed, error, _MEASURES, title)
        caption = (
            f"AUC and F1 against the share of true places that the attack by {attack} "
            "gets wrong, for 1, 5 and 10 pseudo traces of each kind, with 95 % "
            "intervals. Further right is more private, further up more useful."
        )
        drawn[f"tradeoff-{attack.replace(' ', '-')}"] = Drawn(picture, caption)
    return drawn


def _read(result: Plain) -> list[str]:
    """How well each kind hides places with most traces, and what it costs."""
    most, attack = max(COPIES), _DRAWN[-1]
    held = {
        row["facts"]["generator"]: (wrong, mean(row, "metrics", "auc") or 0.0)
        for row in result["rows"]
        if row["seeds"]
        and row["facts"]["copies"] == most
        and (wrong := mean(row, "figures", attack)) is not None
    }
    if not held:
        return []
    order = sorted(held, key=lambda name: -held[name][0])
    told = ", ".join(f"{name} {held[name][0]:.0%}" for name in order)
    aucs = ", ".join(f"{name} {held[name][1]:.3f}" for name in order)
    return [
        (
            f"With {most} pseudo traces the attack by `{attack}` gets so many of the "
            f"true places wrong: {told}. A blind guess: {most / (most + 1):.0%}."
        ),
        f"The AUC with them: {aucs}.",
    ]


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
    read=_read,
    metrics=("auc", "f1", "dep"),
    columns=(
        Column("random", "blind guess"),
        *(Column(name, name) for name in PLACES),
    ),
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
