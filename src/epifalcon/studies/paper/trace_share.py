"""How much of people's traces is reported: the sweep of eta."""

from epifalcon.studies.study import Cell, Drawn, Scale, Study
from epifalcon.studies.sweeps import METRICS, draw_sweep, read_sweep, sweep_cells
from epifalcon.types import Plain

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def _cells(scale: Scale) -> list[Cell]:
    return sweep_cells(scale, "reporting.trace_share", "η", SHARES)


def _draw(result: Plain) -> dict[str, Drawn]:
    caption = "AUC and F1 on hidden people by the share of points that people report."
    return draw_sweep(result, "trace_share", "share of points reported, η", caption)


def _read(result: Plain) -> list[str]:
    return read_sweep(result, "trace_share", "{:.0%} of people's time is reported")


def _notes(_scale: Scale) -> tuple[str, ...]:
    return ("The paper shows curves alone, no figures that could stand beside ours",)


STUDY = Study(
    name="trace-share",
    title="Reported share of traces",
    what="Falcon and representative rivals where less of the traces is reported.",
    shows="the figure of reporting rates, (a)",
    cells=_cells,
    draw=_draw,
    read=_read,
    metrics=METRICS,
    seeds={"hamlet": 2, "full": 3},
    notes=_notes,
)
