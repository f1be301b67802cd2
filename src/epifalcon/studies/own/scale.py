"""Time, memory, accuracy and graph sizes by the number of people."""

from collections.abc import Mapping
from dataclasses import replace

from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import study_plots
from epifalcon.reports.study_plots import Panel, points
from epifalcon.studies.scenarios import SARS
from epifalcon.studies.study import Cell, Column, Scale, Study, StudyPlot
from epifalcon.types import Plain

SIZES: Mapping[Scale, Mapping[int, int]] = {
    "hamlet": {500: 100, 1000: 200, 2000: 400},
    "full": {2000: 400, 15_738: 3127, 50_000: 5000, 200_000: 10_000, 1_000_000: 20_000},
}
"""Number of regions by number of people."""
ROUNDS = 100
_MOST = {"gcn": 50_000, "falcon": 200_000}
"""Maximum number of people by method."""
_METHODS = ("hbp", FIELD, "hgnn", "gcn", "falcon")
_TOWN = 5000
"""Cities with at most this many people use the ``hamlet`` preset."""


def _cells(scale: Scale) -> list[Cell]:
    cells = []
    for people, regions in SIZES[scale].items():
        town = SARS["hamlet" if people <= _TOWN else "full"]
        overrides = (
            f"city.people={people}",
            f"city.regions={regions}",
            "outbreak.seed_share=0.02",
            f"model.rounds={ROUNDS}",
        )
        facts, label = {"people": people, "regions": regions}, f"{people:,} people"
        methods = tuple(one for one in _METHODS if people <= _MOST.get(one, people))
        # Graph sizes are measured on the runs of a method that runs at every size.
        counted, graphs = ("soft-dct-ratio",), f"{label}, graphs"
        town = replace(town.also(overrides), facts=facts)
        cells += [
            replace(town, label=graphs, methods=counted, then="sizes"),
            replace(town, label=label, methods=methods),
        ]
    return cells


def _draw(result: Plain) -> dict[str, StudyPlot]:
    rows, people = result["rows"], ("facts", "people")
    costs = []
    for title, label, part in (
        ("Time", "CPU seconds", ("figures", "cpu_seconds")),
        ("Memory", "peak MB", ("figures", "peak_rss_mb")),
        ("Accuracy", "AUC", ("metrics", "auc")),
    ):
        series, log_y = points(rows, people, part), part[0] == "figures"
        costs.append(Panel(title, "people", label, series, log_x=True, log_y=log_y))
    sizes = {
        name: listed
        for name, key in (
            ("person and place, by window (hypergraph)", "incidences"),
            ("pairs of people who met (contact graph)", "contacts"),
            ("all meetings", "meetings"),
        )
        for listed in points(rows, people, ("figures", key)).values()
    }
    size = Panel("Size of graphs", "people", "entries", sizes, log_x=True, log_y=True)
    scale = "CPU seconds, memory and AUC by the number of people."
    graphs = (
        "Entries of the hypergraph and of the contact graph by the number of people: "
        "the hypergraph grows with visits, the contact graph faster."
    )
    return {
        "scale": StudyPlot(study_plots.lines(costs), scale),
        "graphs": StudyPlot(study_plots.lines([size]), graphs),
    }


STUDY = Study(
    name="scale",
    cpu_hours={"hamlet": 0.03, "full": 2.59},
    title="Size",
    what="Time, memory and accuracy by people; hypergraph against contact graph.",
    shows="the claim of computational complexity",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "dep", "f1"),
    columns=(
        Column("cpu_seconds", "CPU seconds", 1),
        Column("peak_rss_mb", "peak MB", 0),
        Column("incidences", "incidences", 0, in_terminal=False),
        Column("contacts", "pairs met", 0, in_terminal=False),
        Column("meetings", "meetings", 0, in_terminal=False),
    ),
    seeds={"hamlet": 1, "full": 1},
    notes=(
        (
            f"HGNN and Falcon train for {ROUNDS} rounds at most, so that sizes are "
            "comparable; 2 % of people are initially infected"
        ),
        "Pairs are counted if they fit into memory, meetings always",
    ),
)
