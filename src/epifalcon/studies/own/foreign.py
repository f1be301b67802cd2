"""Methods in populations and outbreaks that Covasim and Starsim simulate."""

from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import study_plots
from epifalcon.studies.own.foreign_runs import ForeignCity
from epifalcon.studies.own.foreign_worlds import REGIMES, WorldKind
from epifalcon.studies.study import Cell, Column, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

DAYS = 40
_UNTRAINED = (
    *("soft-dct-ratio", "exposure-logistic", "mean-field", "hbp", FIELD),
    "oracle",
)
_METHODS = (*_UNTRAINED, "hgnn")
_ALL = (*_METHODS, "dcrnn")
_TUNED: tuple[WorldKind, ...] = ("clusters", "towns")
"""Worlds on which settings were chosen, with other seeds; never on ``hybrid``."""
_LARGE = ("soft-dct-ratio", "hbp", FIELD, "oracle")


def _cells(scale: Scale) -> list[Cell]:
    if scale == "hamlet":
        regimes = ("random-ever", "random", "mixed")
        kinds = [(kind, one) for kind in _TUNED for one in regimes]
        cells = [_cell(*one, 1000, _UNTRAINED) for one in kinds]
        return [*cells[:-1], _cell("towns", "mixed", 1000, _ALL)]
    cells = [_cell(kind, one, 5000) for kind in _TUNED for one in REGIMES]
    cells += [_cell("hybrid", one, 1000, most_seeds=2) for one in REGIMES]
    both = ("random", "mixed")
    cells += [_cell("hybrid", one, 5000, _UNTRAINED, 1) for one in both]
    cells += [_cell("towns", one, 20_000, _LARGE, 2) for one in both]
    return [*cells, _cell("towns", "mixed", 2000, _ALL)]


def _cell(
    kind: WorldKind,
    regime: str,
    people: int,
    methods: tuple[str, ...] = _METHODS,
    most_seeds: int | None = None,
) -> Cell:
    city = ForeignCity(kind=kind, regime=regime)
    label = f"{kind}, {people:,} people, {regime}"
    return Cell(
        label=label,
        preset="hamlet",
        overrides=city.settings(people, DAYS),
        world=city,
        methods=methods,
        group=label,
        facts={"world": kind, "regime": regime, "people": people},
        against=(Reference(FIELD, method=FIELD),),
        most_seeds=most_seeds,
    )


def _draw(result: Plain) -> dict[str, StudyPlot]:
    plots = {}
    for regime in dict.fromkeys(row["facts"]["regime"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["facts"]["regime"] == regime]
        plots[regime] = StudyPlot(
            study_plots.dots(rows, ("auc", "ece"), regime),
            f"Regime {regime}: mean and 95 % interval of each method in each world.",
        )
    return plots


STUDY = Study(
    name="foreign",
    cpu_hours={"hamlet": 0.12, "full": 1.8},
    title="Worlds of other simulators",
    what="Methods in outbreaks that Covasim simulates, with tests for several reasons.",
    shows="nothing, the study is ours",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "average_precision", "log_loss", "ece"),
    columns=(
        Column("calibration_slope", "calibration slope", 2),
        Column("mean_risk", "mean risk"),
        Column("prevalence", "infected share"),
    ),
    glossary={
        "calibration slope": "Slope of a logistic regression of the true state on the "
        "log odds of the risk; 1 is calibrated, below 1 risks are too extreme.",
        "mean risk, infected share": "Means over the hidden people; equal if risks are "
        "right on average.",
        "clusters": "Homes, workplaces for everybody, and a community divided into new "
        "groups every day.",
        "towns": "Homes, schools, workplaces, and such a community.",
        "hybrid": "Covasim's default population: homes, and random pairs at school, "
        "work and in the community.",
        "random-ever": "40 % of the people are tested on the last day by an ideal test "
        "of ever infected.",
        "random": "The same people are tested by PCR.",
        "symptoms": "People with symptoms are tested, 15 % per day.",
        "contact": "Half of the contacts of people with a positive test, and people "
        "with symptoms, 5 % per day, are tested.",
        "mixed": "Both, less often, and 0.3 % of all people per day.",
        "daily": "2 % of all people per day.",
    },
    first_seed=21,
    seeds={"hamlet": 2, "full": 5},
    ranked=True,
    scale_notes={
        "full": (
            (
                "For lack of time, hybrid with its 1,920 slots has 1,000 people and "
                "at most two seeds, or 5,000 people, two regimes and one seed; "
                "20,000 people have two regimes, four methods and two seeds, and DCRNN "
                "has one regime of towns with 2,000 people"
            ),
        )
    },
    notes=(
        (
            "Seeds start at 21; settings were chosen on seeds 1 to 9 of clusters and "
            "towns, never on hybrid"
        ),
        (
            "Methods assume SARS-CoV-2 as built in and initial infections of 2 %, not "
            "Covasim's rates; the reason of tests is random, or unknown where people "
            "are tested for symptoms or contacts"
        ),
        (
            "The oracle knows the history of all others and Covasim's mean rate of "
            "transmission by kind of place, but not susceptibility by age, the "
            "infectiousness of single people, or who was tested"
        ),
    ),
)
