"""Tables and findings of a study: for the terminal, CSV, Markdown and the page."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from epifalcon.experiments.run_folder import CALIBRATED, SCALINGS, TRAINING
from epifalcon.methods.registry import entry, names
from epifalcon.reports import formats
from epifalcon.reports.formats import number, plural, signed
from epifalcon.reports.metric_registry import METRICS, TERMINAL_METRICS
from epifalcon.reports.tables import Table, csv_text
from epifalcon.studies.study import Column, Study
from epifalcon.studies.study_rows import CHANCE
from epifalcon.types import Plain

_ENDS: Final = ("mean", "low", "high")
_COMPARED: Final = ("auc", "dep")
"""Metrics whose differences are in the tables; the CSV has all metrics."""
_MOST_NAMED: Final = 4
"""Maximum number of rows named in a sentence."""
_ENOUGH: Final = 5
"""Minimum number of seeds for a conclusion."""
_DIFFERENCE: Final = (*_ENDS, "seeds", "wins", "p", "p_holm")


def result_tables(study: Study, result: Plain) -> list[Table]:
    """Return all tables: metrics by group, differences, recalibration, cost."""
    return [
        *metric_tables(study, result),
        *difference_tables(result),
        *recalibration_tables(study, result),
        cost_table(result),
    ]


def metric_tables(study: Study, result: Plain) -> list[Table]:
    """Return one table of metrics per group, with all columns."""
    return [_metric_table(study, result, rows) for rows in _by_group(result)]


def difference_tables(result: Plain) -> list[Table]:
    """Return one table of differences per group with several seeds."""
    tables = [
        _differences_table(rows)
        for rows in _by_group(result)
        if max(len(row["seeds"]) for row in rows) > 1
    ]
    return [table for table in tables if table.rows]


def terminal_tables(study: Study, result: Plain) -> list[Table]:
    """Return the tables of metrics for a terminal, with fewer columns."""
    few = tuple(one for one in study.columns if one.in_terminal)
    many = len(study.metrics) > len(TERMINAL_METRICS)
    metrics = TERMINAL_METRICS if many else study.metrics
    return metric_tables(replace(study, columns=few, metrics=metrics), result)


def as_csv(study: Study, result: Plain) -> str:
    """Return one line per row of the result; each value as mean, low and high."""
    rows = result["rows"]
    facts = _keys(row["facts"] for row in rows)
    values = _keys(row["figures"] for row in rows)
    printed = _keys(row["published"] or {} for row in rows)
    against = _keys(row["differences"] for row in rows)
    lines = [
        {
            "study": result["study"],
            "scale": result["scale"],
            "group": row["group"],
            "cell": row["cell"],
            **{name: row["facts"].get(name) for name in facts},
            **{name: row[name] for name in ("method", "title", "protocol")},
            **_ends(row["metrics"], study.metrics),
            **_ends(row["figures"], values),
            **{f"{name}_paper": (row["published"] or {}).get(name) for name in printed},
            **{
                f"{metric}_minus_{one}_{end}": gaps.get(metric, {}).get(end)
                for one in against
                for gaps in [row["differences"].get(one, {})]
                for metric in study.metrics
                for end in _DIFFERENCE
            },
            **_training(row),
            "seeds": len(row["seeds"]),
            "failed": row["failed"],
        }
        for row in rows
    ]
    return csv_text(_keys(lines), [list(line.values()) for line in lines])


def _ends(part: Plain, names: Iterable[str]) -> dict[str, float | None]:
    return {
        f"{name}_{end}": part.get(name, {}).get(end) for name in names for end in _ENDS
    }


def as_markdown(study: Study, result: Plain, sentences: Sequence[str] = ()) -> str:
    """Return findings, all tables, and the command that made them as Markdown."""
    parts = [f"# {headline(result)}", lead(result)]
    parts.append(f"```console\n$ {result['made_by']}\n```")
    parts += ["\n".join(f"- {one}" for one in sentences)] if sentences else []
    parts += [table.to_markdown() for table in result_tables(study, result)]
    return "\n\n".join(parts) + "\n"


def headline(result: Plain) -> str:
    """Return the title of the study with its scale."""
    scale = f" ({result['scale']})" if result["scale"] else ""
    return f"{result['title']}{scale}"


def lead(result: Plain) -> str:
    """Return the introduction: description, scale, seeds and notes."""
    seeds = len(result["seeds"])
    many = f"{seeds} seeds" if seeds > 1 else "one seed, which allows no conclusion"
    size = {"hamlet": "In a town of 2,000 people; ", "full": "At full size; "}
    if any("people" in row["facts"] for row in result["rows"]):
        size = {}
    sentences = [result["what"]]
    if result["shows"]:
        sentences.append(f"In the paper: {result['shows']}.")
    sentences.append(f"{size.get(result['scale'], '')}{many}.")
    return " ".join([*sentences, *(f"{one}." for one in result["notes"])])


def reference_title(name: str) -> str:
    """Return the title of the reference of a comparison."""
    return entry(name).title if name in names() else name


def findings(result: Plain) -> list[str]:
    """Return sentences: best methods, significant differences, seeds, failures."""
    rows_with_auc = [
        row for row in result["rows"] if row["metrics"]["auc"]["mean"] is not None
    ]
    if not rows_with_auc:
        return []
    groups = _by_group({"rows": rows_with_auc})
    sentences = []
    for rows in groups:
        of_group = [*_best(rows), *_differences(rows)]
        if of_group:
            group = f"{rows[0]['group']}: " if len(groups) > 1 else ""
            sentences.append(group + " ".join(of_group))
    seeds = {one[0]["group"]: max(len(row["seeds"]) for row in one) for one in groups}
    most = max(seeds.values())
    if most == 1:
        sentences.append(
            "One seed is one city with one outbreak: there is no interval, and no "
            "conclusion about other outbreaks."
        )
    else:
        few = " Draw no conclusion from fewer than five." if most < _ENOUGH else ""
        sentences.append(
            f"Intervals are over {most} cities, each with its outbreak.{few}"
        )
    sentences += [
        f"{group} has {plural(count, 'seed')} only."
        for group, count in seeds.items()
        if count < most
    ]
    if failed := sum(bool(row["failed"]) for row in result["rows"]):
        rows_failed = plural(failed, "row")
        sentences.append(f"Runs of {rows_failed} failed; see the table of costs.")
    return sentences


def _auc(row: Plain) -> float:
    return row["metrics"]["auc"]["mean"] or 0.0


def _best(rows: Sequence[Plain]) -> list[str]:
    sentences = []
    methods = [row for row in rows if row["protocol"] == "reported"]
    methods.sort(key=_auc, reverse=True)
    if len(methods) > 1:
        named = [f"{_full_name(rows, one)}, {number(_auc(one))}" for one in methods]
        then = f", then {named[1]}" if len(methods) > 2 else ""
        sentences.append(f"Best by AUC: {named[0]}{then}; last {named[-1]}.")
    ceilings = [row for row in rows if row["kind"] == "ceiling"]
    if ceilings:
        most = max(ceilings, key=_auc)
        sentences.append(
            f"The ceiling, {most['title']}, which uses the ground truth, has "
            f"{number(_auc(most))}."
        )
    return sentences


def _differences(rows: Sequence[Plain]) -> list[str]:
    """Return sentences naming rows that differ significantly from a reference."""
    sentences = []
    methods = [row for row in rows if row["protocol"] == "reported"]
    for name in _keys(row["differences"] for row in methods):
        gaps = [
            (row["differences"][name]["auc"], row)
            for row in methods
            if "auc" in row["differences"].get(name, {})
        ]
        # One seed gives no p value.
        if all(gap["p_holm"] is None for gap, _ in gaps):
            continue
        sure = [one for one in gaps if _verdict(one[1], one[0]["p_holm"]) == "yes"]
        sure.sort(key=lambda one: -one[0]["mean"])
        most = sure if len(sure) <= _MOST_NAMED else [*sure[:2], *sure[-2:]]
        listed = ", ".join(
            f"{_full_name(rows, row)} {signed(gap['mean'])}" for gap, row in most
        )
        more = f" and {len(sure) - len(most)} more" if len(sure) > len(most) else ""
        enough = max(len(row["seeds"]) for row in rows) >= _ENOUGH
        seeds = "seeds" if enough else "seeds, too few for a conclusion"
        sentences.append(
            f"On the same {seeds}, {len(sure)} of {len(gaps)} differ significantly "
            f"from “{reference_title(name)}” in AUC"
            + (f": {listed}{more}." if sure else ".")
        )
    return sentences


def _full_name(rows: Sequence[Plain], row: Plain) -> str:
    """Return the row's title, with its setting if the title is not unique."""
    same = sum(other["title"] == row["title"] for other in rows)
    named = f"{row['title']}, {row['cell']}" if same > 1 else row["title"]
    first, _, rest = str(named).partition(", ")
    return f"{first} ({rest})" if rest else first


