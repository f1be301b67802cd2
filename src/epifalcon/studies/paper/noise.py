"""Accuracy and attack errors by the noise scale of uploads: table 6."""

from collections.abc import Mapping
from dataclasses import replace

from epifalcon.reports import study_plots
from epifalcon.reports.paper_values import NOISE
from epifalcon.reports.study_plots import Panel, Point, points
from epifalcon.studies.scenarios import OTHER_DATA, PAPER, SARS
from epifalcon.studies.study import Cell, Column, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

PSEUDO = 9
PEOPLE: Mapping[Scale, int] = {"hamlet": 40, "full": 100}
"""Number of people whose uploads the server records."""
ATTACKS: Mapping[str, str] = {
    "norm": "Places: the longest upload of a slot is assumed to be the true one; the "
    "paper's attack.",
    "energy": "Places: the same with squared norms added up over all rounds.",
    "consistency": "Places: the row repeated at all true places.",
    "counts": "Places: counts at a place, compared with the people claiming it.",
    "claimants": "Places: usual visits, compared with the people claiming the place.",
    "moves": "Places: likelihood under the population's mobility; the paper's attack.",
    "recurrence": "Places: the place claimed most often at this hour of other days.",
    "moves and recurrence": "Places: both, weighted by a simulated city of the "
    "attacker.",
    "moves by sets": "Places: moves, with equal true places in slots with equal "
    "claims.",
    "everything": "Places: uploads, counts and moves together.",
    "tested from gradients": "People: who was tested, by the gradients they send.",
    "result from gradients": "People: who tested positive, by gradients.",
    "tested from rows": "People: who was tested, by how their rows drift.",
    "result from rows": "People: who tested positive, by how their rows drift.",
}
"""Description of each attack; its column in the table is its error rate."""
_PLOTTED = (
    *("norm", "everything", "consistency", "result from rows"),
    *("moves and recurrence", "moves"),
)
"""Plotted attacks: the two of the paper, and the strongest others."""
_IN_TERMINAL = ("norm", "consistency", "everything")


def table_6(town: Cell, people: int) -> list[Cell]:
    """Return one audited cell of Falcon for each noise scale of table 6."""
    town = town.also((f"pseudo.pseudo_copies={PSEUDO}", f"view.people={people}"))
    return [
        replace(
            town.also((f"privacy.upload_sigma={sigma}",)),
            label=f"σ {sigma:g}",
            methods=("falcon",),
            facts={"upload_sigma": sigma},
            against=(Reference("σ 0", "σ 0"),),
            published={"falcon": row.values},
            then="audit",
        )
        for sigma, row in NOISE.items()
    ]


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    clear = replace(town, label="nothing private", methods=("hbp", "oracle"))
    return [clear, *table_6(town.also(PAPER), PEOPLE[scale])]


def _draw(result: Plain) -> dict[str, StudyPlot]:
    sigma = ("facts", "upload_sigma")
    rows = [row for row in result["rows"] if "upload_sigma" in row["facts"]]

    def line(part: str, name: str) -> list[Point]:
        found = points(rows, sigma, (part, name), share=True)
        return [one for listed in found.values() for one in listed]

    def printed(name: str) -> list[Point]:
        return [
            Point(row["facts"]["upload_sigma"], row["published"][name]) for row in rows
        ]

    accuracy = {"AUC": line("metrics", "auc"), "AUC, the paper's": printed("auc")}
    found = {name: listed for name in _PLOTTED if (listed := line("figures", name))}
    errors = study_plots.merge_equal(found)
    errors["norm, the paper's"] = printed("norm")
    panels = [
        Panel(title, "noise of uploads, σ", label, series)
        for title, label, series in (
            ("Accuracy", "AUC", accuracy),
            ("Attack errors", "share of wrong guesses", errors),
        )
    ]
    plot = StudyPlot(
        study_plots.lines(panels),
        "Left: AUC on hidden people by the noise of uploads. Right: share of wrong "
        "guesses of each attack; of blind guesses it is .9 for places and .5 for "
        "results. Attacks with equal errors share a line. Means, with 95 % intervals "
        "over several seeds.",
    )
    return {"noise": plot}


STUDY = Study(
    name="noise",
    cpu_hours={"hamlet": 0.27, "full": 1.37},
    title="Noise of uploads",
    what="Accuracy and attack errors by the noise of uploads, with nine pseudo places.",
    shows="table 6",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "f1", "dep"),
    columns=(
        *(Column(name, name, in_terminal=name in _IN_TERMINAL) for name in ATTACKS),
        Column("epsilon_person", "epsilon per person"),
        Column("rounds", "rounds", 0),
    ),
    glossary=ATTACKS,
    seeds={"hamlet": 2, "full": 3},
    notes=(
        OTHER_DATA,
        (
            "Columns of attacks are the share of true places not named, or of pairs of "
            f"people ranked wrongly, for {PEOPLE['full']} people ({PEOPLE['hamlet']} "
            "in the town), with nine pseudo places per true place: a blind guess is "
            "wrong in 90 % of places, and in half of the pairs of people"
        ),
    ),
)
