"""Methods in scenarios that violate their assumptions."""

from collections.abc import Mapping
from dataclasses import replace

from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import study_plots
from epifalcon.studies.scenarios import SARS, TRUE_FACTORS
from epifalcon.studies.study import Cell, Reference, Scale, Study, StudyPlot, drawn
from epifalcon.types import Plain

WORLDS: Mapping[str, str] = {
    "regional-1": "Each region passes the disease on by an unknown factor of its own, "
    "log-normal with spread 1.",
    "regional-1.5": "The same with spread 1.5.",
    "beta-double": "Methods believe that the disease passes on twice as fast as it "
    "does.",
    "beta-half": "Methods believe that it passes on half as fast as it does.",
    "half-traces": "Methods see half of the trace points; the disease follows all.",
    "labels-05": "5 % of the people are tested instead of 40 %.",
    "labels-20": "20 % of the people are tested.",
    "labels-60": "60 % of the people are tested.",
    "test-errors": "Of the healthy 2 % test positive, of the infected 15 % negative, "
    "and methods are told these chances.",
    "super-spreaders": "Few people infect most (gamma, shape .1), and no method is "
    "told.",
    "authors-sir": "The rule of the authors' program, SIR without latent time; methods "
    "are told.",
}
"""Preset layers added to the base scenario, with a description of the change."""
ASSUMED = "as assumed"
METHODS: Mapping[Scale, tuple[str, ...]] = {
    "hamlet": (
        *("dct", "soft-dct-ratio", "exposure-logistic", "mean-field", "hbp", FIELD),
        *("gcn", "unimp", "dcrnn", "hgnn", "falcon", "oracle"),
    ),
    "full": ("soft-dct-ratio", "mean-field", "hbp", FIELD, "oracle"),
}
"""Full size has only methods without training: ten seeds of all would take days."""


def _cells(scale: Scale) -> list[Cell]:
    made = []
    for world in (ASSUMED, *WORLDS):
        town = SARS[scale]
        if world != ASSUMED:
            town = replace(town, preset=f"{town.preset}+{world}")
        methods = METHODS[scale] + (TRUE_FACTORS,) * world.startswith("regional")
        against = (Reference("hbp", world, "hbp"),)
        made.append(
            replace(
                town,
                label=world,
                methods=methods,
                group=world,
                facts={"world": world},
                against=against,
            )
        )
    return made


def _draw(result: Plain) -> dict[str, StudyPlot]:
    pictures: dict[str, StudyPlot] = {}
    for world in dict.fromkeys(row["group"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["group"] == world]
        pictures |= drawn(
            world.replace(" ", "-").replace(".", "-"),
            study_plots.dots(rows, ("auc", "dep"), world),
            f"World {world}: mean and 95 % interval of each method.",
        )
    return pictures


STUDY = Study(
    name="worlds",
    cpu_hours={"hamlet": 0.78, "full": 3.78},
    title="Other worlds",
    what="Methods where the disease, the tests or the traces are not as they assume.",
    shows="nothing, the study is ours",
    cells=_cells,
    draw=_draw,
    metrics=("auc", "dep", "f1", "log_loss", "ece", "precision_at_budget"),
    words={
        ASSUMED: "The disease, the tests and the traces are as methods assume.",
        **WORLDS,
    },
    first_seed=10,
    seeds={"hamlet": 2, "full": 10},
    ranked=True,
    notes=(
        (
            "Seeds begin at 10: settings of methods were chosen on other seeds, from "
            "100 on; some faults that led to a change had been seen on these"
        ),
    ),
)