def recalibration_tables(study: Study, result: Plain) -> list[Table]:
    """Return the table of recalibrated risks, if the study has one."""
    rows = [
        [
            _name(row),
            *(
                number(row["recalibrated"][scaling][name]["mean"])
                for name in CALIBRATED
                for scaling in SCALINGS
            ),
            row["left_raw"] or "",
        ]
        for row in (result["rows"] if study.recalibration else ())
        if row["by_seed"]
    ]
    columns = [
        f"{METRICS[name].title}, {one}" for name in CALIBRATED for one in SCALINGS
    ]
    heads = ["method", *columns, "not recalibrated"]
    return [Table("Recalibration on masked people", heads, rows)] if rows else []


def cost_table(result: Plain) -> Table:
    """Return the table of time and memory per seed, and of failures."""
    table_rows = []
    for row in result["rows"]:
        values = row["figures"]
        cost = [
            number(values.get(key, {}).get("mean"), digits)
            for key, digits in (("seconds", 1), ("cpu_seconds", 1), ("peak_rss_mb", 0))
        ]
        seeds = str(len(row["seeds"]))
        named = _names(result["rows"], row)
        table_rows.append([*named, *cost, seeds, row["failed"] or ""])
    columns = [*_name_columns(result["rows"]), "seconds", "CPU seconds", "peak MB"]
    return Table("Cost of one seed", [*columns, "seeds", "failed"], table_rows)


