"""A comparison as tables for people, and the files that hold it.

``keep_comparison`` writes ``comparison.json``, ``.csv``, ``.md``, ``.html`` and
the figures beside the runs; what is there already and is the same stays.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.settings import json_text
from epifalcon.studies import comparison_figures, figures
from epifalcon.studies.comparison import METRICS, REFERENCES, training_cells
from epifalcon.studies.comparison_plan import RESULT, Plan
from epifalcon.studies.measurements import CALIBRATED, SCALINGS, TRAINING
from epifalcon.studies.report import Page, Picture, Table
from epifalcon.types import Plain

_TITLES = {
    "auc": "AUC",
    "dep": "DEP",
    "f1": "F1",
    "accuracy": "accuracy",
    "bep": "BEP",
    "average_precision": "AP",
    "brier": "Brier",
    "log_loss": "log loss",
    "ece": "ECE",
    "precision_at_budget": "prec. at 5 %",
}
_FEW = ("dep", "f1", "bep", "log_loss")
_CAPTIONS = {
    "precision-recall": "Precision against recall on hidden people. The dotted "
    "line is the recall that would end the epidemic; the precision there is DEP.",
    "differences": "Each method's AUC minus that of HGNN and of HBP on the same "
    "seeds; with several seeds, 95 % intervals that are not adjusted, where the p "
    "values of the table are, by Holm. A hollow dot is the ceiling, which is no "
    "method.",
    "reliability": "Infected share of hidden people against the risk they were "
    "told, as told and after recalibration on masked people.",
}


def short_table(result: Plain) -> Table:
    """What a terminal shows: a few metrics, the paper's AUC, cost."""
    paper = any(row["published"] for row in result["rows"])
    held = [one for one in ("hgnn", "hbp") if one in result["references"]]
    columns = ["method", "AUC", *(["paper's"] if paper else [])]
    columns += [_TITLES[name] for name in _FEW]
    columns += [*(f"- {one.upper()}" for one in held), "s", "MB"]
    rows = []
    for row in result["rows"]:
        metrics = row["metrics"]
        cells = [_name(row), _spread(metrics["auc"])]
        if paper:
            cells.append(_shown((row["published"] or {}).get("auc")))
        cells += [_shown(metrics[name]["mean"]) for name in _FEW]
        cells += [_signed(_gap(row, one, "auc")["mean"]) for one in held]
        rows.append([*cells, _shown(row["seconds"], 1), _shown(row["peak_rss_mb"], 0)])
    return Table(_caption(result), columns, rows)


def full_tables(result: Plain) -> list[Table]:
    """All figures: metrics, differences, recalibration, cost, the paper's."""
    tables = [_metrics_table(result)]
    tables += [_differences_table(result, one) for one in result["references"]]
    tables += [_recalibration_table(result), _cost_table(result)]
    if any(row["published"] for row in result["rows"]):
        tables.append(_published_table(result))
    return [table for table in tables if table.rows]


def as_csv(result: Plain) -> str:
    """One line a method; every metric as mean, low and high."""
    text = io.StringIO()
    ends = ("mean", "low", "high")
    head = ["method", "kind"]
    head += [f"{name}_{end}" for name in METRICS for end in ends]
    for reference in REFERENCES:
        head += [f"auc_minus_{reference}_{end}" for end in (*ends, "p_holm")]
    head += ["seconds", "cpu_seconds", "peak_rss_mb", *TRAINING, "seeds", "failed"]
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(head)
    for row in result["rows"]:
        cells: list[Any] = [row["method"], row["kind"]]
        cells += [row["metrics"][name][end] for name in METRICS for end in ends]
        for reference in REFERENCES:
            gap = _gap(row, reference, "auc")
            cells += [gap[end] for end in (*ends, "p_holm")]
        cells += [row["seconds"], row["cpu_seconds"], row["peak_rss_mb"]]
        cells += training_cells(row)
        lines.writerow([*cells, len(row["seeds"]), row["failed"]])
    return text.getvalue()


def as_markdown(result: Plain) -> str:
    """All tables, with the command that made them."""
    parts = [f"# {_headline(result)}", f"```console\n$ {result['made_by']}\n```"]
    for table in full_tables(result):
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        body = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        parts.append(f"## {table.caption}\n\n{body}")
    if result["notes"]:
        parts.append("## Notes\n\n" + "\n".join(f"- {one}" for one in result["notes"]))
    return "\n\n".join(parts) + "\n"


def keep_comparison(plan: Plan, result: Plain, curves: Plain) -> None:
    """Write every file of the comparison into its folder, the JSON last."""
    text = json_text({**result, "curves": curves}) + "\n"
    place = plan.folder / f"{RESULT}.json"
    if place.is_file() and place.read_text(encoding="utf-8") == text:
        return
    with store.writing(plan.folder):
        # The old one tells of figures that are being replaced.
        place.unlink(missing_ok=True)
        pictures = _pictures(plan.folder / "figures", result, curves)
        store.replace_text(place.with_suffix(".csv"), as_csv(result))
        store.replace_text(place.with_suffix(".md"), as_markdown(result))
        page = _page(plan, result, pictures).to_html()
        store.replace_text(place.with_suffix(".html"), page)
        store.replace_text(place, text)


def _pictures(folder: Path, result: Plain, curves: Plain) -> list[Picture]:
    folder.mkdir(exist_ok=True)
    drawn = {
        "precision-recall": comparison_figures.precision_recall(result, curves),
        "differences": comparison_figures.differences(result),
        "reliability": comparison_figures.reliability(result, curves),
    }
    pictures = []
    for name, figure in drawn.items():
        path = folder / f"{name}.png"
        for old in (path, path.with_suffix(".svg")):
            old.unlink(missing_ok=True)
        if figure is not None:
            figures.save(figure, path)
            pictures.append(
                Picture(path, _CAPTIONS[name], wide=figures.is_wide(figure))
            )
    return pictures


