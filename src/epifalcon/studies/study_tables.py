"""A study as tables: for the terminal, CSV, Markdown and the page."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from epifalcon.baselines.catalogue import entry, names
from epifalcon.studies.report import Table, shown_epsilon
from epifalcon.studies.study import Column, Study
from epifalcon.studies.study_rows import CHANCE
from epifalcon.types import Plain

TITLES: Final = {
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
_ENDS = ("mean", "low", "high")
_JUDGED = ("auc", "dep")
"""Metrics whose differences are told in the tables; the CSV has all."""
_FAMILY = ("mean", "low", "high", "seeds", "wins", "p", "p_holm")


def result_tables(study: Study, result: Plain) -> list[Table]:
    """All tables: figures of each group, differences, cost."""
    tables = [*figure_tables(study, result), *difference_tables(result)]
    tables.append(cost_table(result))
    return [table for table in tables if table.rows]


def difference_tables(result: Plain) -> list[Table]:
    """The differences of each group that has some."""
    tables = [_differences_table(rows) for rows in _by_group(result)]
    return [table for table in tables if table.rows]


def figure_tables(study: Study, result: Plain) -> list[Table]:
    """The figures of each group, every column of them."""
    return [_figures_table(study, result, rows) for rows in _by_group(result)]


def screen_tables(study: Study, result: Plain) -> list[Table]:
    """The same for a terminal, which has no room for all columns."""
    few = tuple(column for column in study.columns if column.on_screen)
    return figure_tables(replace(study, columns=few), result)


def as_csv(study: Study, result: Plain) -> str:
    """One line a row of the result; every figure as mean, low and high."""
    rows = result["rows"]
    facts = _keys(row["facts"] for row in rows)
    figures = _keys(row["figures"] for row in rows)
    named = _keys(row["published"] or {} for row in rows)
    against = _keys(row["differences"] for row in rows)
    head = ["study", "scale", "group", "cell", *facts, "method", "title", "protocol"]
    for name in (*study.metrics, *figures):
        head += [f"{name}_{end}" for end in _ENDS]
    head += [f"{name}_paper" for name in named]
    for one in against:
        for metric in study.metrics:
            head += [f"{metric}_minus_{one}_{end}" for end in _FAMILY]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*head, "seeds", "failed"])
    for row in rows:
        cells: list[Any] = [result["study"], result["scale"], row["group"], row["cell"]]
        cells += [row["facts"].get(name) for name in facts]
        cells += [row["method"], row["title"], row["protocol"]]
        for name in study.metrics:
            cells += [row["metrics"][name][end] for end in _ENDS]
        for name in figures:
            cells += [row["figures"].get(name, {}).get(end) for end in _ENDS]
        cells += [(row["published"] or {}).get(name) for name in named]
        for one in against:
            for metric in study.metrics:
                gap = row["differences"].get(one, {}).get(metric, {})
                cells += [gap.get(end) for end in _FAMILY]
        lines.writerow([*cells, len(row["seeds"]), row["failed"]])
    return text.getvalue()


def as_markdown(study: Study, result: Plain, said: Sequence[str] = ()) -> str:
    """What is ``said`` of the result, all tables, and the command that made them."""
    parts = [f"# {headline(result)}", lead(result)]
    parts.append(f"```console\n$ {result['made_by']}\n```")
    parts += ["\n".join(f"- {one}" for one in said)] if said else []
    for table in result_tables(study, result):
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        body = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        parts.append(f"## {table.caption}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def headline(result: Plain) -> str:
    """The title of the study, with its scale."""
    return f"{result['title']} ({result['scale']})"


def lead(result: Plain) -> str:
    """What was done and what must be known of it, in sentences."""
    seeds = len(result["seeds"])
    many = f"{seeds} seeds" if seeds > 1 else "one seed: nothing may be claimed"
    town = result["scale"] == "hamlet"
    size = "In a town of 2,000 people" if town else "At full size"
    told = f"{result['what']} In the paper: {result['shows']}. {size}; {many}."
    return " ".join([told, *(f"{one}." for one in result["notes"])])


def reference_title(name: str) -> str:
    """What others are held against, as people call it."""
    return entry(name).title if name in names() else name


def shown(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def spread(interval: Plain, digits: int = 3) -> str:
    """Mean and half width of the interval."""
    if interval["mean"] is None or interval["high"] is None:
        return shown(interval["mean"], digits)
    half = interval["high"] - interval["mean"]
    return f"{shown(interval['mean'], digits)} ± {shown(half, digits)}"


def _figures_table(study: Study, result: Plain, rows: Sequence[Plain]) -> Table:
    """Metrics, the paper's beside them where it has some, and further columns."""
    printed = {name for row in rows for name in row["published"] or {}}
    several = len({row["cell"] for row in rows}) > 1
    columns = [*(["setting"] if several else []), "method", "protocol"]
    for name in study.metrics:
        columns += [TITLES[name], *(["paper's"] if name in printed else [])]
    for column in study.columns:
        columns += [column.title, *(["paper's"] if column.key in printed else [])]
    made = []
    for row in rows:
        cells = [*([row["cell"]] if several else []), _name(row), row["protocol"]]
        for name in study.metrics:
            cells.append(spread(row["metrics"][name]))
            cells += [_paper(row, name)] if name in printed else []
        for column in study.columns:
            cells.append(_figure(row, column))
            cells += [_paper(row, column.key)] if column.key in printed else []
        made.append(cells)
    return Table(_caption(result, rows), columns, made)


