"""One HTML page for a run: figures, tables, settings. It loads nothing from outside."""

import base64
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --ink: #22303c; --paper: #fbfaf8; --line: #d9dde0;
        --soft: #5d6b76; --accent: #c8374a; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaec; --paper: #16191c; --line: #353b41; --soft: #9aa5ae;
          --accent: #ef6b7b; --card: #1e2226; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 2rem 1.2rem 4rem; color: var(--ink);
       background: var(--paper); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; }
p.lead { color: var(--soft); margin: 0 0 1.6rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr));
         gap: .8rem; padding: 0; margin: 0; list-style: none; }
.cards li { background: var(--card); border: 1px solid var(--line); padding: .8rem 1rem;
            border-radius: .6rem; }
.cards b { display: block; font-size: 1.45rem; color: var(--accent); }
.cards span { color: var(--soft); font-size: .88rem; }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border-radius: .6rem;
             border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .92rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; text-align: right;
         border-bottom: 1px solid var(--line); }
th { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
th.words, td.words { text-align: left; white-space: normal; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
      border-radius: .6rem; padding: 1rem; font-size: .85rem; }
"""


def shown_epsilon(value: float | None) -> str:
    """An epsilon with four digits, or more where it has more."""
    if value is None or math.isinf(value):
        return "no bound"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Table:
    """A table with a caption; cells are plain text."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG file and what it shows, in words that stand for it when not seen."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Page:
    """What a report says; ``to_html`` makes one self-contained document of it."""

    title: str
    lead: str
    headline: Sequence[tuple[str, str]]
    """(figure, what it is) for the cards on top."""
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    settings_toml: str
    made_by: str
    """How to make it again."""

    def to_html(self) -> str:
        """The page as HTML with its pictures inside."""
        text = html.escape
        cards = "".join(
            f"<li><b>{text(figure)}</b><span>{text(name)}</span></li>"
            for figure, name in self.headline
        )
        return document(
            self.title,
            [
                f'<p class="lead">{text(self.lead)}</p>',
                f'<ul class="cards">{cards}</ul>',
                # The first table is the answer; the others explain it.
                *(table_html(table) for table in self.tables[:1]),
                *(picture_html(picture) for picture in self.pictures),
                *(table_html(table) for table in self.tables[1:]),
                f"<h2>Made by</h2>\n<pre>{text(self.made_by)}</pre>",
                f"<h2>Settings</h2>\n<pre>{text(self.settings_toml)}</pre>",
            ],
        )


def document(title: str, parts: Sequence[str]) -> str:
    """One HTML document of ``parts``, which are HTML, in the dress of all pages."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>",
            f"<body>\n<main>\n<h1>{html.escape(title)}</h1>",
            *parts,
            "</main>\n</body>\n</html>\n",
        ]
    )


def picture_html(picture: Picture) -> str:
    """The picture, inside the page."""
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def table_html(table: Table) -> str:
    """The table under its caption."""
    looks = [_look(table.rows, place) for place in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{look}>{html.escape(name)}</th>'
        for look, name in zip(looks, table.columns, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{look}>{html.escape(cell)}</td>"
            for look, cell in zip(looks, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f"<h2>{html.escape(table.caption)}</h2>\n<div class='wide'><table>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _look(rows: Sequence[Sequence[str]], place: int) -> str:
    """Numbers stand to the right, as written; a column of words to the left."""
    numbers = any(row[place][:1].isdigit() for row in rows)
    return "" if numbers else ' class="words"'
