"""The folder of a finished study: tables, pictures, command, one page.

It appears whole, in place of an earlier one of the same study and scale.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from epifalcon import store
from epifalcon.errors import CorruptFileError, EpifalconError, WriteError
from epifalcon.settings import as_plain, json_text
from epifalcon.studies import figures
from epifalcon.studies.report import Page, Picture, Section, Table, Words
from epifalcon.studies.study import KIND, TABLE, Study
from epifalcon.studies.study_plan import Planned
from epifalcon.studies.study_reading import MEANINGS, reading
from epifalcon.studies.study_tables import (
    as_csv,
    as_markdown,
    cost_table,
    difference_tables,
    figure_tables,
    headline,
    lead,
    shown,
)
from epifalcon.types import Plain

FIGURES: Final = "figures"
PICTURES: Final = "pictures"
"""In ``table.json``: caption and width of each picture by its name."""
REPORT: Final = "report.html"
COMMAND: Final = "command.txt"
_WIDE: Final = 8.0
"""Inches from which on a picture has several panels and takes the whole width."""


def require_free(out: Path, planned: Planned) -> None:
    """Refuse, before anything runs, a folder that ``keep_study`` would refuse."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        _try_writing(out)
        return
    if not (out / store.MANIFEST).is_file():
        store.refuse_occupied(out, overwrite=False)
    manifest = store.read_manifest(out)
    if manifest["kind"] != KIND:
        raise WriteError(
            f"{out}: holds {manifest['kind']!r}, not a study; choose another folder"
        )
    meta = manifest["meta"]
    wanted = (planned.study.name, planned.scale)
    if (meta["study"], meta["scale"]) != wanted:
        raise WriteError(
            f"{out}: holds study {meta['study']} at scale {meta['scale']}, not "
            f"{wanted[0]} at {wanted[1]}; choose another folder"
        )
    store.refuse_occupied(out, overwrite=True)


def _try_writing(out: Path) -> None:
    """Make a folder beside ``out`` and take it away, with all that it needed."""
    trial, made = out.with_name(f".{out.name}.trial"), list[Path]()
    with store.writing(out, trial):
        try:
            store.make_parents(trial, made)
        finally:
            for place in reversed(made):
                place.rmdir()


def keep_study(out: Path, planned: Planned, result: Plain) -> None:
    """Write every file of the study into ``out``, all at once."""
    require_free(out, planned)
    study = planned.study
    meta = {"study": study.name, "scale": planned.scale, "title": study.title}
    settings = {
        cell.label: as_plain(planned.plans[cell.label].experiment)
        for cell in planned.cells
    }
    origin = store.Origin.now(settings, None)
    with store.new_directory(out, overwrite=True) as scratch:
        pictures = _draw(scratch / FIGURES, study, result)
        shown_below = {
            one.path.stem: {"caption": one.caption, "wide": one.wide}
            for one in pictures
        }
        kept = {**result, PICTURES: shown_below}
        _write(scratch / f"{TABLE}.json", json_text(kept, indent=1) + "\n")
        _write(scratch / f"{TABLE}.csv", as_csv(study, result))
        _write(
            scratch / f"{TABLE}.md", as_markdown(study, result, reading(study, result))
        )
        _write(scratch / COMMAND, _command(result))
        page = _page(planned, result, pictures)
        _write(scratch / REPORT, page.to_html())
        store.write_manifest(scratch, KIND, meta=meta, origin=origin)


def finished_studies(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The folders of finished studies in ``folder`` with their results, by name.

    Every byte of each is checked.
    """
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (place / f"{TABLE}.json").is_file():
            continue
        try:
            if store.read_manifest(place)["kind"] != KIND:
                continue
        except CorruptFileError:
            raise
        except EpifalconError:
            # Somebody else's table.
            continue
        store.verify(place)
        text = (place / f"{TABLE}.json").read_text(encoding="utf-8")
        found.append((place, json.loads(text)))
    return found


def _draw(folder: Path, study: Study, result: Plain) -> list[Picture]:
    folder.mkdir()
    pictures = []
    for name, drawn in study.draw(result).items():
        path = folder / f"{name}.png"
        figures.save(drawn.figure, path)
        wide = bool(drawn.figure.get_figwidth() > _WIDE)
        pictures.append(Picture(path, drawn.caption, wide=wide))
    return pictures


def _command(result: Plain) -> str:
    versions = ", ".join(f"{name} {one}" for name, one in result["versions"].items())
    return (
        f"{result['made_by']}\n"
        f"seeds {', '.join(map(str, result['seeds']))}\n"
        f"CPU-hours {result['cpu_hours']:.2f}\n"
        f"{versions}\n"
    )


def _page(planned: Planned, result: Plain, pictures: Sequence[Picture]) -> Page:
    rows = result["rows"]
    cards = [
        (str(len(rows)), "rows"),
        (str(len(result["seeds"])), "seeds"),
        (f"{result['cpu_hours']:.2g}", "CPU-hours"),
    ]
    judged = [row for row in rows if row["seeds"] and row["kind"] != "ceiling"]
    judged = [row for row in judged if row["protocol"] == "reported"]
    if judged:
        best = max(judged, key=lambda row: row["metrics"]["auc"]["mean"] or 0.0)
        auc = shown(best["metrics"]["auc"]["mean"])
        cards.append((auc, f"highest AUC: {best['title']}, {best['cell']}"))
    return Page(
        title=headline(result),
        lead=lead(result),
        headline=cards,
        pictures=[],
        tables=[],
        settings_toml=_settings(planned),
        made_by=_command(result),
        sections=_sections(planned.study, result, pictures),
        closing="This file needs nothing else. Beside it: figures/ (each figure as PNG "
        "and SVG), table.csv and table.json (every number), command.txt.",
    )


def _sections(
    study: Study, result: Plain, pictures: Sequence[Picture]
) -> list[Section]:
    """What came out in words, tables, pictures; then how sure, and at what cost."""
    said = reading(study, result)
    meanings = [list(one) for one in MEANINGS.items()]
    results = [Words(said, "found")] if said else []
    made = [
        Section("Results", [*results, *figure_tables(study, result)]),
        Section("Figures", pictures),
        Section("Differences", difference_tables(result)),
        Section("What the words mean", [Table("", ["word", "meaning"], meanings)]),
        Section("Cost", [cost_table(result)]),
    ]
    return [
        section
        for section in made
        if any(not isinstance(part, Table) or part.rows for part in section.parts)
    ]


def _settings(planned: Planned) -> str:
    """Each cell as the words that make it; the presets are in the package."""
    lines = []
    for cell in planned.cells:
        words = [f"--preset {cell.preset}"]
        words += [f"--set {one}" for one in cell.overrides]
        lines.append(f"# {cell.label}\n{' '.join(words)}")
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
