"""Accuracy and attack errors by the noise of uploads: table 6."""

from collections.abc import Mapping

from epifalcon.studies import study_figures
from epifalcon.studies.published_tables import NOISE
from epifalcon.studies.report import shown_epsilon
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.study_figures import Panel, Point, points
from epifalcon.studies.study_reading import mean
from epifalcon.studies.towns import OTHER_DATA, PAPER, SARS
from epifalcon.types import Plain

PSEUDO = 9
PEOPLE = {"hamlet": 40, "full": 100}
"""Of whom the server keeps notes."""
ATTACKS: Mapping[str, str] = {
    "norm": "Places: the longest upload of a slot is taken for the true one; the "
    "paper's attack.",
    "energy": "Places: the same with squared norms added up over all rounds.",
    "consistency": "Places: the row that comes back at all true places.",
    "counts": "Places: how many are at a place, of those who claim it.",
    "claimants": "Places: how many usually are at a place, of those who claim it.",
    "moves": "Places: what the population's mobility makes likely; the paper's.",
    "recurrence": "Places: the place claimed most at this hour of other days.",
    "moves and recurrence": "Places: both, weighed on a city of the attacker's own.",
    "moves by sets": "Places: moves, slots with equal claims having equal truths.",
    "everything": "Places: uploads, counts and moves together.",
    "tested from gradients": "People: who was tested, by the gradients they send.",
    "result from gradients": "People: who tested positive, by gradients.",
    "tested from rows": "People: who was tested, by how their rows drift.",
    "result from rows": "People: who tested positive, by how their rows drift.",
}
"""Each attack, and what it goes by."""
_WRONG = (
    "What attacks get wrong: share of true places not named, or of pairs of people "
    "ranked wrongly"
)
_ON_SCREEN = ("norm", "consistency", "everything")
_TOLD = ("norm", "everything")
"""The paper's attack, and all that the server knows together."""
_FEW = (
    *("norm", "everything", "consistency", "result from rows"),
    *("moves and recurrence", "moves"),
)
"""Drawn: the paper's two, and those that decide."""


def _cells(scale: Scale) -> list[Cell]:
    town = SARS[scale]
    references = Cell(
        label="nothing private",
        preset=town.preset,
        overrides=town.overrides,
        methods=("hbp", "oracle"),
    )
    made = [references]
    for row in NOISE:
        words = (
            f"privacy.upload_sigma={row.upload_sigma}",
            f"pseudo.pseudo_copies={PSEUDO}",
            f"view.people={PEOPLE[scale]}",
        )
        figures = {"auc": row.auc, "f1": row.f1, "dep": row.dep}
        made.append(
            Cell(
                label=f"σ {row.upload_sigma:g}",
                preset=town.preset,
                overrides=(*town.overrides, *PAPER, *words),
                methods=("falcon",),
                facts={"upload_sigma": row.upload_sigma},
                against=(Against("σ 0", "σ 0"),),
                published={"falcon": {**figures, "norm": row.attack_error}},
                then="audit",
            )
        )
    return made


def _noised(result: Plain) -> list[Plain]:
    """Falcon's rows, by noise."""
    return [row for row in result["rows"] if "upload_sigma" in row["facts"]]


def _draw(result: Plain) -> dict[str, Drawn]:
    sigma = ("facts", "upload_sigma")
    rows = _noised(result)
    ours = points(rows, sigma, ("metrics", "auc"))
    quality = {
        "AUC": [one for listed in ours.values() for one in listed],
        "AUC, the paper's": _printed(rows, "auc"),
    }
    found = {
        attack: listed
        for attack in _FEW
        for listed in points(rows, sigma, ("figures", attack), share=True).values()
    }
    errors = study_figures.together(found)
    errors["norm, the paper's"] = _printed(rows, "norm")
    panels = [
        Panel(
            title=title,
            xlabel="noise of uploads, σ",
            ylabel=label,
            series=series,
            dashed=frozenset({"AUC, the paper's", "norm, the paper's"}),
        )
        for title, label, series in (
            ("Accuracy", "AUC", quality),
            ("What attacks get wrong", "share of wrong guesses", errors),
        )
    ]
    figure = study_figures.lines(panels)
    seeds = max((len(row["seeds"]) for row in rows), default=0)
    caption = (
        "Left: AUC on hidden people by the noise of uploads. Right: the share that "
        "each attack gets wrong, a blind guess being .9 for places and .5 for results; "
        "attacks that are wrong equally often are one line. "
        + (f"Mean and 95 % interval of {seeds} seeds." if seeds > 1 else "One seed.")
    )
    return {} if figure is None else {"noise": Drawn(figure, caption)}


def _printed(rows: list[Plain], name: str) -> list[Point]:
    told = [(row["facts"]["upload_sigma"], row["published"][name]) for row in rows]
    return [Point(sigma, value) for sigma, value in told]


def _read(result: Plain) -> list[str]:
    rows = [row for row in _noised(result) if row["seeds"]]
    if len(rows) < 2:
        return []
    first, last = rows[0], rows[-1]
    least, most = first["cell"], last["cell"]
    auc = [mean(row, "metrics", "auc") or 0.0 for row in (first, last)]
    told = [f"From {least} to {most} the AUC goes from {auc[0]:.3f} to {auc[1]:.3f}."]
    held = [
        (attack, mean(first, "figures", attack), mean(last, "figures", attack))
        for attack in _TOLD
    ]
    parts = [
        f"`{attack}` gets {before:.0%} of places wrong at {least} and {after:.0%} at "
        f"{most}"
        for attack, before, after in held
        if before is not None and after is not None
    ]
    if parts:
        blind = PSEUDO / (PSEUDO + 1)
        told.append(f"Of the attacks {'; '.join(parts)}. A blind guess: {blind:.0%}.")
    epsilon = mean(last, "figures", "epsilon_person")
    if epsilon is not None:
        told.append(
            f"At {most} the true epsilon of a person is {shown_epsilon(epsilon)}."
        )
    return told


def _notes(scale: Scale) -> tuple[str, ...]:
    return (
        OTHER_DATA,
        (
            f"Attacks are on the notes of {PEOPLE[scale]} people, with nine pseudo "
            "places to a true one: a blind guess is wrong in 90 % of places, and in "
            "half of the pairs of people"
        ),
    )


STUDY = Study(
    name="noise",
    title="Noise of uploads",
    what="Accuracy and attack errors by the noise of uploads, with nine pseudo places.",
    shows="table 6",
    cells=_cells,
    draw=_draw,
    read=_read,
    metrics=("auc", "f1", "dep"),
    columns=(
        *(
            Column(name, name, on_screen=name in _ON_SCREEN, apart=_WRONG)
            for name in ATTACKS
        ),
        Column("epsilon_person", "epsilon of a person"),
        Column("rounds", "rounds", 0),
    ),
    words=ATTACKS,
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
