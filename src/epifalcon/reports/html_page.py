"""HTML pages: one template and one style sheet for every report.

A page is made of sections, and a section of parts: ``Text``, ``Table``, ``Picture``
and ``Link``. The result is one self-contained document without scripts that loads
nothing from outside; all text is escaped by the template.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from epifalcon.reports.tables import Table


@dataclass(frozen=True)
class Picture:
    """A PNG file with its caption, which is also its alternative text."""

    path: Path
    caption: str
    wide: bool = False
    """True for several panels: full width, scrolls on a phone."""

    kind = "picture"

    @property
    def data(self) -> str:
        """The file in base64."""
        return base64.b64encode(self.path.read_bytes()).decode("ascii")


@dataclass(frozen=True)
class Text:
    """Sentences as paragraphs, as a list of findings, or in a box."""

    sentences: Sequence[str]
    style: Literal["plain", "findings", "note"] = "plain"

    kind = "text"


@dataclass(frozen=True)
class Link:
    """A link on its own line."""

    text: str
    target: str

    kind = "link"


Part = Text | Table | Picture | Link


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    title: str
    parts: Sequence[Part]
    lead: str = ""

    @property
    def blocks(self) -> list[tuple[bool, list[Part]]]:
        """Groups of consecutive parts; consecutive pictures are set side by side."""
        groups = groupby(self.parts, lambda part: isinstance(part, Picture))
        return [(pictures, list(parts)) for pictures, parts in groups]

    @property
    def is_empty(self) -> bool:
        """True if there are only tables without rows."""
        return all(isinstance(part, Table) and not part.rows for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report."""

    title: str
    lead: str
    sections: Sequence[Section]
    """Empty sections are omitted."""
    headline: Sequence[tuple[str, str]] = ()
    """(value, label) of the cards at the top."""
    made_by: str = ""
    """The command that reproduces the page."""
    settings_toml: str = ""
    closing: str = ""
    """Text at the foot of the page."""
    marker: str = ""
    """A comment in the file by which a program recognises it."""

    def to_html(self) -> str:
        """Return the page as HTML with embedded images."""
        shown = [section for section in self.sections if not section.is_empty]
        template = _environment().get_template("page.html.j2")
        return template.render(page=self, sections=shown)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("epifalcon.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code_spans"] = _code_spans
    style = resources.files("epifalcon.reports") / "templates" / "style.css"
    environment.globals["style"] = Markup(style.read_text(encoding="utf-8"))
    return environment


def _code_spans(text: str) -> Markup:
    """Escape the text, then mark up text between backquotes as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
