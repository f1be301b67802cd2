"""One page that gathers finished studies, with links to the page of each."""

import html
import os
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.errors import DataError, WriteError
from epifalcon.studies.report import (
    Picture,
    Words,
    document,
    picture_html,
    table_html,
    words_html,
)
from epifalcon.studies.study_keeping import FIGURES, PICTURES, REPORT, finished_studies
from epifalcon.studies.study_list import find_study, study_names
from epifalcon.studies.study_reading import reading
from epifalcon.studies.study_tables import headline, lead, result_tables
from epifalcon.types import Plain

_MARK = "<!-- epifalcon studies -->"
_TITLE = "epifalcon: studies"
_LEAD = (
    '<p class="lead">What each finished study says, its first table and its figures. '
    "All tables are on the page of each.</p>"
)


def write_report(results: Path, out: Path) -> list[dict[str, Any]]:
    """Write the page of all finished studies in ``results``; what it tells of each.

    It loads nothing from outside; links lead to the page of each study.
    """
    order = study_names()
    found = [one for one in finished_studies(results) if one[1]["study"] in order]
    if not found:
        raise DataError(
            f"{results}: holds no finished study; make one with: epifalcon study run "
            "NAME, or name the folder that has some: --results runs/studies"
        )
    if out.is_dir():
        raise WriteError(f"{out}: is a folder, expected a file to write")
    if out.is_file() and _MARK not in out.read_text(encoding="utf-8", errors="replace"):
        raise WriteError(f"{out}: is no page of studies; choose another file")
    found.sort(key=lambda one: (order.index(one[1]["study"]), one[1]["scale"]))
    parts = [_section(place, result, out) for place, result in found]
    with store.writing(out, out.with_name(f".{out.name}.partial")):
        out.parent.mkdir(parents=True, exist_ok=True)
        store.replace_text(
            out, document(_TITLE, [_MARK, _LEAD], _contents(found), parts)
        )
    return [
        {
            "study": result["study"],
            "scale": result["scale"],
            "rows": len(result["rows"]),
            "seeds": len(result["seeds"]),
            "cpu_hours": result["cpu_hours"],
            "report": str(place / REPORT),
        }
        for place, result in found
    ]


def _contents(found: list[tuple[Path, dict[str, Any]]]) -> str:
    lines = "".join(
        f'<li><a href="#{html.escape(place.name)}">{html.escape(headline(result))}</a>'
        "</li>"
        for place, result in found
    )
    return f'<nav aria-label="Contents"><ul>{lines}</ul></nav>'


def _section(place: Path, result: Plain, out: Path) -> str:
    """What was done, what it says, a table, every picture, the way to the rest."""
    study = find_study(result["study"])
    name = html.escape(place.name)
    link = html.escape(os.path.relpath(place / REPORT, out.parent))
    first = result_tables(study, result)[:1]
    said = reading(study, result)
    caption = f"{study.title}, {result['scale']}"
    told = result.get(PICTURES, {})
    pictures = [
        Picture(
            path,
            told.get(path.stem, {}).get("caption")
            or f"{caption}: {path.stem.replace('-', ' ')}",
            wide=told.get(path.stem, {}).get("wide", False),
        )
        for path in sorted((place / FIGURES).glob("*.png"))
    ]
    return "\n".join(
        [
            f'<h2 id="{name}">{html.escape(headline(result))}</h2>',
            f'<p class="lead">{html.escape(lead(result))}</p>',
            f'<p><a href="{link}">All tables of this study</a></p>',
            words_html(Words(said, "found")) if said else "",
            *(table_html(table, 3) for table in first),
            *(picture_html(picture) for picture in pictures),
        ]
    )