def _metric_table(study: Study, result: Plain, rows: Sequence[Plain]) -> Table:
    """Return a table of the metrics, the paper's values and the study's columns."""
    printed = {name for row in rows for name in row["published"] or {}}
    columns = [*_name_columns(rows), "protocol"]
    titles = {name: METRICS[name].title for name in study.metrics}
    titles |= {one.key: one.title for one in study.columns}
    for name, title in titles.items():
        columns += [title, *(["paper's"] if name in printed else [])]
    table_rows = []
    for row in rows:
        cells = [*_names(rows, row), row["protocol"]]
        shown = {
            name: formats.mean_and_half_width(row["metrics"][name])
            for name in study.metrics
        } | {column.key: _column_cell(row, column) for column in study.columns}
        for name, cell in shown.items():
            paper = number((row["published"] or {}).get(name))
            cells += [cell, *([paper] if name in printed else [])]
        table_rows.append(cells)
    return Table(_caption(result, rows), columns, table_rows)


def _differences_table(rows: Sequence[Plain]) -> Table:
    """Return the table of differences to references, with their significance."""
    table_rows = []
    compared: dict[str, int] = {}
    for row in rows:
        for name, gaps in row["differences"].items():
            for metric in (one for one in _COMPARED if one in gaps):
                gap = gaps[metric]
                if gap.get("compared"):
                    compared[reference_title(name)] = gap["compared"]
                p = gap["p_holm"]
                shown_p = "<0.001" if p is not None and p < 0.001 else number(p)
                cells = [reference_title(name), METRICS[metric].title]
                cells += [signed(gap[end]) for end in _ENDS]
                cells += [f"{gap['wins']} of {gap['seeds']}", shown_p]
                table_rows.append([*_names(rows, row), *cells, _verdict(row, p)])
    group = rows[0]["group"] if rows else ""
    caption = "Differences on the same seeds" + (f": {group}" if group else "")
    if compared:
        counts = [f"{count} with {name}" for name, count in compared.items()]
        caption += f"; p adjusted for {', '.join(counts)}"
    columns = ["minus", "in", "mean", "low", "high", "won", "p (Holm)"]
    heads = [*_name_columns(rows), *columns, "larger than chance"]
    return Table(caption, heads, table_rows)


def _verdict(row: Plain, p: float | None) -> str:
    if row["kind"] == "ceiling":
        return "a ceiling"
    if p is None:
        return "unknown"
    return "yes" if p < CHANCE else "no"


def _name_columns(rows: Sequence[Plain]) -> list[str]:
    titles = [row["title"] for row in rows]
    several = len(set(titles)) < len(titles)
    return ["setting", "method"] if several else ["method"]


def _names(rows: Sequence[Plain], row: Plain) -> list[str]:
    """Return the name cells of a row: title, and the cell if titles repeat."""
    named = [_name(row)]
    return named if len(_name_columns(rows)) == 1 else [row["cell"], *named]


def _name(row: Plain) -> str:
    if not row["failed"]:
        return str(row["title"])
    return f"{row['title']} ({'in part' if row['seeds'] else 'failed'})"


def _by_group(result: Plain) -> list[list[Plain]]:
    groups: dict[str, list[Plain]] = {}
    for row in result["rows"]:
        groups.setdefault(row["group"], []).append(row)
    return list(groups.values())


def _column_cell(row: Plain, column: Column) -> str:
    value = row["figures"].get(column.key)
    if value is None:
        return "-"
    if not column.key.startswith("epsilon_"):
        return formats.mean_and_half_width(value, column.digits)
    low, high = value["low"], value["high"]
    mean = formats.epsilon(value["mean"])
    if value["mean"] is None or low is None or high is None or low == high:
        return mean
    return f"{mean} ({formats.epsilon(max(low, 0.0))} to {formats.epsilon(high)})"


def _caption(result: Plain, rows: Sequence[Plain]) -> str:
    seeds = max(len(row["seeds"]) for row in rows)
    known = [row["figures"] for row in rows if row["seeds"]]
    caption = str(rows[0]["group"] or result["title"])
    people = {one["hidden_people"]["mean"] for one in known}
    if len(people) == 1:
        share = sum(one["prevalence"]["mean"] for one in known) / len(known)
        caption += f": {people.pop():,.0f} hidden people, {share:.1%} of them infected"
    return caption + (f"; mean of {seeds} seeds ± 95 %" if seeds > 1 else "; one seed")


def _keys(parts: Iterable[Plain]) -> list[str]:
    """Return every key once, in order of appearance."""
    return list(dict.fromkeys(key for part in parts for key in part))


def _training(row: Plain) -> dict[str, str]:
    """Return ``TRAINING`` of a row as CSV cells, values by seed separated by spaces."""
    cells = {}
    for name in TRAINING:
        value = row[name]
        values = value if isinstance(value, list) else [value]
        cells[name] = "" if value is None else " ".join(map(json.dumps, values))
    return cells
