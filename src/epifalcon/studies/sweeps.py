"""Sweeps over what people report: Falcon and representative rivals at each share."""

from collections.abc import Sequence

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.study import Against, Cell, Drawn, Scale
from epifalcon.studies.study_figures import Panel, points
from epifalcon.studies.study_tables import TITLES
from epifalcon.studies.towns import PAPER, REPRESENTATIVE, SARS
from epifalcon.types import Plain

METRICS = ("auc", "f1", "dep")


def sweep_cells(
    scale: Scale, setting: str, symbol: str, shares: Sequence[float]
) -> list[Cell]:
    """Rivals and Falcon with its noise at each of ``shares`` of ``setting``.

    The first share is what others are held against, beside HGNN at each share.
    """
    town, first = SARS[scale], f"{symbol} {shares[0]:g}"
    made = []
    for share in shares:
        label = f"{symbol} {share:g}"
        words = (*town.overrides, f"{setting}={share}")
        rivals = (*REPRESENTATIVE, FIELD)
        for ending, more, methods in (
            ("", (), rivals),
            (", Falcon", PAPER, ("falcon",)),
        ):
            made.append(
                Cell(
                    label=label + ending,
                    preset=town.preset,
                    overrides=(*words, *more),
                    methods=methods,
                    facts={setting.rpartition(".")[2]: share},
                    against=(
                        Against(first, first + ending),
                        Against("HGNN", label, "hgnn"),
                    ),
                )
            )
    return made


def draw_sweep(result: Plain, fact: str, label: str, caption: str) -> dict[str, Drawn]:
    """AUC and F1 of each method over the share."""
    panels = [
        Panel(
            title=TITLES[metric],
            xlabel=label,
            ylabel=TITLES[metric],
            series=points(result["rows"], ("facts", fact), ("metrics", metric)),
        )
        for metric in METRICS[:2]
    ]
    figure = study_figures.lines(panels)
    return {} if figure is None else {fact.replace("_", "-"): Drawn(figure, caption)}
