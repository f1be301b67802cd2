"""Curves of precision and recall for studies that compare all methods."""

from collections.abc import Sequence
from typing import Any

from epifalcon.studies import comparison_figures
from epifalcon.studies.comparison import curves
from epifalcon.studies.measurements import Measured
from epifalcon.studies.study import Drawn, keyed
from epifalcon.studies.study_running import Ran
from epifalcon.types import Plain

_CURVE = (
    "{group}: precision against recall on hidden people, {seeds}. The dotted upright "
    "line is the recall that would end the epidemic; the precision there is DEP. Black "
    "is the ceiling, which is no method."
)
_GAPS = (
    "{group}: each method's AUC minus that of HGNN and of HBP on the same seeds, with "
    "95 % intervals, which are not adjusted for several comparisons; the verdict "
    "“larger than chance” in the tables is, by Holm. A hollow dot is the ceiling, "
    "which is no method."
)
_GAPS_OF_ONE = (
    "{group}: each method's AUC minus that of HGNN and of HBP, of one seed: no "
    "interval, nothing may be claimed. A hollow dot is the ceiling, which is no method."
)


def curves_by_group(ran: Ran, rows: Sequence[Plain]) -> dict[str, Any]:
    """What ``draw_comparison`` draws, by group: ``curves``."""
    cells = {cell.label: cell for cell in ran.planned.cells}
    found: dict[str, Any] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        by_key = {
            key: ran.measured(cells[row["cell"]], row["method"])
            for key, row in keyed(mine).items()
        }
        drawn = curves(by_key)
        for one in drawn["methods"].values():
            # Only this picture's; the sums of the other are many.
            del one["reliability"]
        told = [
            one.metrics["extinction_recall"]
            for by_seed in by_key.values()
            for one in by_seed.values()
            if isinstance(one, Measured)
        ]
        found[group] = {**drawn, "extinction_recall": told[0] if told else None}
    return {"curves": found}


def draw_comparison(result: Plain) -> dict[str, Drawn]:
    """Precision and recall, and differences, for each group."""
    drawn = {}
    for number, (group, kept) in enumerate(result["curves"].items()):
        rows = [row for row in result["rows"] if row["group"] == group]
        named = [{**row, "method": key} for key, row in keyed(rows).items()]
        shares = [row["figures"]["prevalence"]["mean"] for row in rows if row["seeds"]]
        told = {
            "rows": named,
            "group": group,
            "seeds": sorted({seed for row in rows for seed in row["seeds"]}),
            "prevalence": shares[0] if shares else None,
            "extinction_recall": kept["extinction_recall"],
        }
        several = len(told["seeds"]) > 1
        words = {
            "group": group,
            "seeds": f"mean of {len(told['seeds'])} seeds" if several else "one seed",
        }
        pictures = {
            "precision-recall": (
                comparison_figures.precision_recall(told, kept),
                _CURVE,
            ),
            "differences": (
                comparison_figures.differences(told),
                _GAPS if several else _GAPS_OF_ONE,
            ),
        }
        ending = f"-{number + 1}" if len(result["curves"]) > 1 else ""
        for name, (figure, caption) in pictures.items():
            if figure is not None:
                drawn[f"{name}{ending}"] = Drawn(figure, caption.format(**words))
    return drawn