def _page(plan: Plan, result: Plain, pictures: Sequence[Picture]) -> Page:
    best = next((row for row in result["rows"] if row["kind"] != "ceiling"), None)
    cards = [
        (str(len(result["rows"])), "methods"),
        (str(len(result["seeds"])), "seeds"),
    ]
    if result["hidden_people"] is not None:
        cards.append((f"{result['hidden_people']:,}", "hidden people a seed"))
        cards.append((f"{result['prevalence']:.1%}", "of them infected"))
    if best is not None and best["metrics"]["auc"]["mean"] is not None:
        cards.append(
            (_shown(best["metrics"]["auc"]["mean"]), f"AUC of {best['title']}")
        )
    return Page(
        title=_headline(result),
        lead="Methods on the same cities, outbreaks and tests, judged by people who "
        "were not tested. " + " ".join(f"{one}." for one in result["notes"]),
        headline=cards,
        pictures=pictures,
        tables=full_tables(result),
        settings_toml=plan.experiment.to_toml(),
        made_by=result["made_by"],
    )


def _metrics_table(result: Plain) -> Table:
    rows = [
        [_name(row), *(_spread(row["metrics"][name]) for name in METRICS)]
        for row in result["rows"]
    ]
    return Table(_caption(result), ["method", *(_TITLES[one] for one in METRICS)], rows)


def _differences_table(result: Plain, reference: str) -> Table:
    rows = []
    for row in result["rows"]:
        if row["differences"][reference] is None:
            continue
        gap = _gap(row, reference, "auc")
        cells = [_signed(gap[end]) for end in ("mean", "low", "high")]
        cells += [f"{gap['wins']} of {gap['seeds']}"]
        cells += [_shown(gap[key]) for key in ("p", "p_holm")]
        others = (_gap(row, reference, name)["mean"] for name in ("dep", "log_loss"))
        rows.append([_name(row), *cells, *(_signed(one) for one in others)])
    title = next(row["title"] for row in result["rows"] if row["method"] == reference)
    columns = ["method", "AUC", "low", "high", "won", "p", "p (Holm)"]
    return Table(f"Minus {title}", [*columns, "DEP", "log loss"], rows)


def _recalibration_table(result: Plain) -> Table:
    rows = []
    for row in result["rows"]:
        if not row["by_seed"]:
            continue
        cells = [
            _shown(row["recalibrated"][scaling][name]["mean"])
            for name in CALIBRATED
            for scaling in SCALINGS
        ]
        rows.append([_name(row), *cells, row["left_raw"] or ""])
    columns = [f"{_TITLES[name]}, {one}" for name in CALIBRATED for one in SCALINGS]
    caption = "Recalibration on masked people"
    return Table(caption, ["method", *columns, "left as told"], rows)


def _cost_table(result: Plain) -> Table:
    rows = [
        [
            _name(row),
            _shown(row["seconds"], 1),
            _shown(row["cpu_seconds"], 1),
            _shown(row["peak_rss_mb"], 0),
            str(len(row["seeds"])),
            row["failed"] or "",
        ]
        for row in result["rows"]
    ]
    columns = ["method", "seconds", "CPU seconds", "peak MB", "seeds", "failed"]
    return Table("Cost of one seed", columns, rows)


def _published_table(result: Plain) -> Table:
    names = ("dep", "auc", "f1", "accuracy", "bep")
    rows = [
        [
            row["title"],
            *(
                f"{_shown(row['metrics'][name]['mean'])} / "
                f"{_shown(row['published'].get(name))}"
                for name in names
            ),
        ]
        for row in result["rows"]
        if row["published"]
    ]
    return Table(
        "Ours / the paper's, which are of other data",
        ["method", *(_TITLES[name] for name in names)],
        rows,
    )


def _headline(result: Plain) -> str:
    return f"epifalcon compare: {result['preset']}"


def _caption(result: Plain) -> str:
    seeds = len(result["seeds"])
    if result["hidden_people"] is None:
        return "No method has a result"
    # A preset with layers is a world of its own, which the table must name.
    world = f" of {result['preset']}" if "+" in result["preset"] else ""
    told = f"Methods on {result['hidden_people']:,} hidden people{world}, "
    told += f"{result['prevalence']:.1%} of them infected"
    return told + (f"; mean of {seeds} seeds ± 95 %" if seeds > 1 else "; one seed")


def _name(row: Plain) -> str:
    mark = " (failed)" if row["failed"] and not row["seeds"] else ""
    return f"{row['title']}{mark or (' (in part)' if row['failed'] else '')}"


def _spread(interval: Plain) -> str:
    """Mean and half width of the interval."""
    if interval["mean"] is None or interval["high"] is None:
        return _shown(interval["mean"])
    return f"{interval['mean']:.3f} ± {interval['high'] - interval['mean']:.3f}"


def _gap(row: Plain, reference: str, metric: str) -> Plain:
    """The difference to ``reference``; all None where there is none."""
    keys = ("mean", "low", "high", "p", "p_holm", "seeds", "wins")
    found = row["differences"][reference]
    return dict.fromkeys(keys) if found is None else found[metric]


def _shown(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _cell(text: str) -> str:
    """A cell that cannot end its column."""
    return " ".join(text.split()).replace("|", "\\|")
