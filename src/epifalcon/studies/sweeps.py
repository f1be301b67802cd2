"""Sweeps over what people report: Falcon and representative rivals at each share."""

from collections.abc import Sequence

from epifalcon.studies import study_figures
from epifalcon.studies.methods import FIELD
from epifalcon.studies.study import Against, Cell, Drawn, Scale
from epifalcon.studies.study_figures import Panel, points
from epifalcon.studies.study_reading import ends, mean
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
        rivals = (*REPRESENTATIVE, FIELD, "oracle")
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


def read_sweep(result: Plain, fact: str, what: str) -> list[str]:
    """Who ranks best at the first and the last share, and who loses most and least.

    ``what`` is a share in words, as "{:.0%} of people are tested".
    """
    rows = [row for row in result["rows"] if row["kind"] != "ceiling"]
    found = ends(rows, fact, lambda row: mean(row, "metrics", "auc"))
    shares = [row["facts"][fact] for row in rows if row["seeds"]]
    if len(found) < 2:
        return []
    best = [max(found, key=lambda title: found[title][place]) for place in (0, 1)]
    top = [f"AUC {found[name][place]:.3f}" for place, name in enumerate(best)]
    where = [what.format(share) for share in (shares[0], shares[-1])]
    if best[0] == best[1]:
        told = f"{best[0]} ranks best where {where[0]} ({top[0]}) and where {where[1]} "
        told += f"({top[1]})."
    else:
        told = f"Where {where[0]}, {best[0]} ranks best ({top[0]}); where {where[1]}, "
        told += f"{best[1]} ({top[1]})."
    lost = {title: last - first for title, (first, last) in found.items()}
    most, least = min(lost, key=lost.__getitem__), max(lost, key=lost.__getitem__)
    return [
        told,
        (
            f"From the first of these to the last the AUC changes by {lost[most]:+.3f} "
            f"({most}) to {lost[least]:+.3f} ({least})."
        ),
    ]
