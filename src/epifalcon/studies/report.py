"""One HTML page: words, figures, tables, settings. It loads nothing from outside.

A page is made of sections, and a section of parts: ``Words``, ``Table``,
``Picture``. Pages of before that have only pictures and tables stay possible.
"""

import base64
import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from epifalcon.studies.page_style import STYLE

_FEW_WORDS = 3
"""As a number with its interval has."""


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
    """A PNG file, what it shows, and words that stand for it when not seen."""

    path: Path
    caption: str
    alt: str = ""
    """The caption unless told."""
    wide: bool = False
    """Of several panels: takes the whole width, and scrolls on a phone."""


@dataclass(frozen=True)
class Words:
    """Sentences: plain paragraphs, a list of what was found, or a warning.

    What stands between two backquotes is shown as code.
    """

    told: Sequence[str]
    kind: Literal["plain", "found", "note"] = "plain"


Part = Words | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]


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
    sections: Sequence[Section] = ()
    """Stand before pictures and tables, with a list of contents above them."""
    closing: str = ""
    """At the foot of the page."""

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
            ],
            self._contents(),
            [
                *(
                    _section(section, number)
                    for number, section in enumerate(self.sections, 1)
                ),
                # The first table is the answer; the others explain it.
                *(table_html(table) for table in self.tables[:1]),
                *(picture_html(picture) for picture in self.pictures),
                *(table_html(table) for table in self.tables[1:]),
                f'<h2 id="made-by">Made by</h2>\n{_code(self.made_by)}',
                f'<h2 id="settings">Settings</h2>\n{_code(self.settings_toml)}',
            ],
            self.closing,
        )

    def _contents(self) -> str:
        if not self.sections:
            return ""
        named = [(f"part-{n}", one.title) for n, one in enumerate(self.sections, 1)]
        named += [("made-by", "Made by"), ("settings", "Settings")]
        links = "".join(
            f'<li><a href="#{place}">{html.escape(title)}</a></li>'
            for place, title in named
        )
        return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _section(section: Section, number: int) -> str:
    """Pictures that follow each other stand side by side where there is room."""
    shown = []
    for pictures, parts in groupby(section.parts, lambda one: isinstance(one, Picture)):
        body = "\n".join(_part(one) for one in parts)
        shown.append(f'<div class="figures">{body}</div>' if pictures else body)
    inside = "\n".join(shown)
    return (
        f'<section aria-labelledby="part-{number}">'
        f'<h2 id="part-{number}">{html.escape(section.title)}</h2>\n{inside}</section>'
    )


def _part(part: Part) -> str:
    if isinstance(part, Words):
        return words_html(part)
    return picture_html(part) if isinstance(part, Picture) else table_html(part, 3)


def words_html(words: Words) -> str:
    """Sentences: paragraphs, a list of findings, or a box."""
    if words.kind == "found":
        items = "".join(f"<li>{_with_code(one)}</li>" for one in words.told)
        return f'<ul class="told">{items}</ul>'
    body = "\n".join(f"<p>{_with_code(one)}</p>" for one in words.told)
    return f'<div class="note">{body}</div>' if words.kind == "note" else body


def _with_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def document(
    title: str,
    header: Sequence[str],
    contents: str,
    main: Sequence[str],
    closing: str = "",
) -> str:
    """One HTML document in the dress of all pages; the parts are HTML themselves."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Without it a browser asks for /favicon.ico.
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>",
            f"<body>\n<header>\n<h1>{html.escape(title)}</h1>",
            *header,
            "</header>",
            contents,
            "<main>",
            *main,
            "</main>",
            f"<footer><p>{html.escape(closing)}</p></footer>" if closing else "",
            "</body>\n</html>\n",
        ]
    )


def picture_html(picture: Picture) -> str:
    """The picture, inside the page."""
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = html.escape(picture.caption)
    alt = html.escape(picture.alt or picture.caption)
    image = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
    if picture.wide:
        scrolled = _scrolling(picture.caption.partition(".")[0], image)
        return (
            f'<figure class="wide">{scrolled}<figcaption>{caption}</figcaption>'
            "</figure>"
        )
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _code(text: str) -> str:
    return f'<pre tabindex="0">{html.escape(text)}</pre>'


def _scrolling(name: str, inside: str) -> str:
    """A box that scrolls by itself, with the keyboard too."""
    return (
        f'<div class="wide" role="region" tabindex="0" '
        f'aria-label="{html.escape(name)}">{inside}</div>'
    )


def table_html(table: Table, level: int = 2) -> str:
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
    inside = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    caption = html.escape(table.caption)
    named = f"<h{level}>{caption}</h{level}>\n" if caption else ""
    return named + _scrolling(table.caption or "table", inside)


def _look(rows: Sequence[Sequence[str]], place: int) -> str:
    """Numbers stand to the right, words to the left, and sentences have room."""
    cells = [row[place] for row in rows]
    numbers = [cell.lstrip("+-−.[")[:1].isdigit() for cell in cells]
    sentences = any(len(cell.split()) > _FEW_WORDS for cell in cells)
    if sentences:
        return ' class="words long"'
    return "" if any(numbers) else ' class="words"'
