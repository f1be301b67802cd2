"""Accuracy by the reported share of traces (eta) and of tests (lambda)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.reports import study_plots
from epifalcon.reports.metric_registry import METRICS
from epifalcon.reports.study_plots import Panel, points
from epifalcon.studies.scenarios import PAPER, SARS
from epifalcon.studies.study import Cell, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

METHODS = (
    *("dct", "soft-dct-ratio", "hbp", "gcn", "hgnn", "graph-wavenet", "fedpregnn"),
    *(FIELD, "oracle"),
)
"""One method of each kind, and the oracle."""
TRACE_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
LABEL_SHARES = (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The paper has six, "from high to low", without their values."""


def _cells(
    scale: Scale, setting: str, symbol: str, shares: Sequence[float]
) -> list[Cell]:
    """Return two cells per share: all methods, and Falcon with the paper's noise."""
    first = f"{symbol} {shares[0]:g}"
    cells = []
    for share in shares:
        label, overrides = f"{symbol} {share:g}", (f"{setting}={share}",)
        for ending, more, methods in (
            ("", (), METHODS),
            (", Falcon", PAPER, ("falcon",)),
        ):
            against = Reference(first, first + ending), Reference("HGNN", label, "hgnn")
            cells.append(
                replace(
                    SARS[scale].also((*overrides, *more)),
                    label=label + ending,
                    methods=methods,
                    facts={setting.rpartition(".")[2]: share},
                    against=against,
                )
            )
    return cells


def _draw(result: Plain, fact: str, label: str) -> dict[str, StudyPlot]:
    panels = []
    for metric in ("auc", "f1"):
        title = METRICS[metric].title
        series = points(result["rows"], ("facts", fact), ("metrics", metric))
        panels.append(Panel(title, label, title, series))
    caption = f"AUC and F1 on hidden people by the {label}."
    return {fact.replace("_", "-"): StudyPlot(study_plots.lines(panels), caption)}


_ONLY_CURVES = "The paper shows only curves, no values to compare with"
TRACE_SHARE = Study(
    name="trace-share",
    cpu_hours={"hamlet": 0.44, "full": 3.77},
    title="Reported share of traces",
    what="Falcon and selected methods if less of the traces is reported.",
    shows="the figure of reporting rates, (a)",
    cells=partial(
        _cells, setting="reporting.trace_share", symbol="η", shares=TRACE_SHARES
    ),
    draw=partial(_draw, fact="trace_share", label="share of points reported, η"),
    metrics=("auc", "f1", "dep"),
    seeds={"hamlet": 2, "full": 3},
    notes=(_ONLY_CURVES,),
)
LABEL_SHARE = replace(
    TRACE_SHARE,
    name="label-share",
    title="Share of people tested",
    what="Falcon and selected methods if more or fewer people are tested.",
    shows="the figure of reporting rates, (b)",
    cells=partial(
        _cells, setting="labels.label_share", symbol="λ", shares=LABEL_SHARES
    ),
    draw=partial(_draw, fact="label_share", label="share of people tested, λ"),
    notes=(
        f"{_ONLY_CURVES}; its six shares are not printed, these are ours",
        (
            "The hidden people depend on the share: rows with different shares have "
            "the same outbreak, but different people"
        ),
    ),
)