def _by_group(result: Plain) -> list[list[Plain]]:
    groups: dict[str, list[Plain]] = {}
    for row in result["rows"]:
        groups.setdefault(row["group"], []).append(row)
    return list(groups.values())


def _figure(row: Plain, column: Column) -> str:
    found = row["figures"].get(column.key)
    if found is None:
        return "-"
    if column.key.startswith("epsilon_"):
        return shown_epsilon(found["mean"])
    return spread(found, column.digits)


def _paper(row: Plain, name: str) -> str:
    return shown((row["published"] or {}).get(name))


def _differences_table(rows: Sequence[Plain]) -> Table:
    """Every difference to a reference, and whether it is larger than chance."""
    made = []
    for row in rows:
        for name, gaps in row["differences"].items():
            for metric in (one for one in _JUDGED if one in gaps):
                gap = gaps[metric]
                ends = [_signed(gap[end]) for end in _ENDS]
                titled = reference_title(name)
                won = f"{gap['wins']} of {gap['seeds']}"
                cells = [row["cell"], _name(row), titled, TITLES[metric], *ends, won]
                made.append([*cells, shown(gap["p_holm"]), _verdict(row, gap)])
    columns = ["setting", "method", "minus", "in", "mean", "low", "high", "won"]
    group = rows[0]["group"] if rows else ""
    caption = "Differences on the same seeds" + (f": {group}" if group else "")
    return Table(caption, [*columns, "p (Holm)", "larger than chance"], made)


def _verdict(row: Plain, gap: Plain) -> str:
    if row["kind"] == "ceiling":
        return "a ceiling"
    if gap["p_holm"] is None:
        return "cannot be told"
    return "yes" if gap["p_holm"] < CHANCE else "no"


def cost_table(result: Plain) -> Table:
    """What one seed of each row takes, and what failed."""
    made = []
    for row in result["rows"]:
        figures = row["figures"]
        cost = [
            shown(figures[key]["mean"], 1) if key in figures else "-"
            for key in ("seconds", "cpu_seconds")
        ]
        peak = shown(figures["peak_rss_mb"]["mean"], 0) if figures else "-"
        seeds = str(len(row["seeds"]))
        made.append([row["cell"], _name(row), *cost, peak, seeds, row["failed"] or ""])
    columns = ["setting", "method", "seconds", "CPU seconds", "peak MB", "seeds"]
    return Table("Cost of one seed", [*columns, "failed"], made)


def _caption(result: Plain, rows: Sequence[Plain]) -> str:
    seeds = max(len(row["seeds"]) for row in rows)
    group = rows[0]["group"] or result["title"]
    known = [row["figures"] for row in rows if row["seeds"]]
    told = str(group)
    people = {one["hidden_people"]["mean"] for one in known}
    if len(people) == 1:
        share = sum(one["prevalence"]["mean"] for one in known) / len(known)
        told += f": {people.pop():,.0f} hidden people, {share:.1%} of them infected"
    return told + (f"; mean of {seeds} seeds ± 95 %" if seeds > 1 else "; one seed")


def _name(row: Plain) -> str:
    mark = " (failed)" if row["failed"] and not row["seeds"] else ""
    return f"{row['title']}{mark or (' (in part)' if row['failed'] else '')}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _keys(parts: Any) -> list[str]:  # noqa: ANN401
    """Every key once, as they come."""
    return list(dict.fromkeys(key for part in parts for key in part))


def _cell(text: str) -> str:
    """A cell that cannot end its column."""
    return " ".join(text.split()).replace("|", "\\|")
