"""Tables 6 and 7 under the authors' protocol, then stepwise to one without leaks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from epifalcon.reports import study_plots
from epifalcon.reports.paper_values import ABLATION
from epifalcon.studies.paper.noise import table_6
from epifalcon.studies.scenarios import EPSILON, PAPER, SARS
from epifalcon.studies.study import Cell, Column, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

_PARTS, _NOISE, _LADDER = "Table 7", "Table 6", "From the program to an honest protocol"
_HGNN, _WHOLE, _BARE = "HGNN", "Falcon whole", "without privacy"
PEOPLE, _SIGMA_PEOPLE = 20, 10
"""Number of people recorded for attacks, in the ladder and in table 6."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "without region model": ("region.macro_cases=none",),
    "without pseudo traces": ("pseudo.pseudo_copies=0",),
    "without perturbation": ("privacy.upload_sigma=0",),
    _BARE: ("privacy.mode=off",),
    _WHOLE: (),
}
"""Overrides of the rows of table 7, by title."""
LADDER: Mapping[str, tuple[str, ...]] = {
    "the authors' protocol": (),
    "reported cases": ("region.macro_cases=reported",),
    "round chosen on validation people": ("stopping.selected_on=validation",),
    "DCRNN for the GRU": (
        "region.network.kind=dcrnn",
        "region.training.learning_rate=0.01",
        "region.cases.measure=share",
        "region.scale_states=true",
    ),
    "gaps not filled": ("city.fill_gaps=false", "city.observed_share=1"),
    "gradients of algorithm 2": ("model.gradient_path=local",),
    "rows clipped": ("privacy.clipped=row",),
    "noise for each upload and coordinate": ("privacy.upload_noise=upload",),
    "DPSGD": ("privacy.gradient_noise=gradient",),
}
"""Overrides of each step; they are added to those of all earlier steps."""
PLACES = (
    *("norm", "energy", "consistency", "counts", "uploads and counts", "claimants"),
    *("moves", "recurrence", "moves and recurrence", "moves by sets", "everything"),
)
STRONGEST = "strongest"


def _cells(scale: Scale) -> list[Cell]:
    """Return the cells of tables 7 and 6, of the ladder, and of reference methods."""
    town = replace(SARS[scale], preset=f"{SARS[scale].preset}+authors")

    def cell_of(label: str, overrides: Sequence[str], method: str = "falcon") -> Cell:
        titles, cell = {method: label}, town.also(overrides)
        return replace(cell, label=label, methods=(method,), titles=titles)

    against = (Reference(_HGNN, _HGNN, "hgnn"), Reference(_BARE, _BARE))
    published = {"hgnn": ABLATION["hgnn"].values}
    cells = [replace(cell_of(_HGNN, (), "hgnn"), group=_PARTS, published=published)]
    for title, changed in PARTS.items():
        row = ABLATION["falcon" if title == _WHOLE else title]
        published, cell = {"falcon": row.values}, cell_of(title, changed)
        cells.append(replace(cell, group=_PARTS, against=against, published=published))
    cells += [
        replace(cell, titles={"falcon": cell.label})
        for cell in table_6(replace(town, group=_NOISE), _SIGMA_PEOPLE)
    ]
    overrides, before = tuple[str, ...](), tuple[Reference, ...]()
    for step, (title, changed) in enumerate(LADDER.items()):
        overrides, label = (*overrides, *changed), f"{step} {title}"
        cells.append(
            replace(
                cell_of(label, (*overrides, f"view.people={PEOPLE}")),
                group=_LADDER,
                facts={"step": step, "changed": " ".join(changed)},
                against=before,
                then="audit",
            )
        )
        before = (Reference("the step before", label),)
    label, ours = f"{len(LADDER)} our defaults", SARS[scale]
    last = replace(
        cells[-1],
        label=label,
        preset=ours.preset,
        overrides=(*ours.overrides, *PAPER, f"view.people={PEOPLE}"),
        titles={"falcon": label},
        facts={"step": len(LADDER), "changed": f"preset {ours.preset}, mode paper"},
        against=before,
    )
    references = replace(
        town,
        label="references",
        methods=("soft-dct-ratio", "hbp", "oracle"),
        group="The same people without any leak",
    )
    return [*cells, last, references]


def _draw(result: Plain) -> dict[str, StudyPlot]:
    def rows(group: str) -> list[Plain]:
        return [row for row in result["rows"] if row["group"] == group and row["seeds"]]

    title = "Table 7 under the authors' protocol"
    table_7 = StudyPlot(
        study_plots.dots(rows(_PARTS), ("auc", "f1"), title),
        "Mean and 95 % interval of each row, and the paper's value (hollow diamond). "
        "The region model used the cases of all people, and the round was selected on "
        "test people.",
    )
    ladder = StudyPlot(
        study_plots.dots(rows(_LADDER), ("auc",), "Steps to an honest protocol"),
        "AUC after each step, which includes all earlier steps. The first is the "
        "authors' protocol, the last our defaults.",
    )
    return {"table-7": table_7, "ladder": ladder}


STUDY = Study(
    name="authors",
    cpu_hours={"hamlet": 0.09, "full": 1.48},
    title="The authors' protocol",
    what="Tables 6 and 7 under the protocol of the authors' program, then stepwise to "
    "a protocol without leaks.",
    shows="tables 6 and 7",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "f1", "dep"),
    columns=(
        Column(STRONGEST, "strongest attack"),
        Column("norm", "norm attack"),
        *(Column(name, name, in_terminal=False) for name in PLACES if name != "norm"),
        EPSILON,
        Column("rounds", "rounds", 0, in_terminal=False),
    ),
    glossary={
        STRONGEST: "Share of true places that the best of all attacks on places does "
        "not name.",
        "norm": "Share of true places that the paper's own attack does not name: it "
        "assumes that the longest upload of a slot is the true one.",
    },
    seeds={"hamlet": 1, "full": 5},
    notes=(
        (
            "This protocol leaks labels: in tables 7 and 6 the region model used the "
            "cases of hidden people and the round was selected on test people, as in "
            "the program; the people are synthetic, the paper's are not public"
        ),
        (
            f"Attacks use what a server would record of {PEOPLE} people "
            f"({_SIGMA_PEOPLE} in table 6) if clients sent rows with the clipping and "
            "noise of the row"
        ),
        "No bound: rows are not clipped or their noise does not cover them",
    ),
)
