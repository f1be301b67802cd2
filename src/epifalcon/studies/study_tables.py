"""A study as tables: for the terminal, CSV, Markdown and the page."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from epifalcon.baselines.catalogue import entry, names
from epifalcon.studies.comparison import training_cells
from epifalcon.studies.measurements import TRAINING
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
    """The differences of each group that has some.

    Of a group of one seed nothing can be told from chance: its differences are in the
    CSV alone.
    """
    several = [
        rows for rows in _by_group(result) if max(len(row["seeds"]) for row in rows) > 1
    ]
    tables = [_differences_table(rows) for rows in several]
    return [table for table in tables if table.rows]


def figure_tables(study: Study, result: Plain) -> list[Table]:
    """The figures of each group, every column of them."""
    captions = dict.fromkeys(one.apart for one in study.columns if one.apart)
    tables = []
    for rows in _by_group(result):
        tables.append(_figures_table(study, result, rows))
        tables += [_turned_table(study, caption, rows) for caption in captions]
    return [table for table in tables if table.rows]


def screen_tables(study: Study, result: Plain) -> list[Table]:
    """The same for a terminal, which has no room for all columns."""
    few = [replace(one, apart="") for one in study.columns if one.on_screen]
    return figure_tables(replace(study, columns=tuple(few)), result)


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
    lines.writerow([*head, *TRAINING, "seeds", "failed"])
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
        lines.writerow([*cells, *training_cells(row), len(row["seeds"]), row["failed"]])
    return text.getvalue()


def as_markdown(study: Study, result: Plain, said: Sequence[str] = ()) -> str:
    """What is ``said`` of the result, all tables, and the command that made them."""
    parts = [f"# {headline(result)}", lead(result)]
    parts.append(f"```console\n$ {result['made_by']}\n```")
    parts += [f"{one}." for one in sources(result)]
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


def sources(result: Plain) -> list[str]:
    """Which runs were adopted from where; older tables tell it in their notes."""
    return list(result.get("adopted", ()))


def reference_title(name: str) -> str:
    """What others are held against, as people call it."""
    return entry(name).title if name in names() else name


def shown(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign; with a fourth digit where three show none."""
    if value is None:
        return "-"
    return f"{value:+.{3 if value == 0 or abs(value) >= 0.0005 else 4}f}"


def spread(interval: Plain, digits: int = 3) -> str:
    """Mean and half width of the interval."""
    if interval["mean"] is None or interval["high"] is None:
        return shown(interval["mean"], digits)
    half = interval["high"] - interval["mean"]
    return f"{shown(interval['mean'], digits)} ± {shown(half, digits)}"


def _figures_table(study: Study, result: Plain, rows: Sequence[Plain]) -> Table:
    """Metrics, the paper's beside them where it has some, and further columns."""
    printed = {name for row in rows for name in row["published"] or {}}
    further = [column for column in study.columns if not column.apart]
    columns = [*_names(rows), "protocol"]
    for name in study.metrics:
        columns += [TITLES[name], *(["paper's"] if name in printed else [])]
    for column in further:
        columns += [column.title, *(["paper's"] if column.key in printed else [])]
    made = []
    for row in rows:
        cells = [*_names(rows, row), row["protocol"]]
        for name in study.metrics:
            cells.append(spread(row["metrics"][name]))
            cells += [_paper(row, name)] if name in printed else []
        for column in further:
            cells.append(_figure(row, column))
            cells += [_paper(row, column.key)] if column.key in printed else []
        made.append(cells)
    return Table(_caption(result, rows), columns, made)


def _turned_table(study: Study, caption: str, rows: Sequence[Plain]) -> Table:
    """One line for each column of ``caption``, the rows of the result side by side."""
    held = [column for column in study.columns if column.apart == caption]
    keys = {column.key for column in held}
    rows = [row for row in rows if keys & set(row["figures"])]
    made = []
    for column in held:
        made.append([column.title, *(_figure(row, column) for row in rows)])
        if any(column.key in (row["published"] or {}) for row in rows):
            papers = [_paper(row, column.key) for row in rows]
            made.append([f"{column.title}, paper's", *papers])
    return Table(
        caption, ["", *(_place(row, rows) for row in rows)], made if rows else []
    )


def _names(rows: Sequence[Plain], row: Plain | None = None) -> list[str]:
    """What a row is called in a table of ``rows``; without one, the columns' heads.

    By its setting too where titles do not tell all rows apart.
    """
    titles = [one["title"] for one in rows]
    several = len(set(titles)) < len(titles)
    if row is None:
        return ["setting", "method"] if several else ["method"]
    return [row["cell"], _name(row)] if several else [_name(row)]


def _place(row: Plain, rows: Sequence[Plain]) -> str:
    """What sets a row apart from others: its setting, its method, or both."""
    cells, titles = {one["cell"] for one in rows}, {one["title"] for one in rows}
    parts = [row["cell"]] if len(cells) > 1 else []
    parts += [_name(row)] if len(titles) > 1 or not parts else []
    return ", ".join(parts)


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
        return _epsilon(found)
    return spread(found, column.digits)


def _epsilon(found: Plain) -> str:
    """The mean, and the interval of the mean where the seeds differ."""
    mean, ends = shown_epsilon(found["mean"]), (found["low"], found["high"])
    if found["mean"] is None or None in ends or ends[0] == ends[1]:
        return mean
    return f"{mean} ({shown_epsilon(max(ends[0], 0.0))} to {shown_epsilon(ends[1])})"


def _paper(row: Plain, name: str) -> str:
    return shown((row["published"] or {}).get(name))


def _differences_table(rows: Sequence[Plain]) -> Table:
    """Every difference to a reference, and whether it is larger than chance."""
    made = []
    for row in rows:
        for name, gaps in row["differences"].items():
            for metric in (one for one in _JUDGED if one in gaps):
                gap = gaps[metric]
                ends = [signed(gap[end]) for end in _ENDS]
                won = f"{gap['wins']} of {gap['seeds']}"
                cells = [reference_title(name), TITLES[metric], *ends, won]
                judged = [_chance(gap["p_holm"]), _verdict(row, gap)]
                made.append([*_names(rows, row), *cells, *judged])
    columns = ["minus", "in", "mean", "low", "high", "won"]
    group = rows[0]["group"] if rows else ""
    caption = "Differences on the same seeds" + (f": {group}" if group else "")
    heads = [*_names(rows), *columns, "p (Holm)", "larger than chance"]
    return Table(caption + _adjusted(rows), heads, made)


def _chance(p: float | None) -> str:
    return "<0.001" if p is not None and p < 0.001 else shown(p)


def _adjusted(rows: Sequence[Plain]) -> str:
    """For how many rows p values of each reference are adjusted, as words."""
    counts = {
        name: gap["compared"]
        for row in rows
        for name, gaps in row["differences"].items()
        for gap in gaps.values()
        if gap.get("compared")
    }
    if not counts:
        return ""
    told = [f"{count} with {reference_title(name)}" for name, count in counts.items()]
    return f"; p adjusted for {', '.join(told)}"


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
        names = _names(result["rows"], row)
        made.append([*names, *cost, peak, seeds, row["failed"] or ""])
    columns = [*_names(result["rows"]), "seconds", "CPU seconds", "peak MB", "seeds"]
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


def _keys(parts: Any) -> list[str]:  # noqa: ANN401
    """Every key once, as they come."""
    return list(dict.fromkeys(key for part in parts for key in part))


def _cell(text: str) -> str:
    """A cell that cannot end its column."""
    return " ".join(text.split()).replace("|", "\\|")
