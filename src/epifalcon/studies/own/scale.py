"""Time, memory and accuracy by the number of people; two graphs by their size."""

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.study import Cell, Column, Drawn, Scale, Study
from epifalcon.studies.study_figures import Panel, points
from epifalcon.studies.study_reading import ends, mean
from epifalcon.studies.towns import SARS
from epifalcon.types import Plain

SIZES = {
    "hamlet": {500: 100, 1000: 200, 2000: 400},
    "full": {2000: 400, 15_738: 3127, 50_000: 5000, 200_000: 10_000, 1_000_000: 20_000},
}
"""Regions by people."""
ROUNDS = 100
_COUNTED = "soft-dct-ratio"
"""Runs everywhere, so that graphs are measured on its runs."""
_MOST = {"gcn": 50_000, "falcon": 200_000}
"""People that a method is run on at most."""
_METHODS = ("hbp", FIELD, "hgnn", "gcn", "falcon")
_TOWN = 5000
"""Up to so many people the city is built as the hamlet."""


def _cells(scale: Scale) -> list[Cell]:
    made = []
    for people, regions in SIZES[scale].items():
        base = SARS["hamlet" if people <= _TOWN else "full"]
        words = (
            f"city.people={people}",
            f"city.regions={regions}",
            "outbreak.seed_share=0.02",
            f"model.rounds={ROUNDS}",
        )
        methods = [one for one in _METHODS if people <= _MOST.get(one, people)]
        for ending, chosen, then in (
            (", graphs", (_COUNTED,), "sizes"),
            ("", tuple(methods), None),
        ):
            made.append(
                Cell(
                    label=f"{people:,} people{ending}",
                    preset=base.preset,
                    overrides=(*base.overrides, *words),
                    methods=chosen,
                    facts={"people": people, "regions": regions},
                    then=then,  # type: ignore[arg-type]
                )
            )
    return made


def _draw(result: Plain) -> dict[str, Drawn]:
    rows, people = result["rows"], ("facts", "people")
    costs = [
        Panel(
            title=title,
            xlabel="people",
            ylabel=label,
            series=points(rows, people, part),
            log_x=True,
            log_y=log_y,
        )
        for title, label, part, log_y in (
            ("Time", "CPU seconds", ("figures", "cpu_seconds"), True),
            ("Memory", "MB at most", ("figures", "peak_rss_mb"), True),
            ("Accuracy", "AUC", ("metrics", "auc"), False),
        )
    ]
    graphs = {
        name: listed
        for name, key in (
            ("person and place, by window (hypergraph)", "incidences"),
            ("pairs of people who met (contact graph)", "contacts"),
            ("meetings in all", "meetings"),
        )
        for listed in points(rows, people, ("figures", key)).values()
    }
    size = Panel(
        title="What a graph must hold",
        xlabel="people",
        ylabel="entries",
        series=graphs,
        log_x=True,
        log_y=True,
    )
    captions = (
        "CPU seconds, memory and AUC by the number of people.",
        (
            "Entries of the hypergraph and of the graph of who met whom, by people: "
            "the first grow with visits, the second faster."
        ),
    )
    drawn = {
        "scale": (study_figures.lines(costs), captions[0]),
        "graphs": (study_figures.lines([size]), captions[1]),
    }
    return {
        name: Drawn(figure, caption)
        for name, (figure, caption) in drawn.items()
        if figure is not None
    }


def _read(result: Plain) -> list[str]:
    """How time grows with the number of people, and how large the graphs are."""
    rows = result["rows"]
    sizes = [row["facts"]["people"] for row in rows if row["seeds"]]
    if not sizes or sizes[0] == sizes[-1]:
        return []
    spent = ends(rows, "people", lambda row: mean(row, "figures", "cpu_seconds"))
    grown = "; ".join(
        f"{title} {first:,.1f} to {last:,.1f}" for title, (first, last) in spent.items()
    )
    told = []
    if spent:
        told.append(
            f"CPU seconds from {sizes[0]:,} people to the most that each was run on, "
            f"up to {sizes[-1]:,}: {grown}."
        )
    counted = [row for row in rows if mean(row, "figures", "contacts") is not None]
    if counted:
        entries = mean(counted[-1], "figures", "incidences") or 0.0
        pairs = mean(counted[-1], "figures", "contacts") or 0.0
        told.append(
            f"At {counted[-1]['facts']['people']:,} people the hypergraph holds "
            f"{entries:,.0f} entries, the graph of who met whom {pairs:,.0f} pairs."
        )
    return told


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        (
            f"HGNN and Falcon train for {ROUNDS} rounds at most, so that sizes "
            "compare; 2 % of people start the outbreak"
        ),
        "Pairs are counted where they can be written down; meetings always are",
    )


STUDY = Study(
    name="scale",
    title="Size",
    what="Time, memory and accuracy by people; hypergraph against contact graph.",
    shows="the claim of computational complexity",
    cells=_cells,
    draw=_draw,
    read=_read,
    metrics=("auc", "dep", "f1"),
    columns=(
        Column("cpu_seconds", "CPU seconds", 1),
        Column("peak_rss_mb", "peak MB", 0),
        Column("incidences", "incidences", 0, on_screen=False),
        Column("contacts", "pairs met", 0, on_screen=False),
        Column("meetings", "meetings", 0, on_screen=False),
    ),
    seeds={"hamlet": 1, "full": 1},
    notes=_notes,
)
