"""Write the folder of a finished study, and one page that lists finished studies.

A folder holds tables, plots, the command and one page. It is written atomically and
replaces an earlier one of the same study and scale.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from epifalcon import store
from epifalcon.errors import DataError, WriteError
from epifalcon.reports import formats, plot_style
from epifalcon.reports.html_page import Link, Page, Part, Picture, Section, Text
from epifalcon.reports.metric_registry import glossary
from epifalcon.reports.tables import Table
from epifalcon.settings import as_plain, json_text
from epifalcon.studies import study_tables
from epifalcon.studies.catalogue import find_study, study_names
from epifalcon.studies.study import Study, StudyPlan
from epifalcon.types import Plain

_KIND: Final = "study"
"""Kind of a finished study in its manifest."""
_TABLE: Final = "table"
"""Name of the files with the result: ``table.json`` and others."""
_FIGURES: Final = "figures"
_PICTURES: Final = "pictures"
"""In ``table.json``: caption and width of each plot by its name."""
REPORT: Final = "report.html"
_MARKER = "epifalcon studies"
_MOST_LABELS = 4
"""Maximum number of cell labels in a row of the table of towns."""


def require_free(out: Path, planned: StudyPlan) -> None:
    """Raise ``WriteError`` if ``keep_study`` could not write to ``out``."""
    manifest = store.occupant(out, _KIND)
    if manifest is None:
        # Test writing to the parent folder; the trial file is removed.
        trial = out.with_name(f".{out.name}.trial")
        with store.writing(out, trial), store.parents_of(trial / "file"):
            return
    meta = manifest["meta"]
    if (meta["study"], meta["scale"]) != (planned.study.name, planned.scale):
        raise WriteError(
            f"{out}: holds study {meta['study']} at scale {meta['scale']}, not "
            f"{planned.study.name} at {planned.scale}; choose another folder"
        )
    if planned.scale == "full":
        _refuse_fewer_seeds(out, len(planned.seeds))
    store.refuse_occupied(out, overwrite=True)


def _refuse_fewer_seeds(out: Path, seeds: int) -> None:
    """Refuse to replace a table of more seeds: at full size a seed takes hours."""
    stored = 0
    # A damaged table needs no protection.
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = (out / f"{_TABLE}.json").read_text(encoding="utf-8")
        stored = len(json.loads(text)["seeds"])
    if seeds < stored:
        raise WriteError(
            f"{out}: holds {stored} seeds, {seeds} are asked for; choose another "
            f"folder with --out, or --seeds {stored}"
        )


def keep_study(out: Path, planned: StudyPlan, result: Plain) -> None:
    """Write every file of the study into ``out``, atomically."""
    require_free(out, planned)
    study = planned.study
    meta = {"study": study.name, "scale": planned.scale, "title": study.title}
    settings = {
        cell.label: as_plain(planned.plans[cell.label].experiment)
        for cell in planned.cells
    }
    origin = store.Origin.now(settings, None)
    with store.new_directory(out, overwrite=True) as scratch:
        write_files(scratch, planned, result)
        store.write_manifest(scratch, _KIND, meta=meta, origin=origin)


def write_files(folder: Path, planned: StudyPlan, result: Plain) -> None:
    """Write plots, tables and page of the study into ``folder``, the JSON last."""
    study = planned.study
    pictures = _draw(folder / _FIGURES, study, result)
    captions = {
        one.path.stem: {"caption": one.caption, "wide": one.wide} for one in pictures
    }
    said = study_tables.findings(result)
    stored = {**result, "reading": said, _PICTURES: captions}
    for name, text in {
        f"{_TABLE}.csv": study_tables.as_csv(study, result),
        f"{_TABLE}.md": study_tables.as_markdown(study, result, said),
        "command.txt": _command(result),
        REPORT: _page(planned, result, pictures).to_html(),
        f"{_TABLE}.json": json_text(stored, indent=1) + "\n",
    }.items():
        store.replace_text(folder / name, text)


def keep_comparison(planned: StudyPlan, result: Plain) -> Path:
    """Write the files of a comparison if its result changed; return its page."""
    (plan,) = planned.comparisons
    stored = plan.folder / f"{_TABLE}.json"
    with store.writing(plan.folder):
        before = stored.read_text(encoding="utf-8") if stored.is_file() else ""
        # Findings and captions follow the result in the file.
        if not before.startswith(json_text(result, indent=1)[:-2]):
            stored.unlink(missing_ok=True)
            write_files(plan.folder, planned, result)
    return plan.folder / REPORT


def finished_studies(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the results of finished studies by folder, with verified checksums."""
    found = {}
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (place / f"{_TABLE}.json").is_file():
            continue
        try:
            if store.read_manifest(place)["kind"] != _KIND:
                continue
        except DataError:
            # Not written by epifalcon.
            continue
        store.verify(place)
        text = (place / f"{_TABLE}.json").read_text(encoding="utf-8")
        found[place] = json.loads(text)
    return found


def write_report(results: Path, out: Path) -> list[dict[str, Any]]:
    """Write the page of all studies in ``results``; return a summary of each."""
    order = study_names()
    found = [
        (place, result)
        for place, result in finished_studies(results).items()
        if result["study"] in order
    ]
    if not found:
        raise DataError(
            f"{results}: holds no finished study; make one with: epifalcon study run "
            "NAME, or name the folder that has some: --results runs/studies"
        )
    if out.is_dir():
        raise WriteError(f"{out}: is a folder, expected a file to write")
    if out.is_file() and f"<!-- {_MARKER} -->" not in out.read_text(
        encoding="utf-8", errors="replace"
    ):
        raise WriteError(f"{out}: is no page of studies; choose another file")
    found.sort(key=lambda one: (order.index(one[1]["study"]), one[1]["scale"]))
    page = Page(
        title="epifalcon: studies",
        lead="Findings, first table and figures of each finished study. All tables are "
        "on the page of each.",
        sections=[_study_section(*one, out) for one in found],
        marker=_MARKER,
    )
    with store.writing(out, out.with_name(f".{out.name}.partial")):
        out.parent.mkdir(parents=True, exist_ok=True)
        store.replace_text(out, page.to_html())
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


def _study_section(place: Path, result: Plain, out: Path) -> Section:
    """Return findings, the first table and every plot of a study."""
    study = find_study(result["study"])
    link = os.path.relpath(place / REPORT, out.parent)
    parts: list[Part] = [Link("All tables of this study", link), *_said(result)]
    parts += study_tables.figure_tables(study, result)[:1]
    for path in sorted((place / _FIGURES).glob("*.png")):
        shown = result.get(_PICTURES, {}).get(path.stem, {})
        name = f"{study.title}, {result['scale']}: {path.stem.replace('-', ' ')}"
        wide = shown.get("wide", False)
        parts.append(Picture(path, shown.get("caption") or name, wide=wide))
    return Section(study_tables.headline(result), parts, study_tables.lead(result))


def _said(result: Plain) -> list[Text]:
    said = study_tables.findings(result)
    return [Text(said, "findings")] if said else []


def _draw(folder: Path, study: Study, result: Plain) -> list[Picture]:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    pictures = []
    for name, drawn in study.draw(result).items():
        path = folder / f"{name}.png"
        plot_style.save(drawn.figure, path)
        wide = plot_style.is_wide(drawn.figure)
        pictures.append(Picture(path, drawn.caption, wide=wide))
    return pictures


def _command(result: Plain) -> str:
    versions = ", ".join(f"{name} {one}" for name, one in result["versions"].items())
    lines = [
        result["made_by"],
        f"seeds {', '.join(map(str, result['seeds']))}",
        f"CPU-hours {result['cpu_hours']:.2f}",
        versions,
    ]
    return "\n".join(lines) + "\n"


def _page(planned: StudyPlan, result: Plain, pictures: Sequence[Picture]) -> Page:
    study, rows, seeds = planned.study, result["rows"], len(result["seeds"])
    cards = [
        (str(len(rows)), "row" if len(rows) == 1 else "rows"),
        (str(seeds), "seed" if seeds == 1 else "seeds"),
        (f"{result['cpu_hours']:.2g}", "CPU-hours"),
    ]
    honest = [row for row in rows if row["seeds"] and row["protocol"] == "reported"]
    if honest:
        best = max(honest, key=lambda row: row["metrics"]["auc"]["mean"] or 0.0)
        auc = formats.number(best["metrics"]["auc"]["mean"])
        where = "" if best["cell"] in best["title"] else f", {best['cell']}"
        cards.append((auc, f"highest AUC: {best['title']}{where}"))
    figures, differences = (
        study_tables.figure_tables(study, result),
        study_tables.difference_tables(result),
    )
    heads = [name for table in (*figures, *differences) for name in table.columns]
    terms = {**glossary([*heads, *(["±"] if seeds > 1 else [])]), **study.words}
    words = Table("", ["word", "meaning"], [list(one) for one in terms.items()])
    return Page(
        title=study_tables.headline(result),
        lead=study_tables.lead(result),
        headline=cards,
        sections=[
            Section("Results", [*_said(result), *figures]),
            Section("Figures", pictures),
            Section("Differences", differences),
            Section("Recalibration", study_tables.recalibration_tables(study, result)),
            Section("What the words mean", [words]),
            Section("What was run", [_towns(planned)]),
            Section("Cost", [study_tables.cost_table(result)]),
        ],
        settings_toml="\n".join(
            f"# {cell.label}\n"
            + " ".join(
                [f"--preset {cell.preset}", *(f"--set {one}" for one in cell.overrides)]
            )
            for cell in planned.cells
        ),
        made_by=_command(result),
        closing="This file needs nothing else. Beside it: figures/ (each figure as PNG "
        "and SVG), table.csv and table.json (every number), command.txt.",
    )


def _towns(planned: StudyPlan) -> Table:
    """Return city, disease and tests of each group of settings."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for cell in planned.cells:
        one = planned.plans[cell.label].experiment
        row = (
            f"{one.city.people:,}",
            f"{one.city.regions:,}",
            str(one.city.clock.days),
            f"{one.pathogen.name}, R0 {one.pathogen.r0:.3g}",
            f"{one.labels.label_share:.0%}",
            f"{one.reporting.trace_share:.0%}",
        )
        labels.setdefault(row, []).append(cell.label)
    rows = []
    for cells, named in labels.items():
        more = len(named) - _MOST_LABELS
        listed = "; ".join(named[:_MOST_LABELS])
        rows.append([*cells, listed + (f"; {more} more" if more > 0 else "")])
    columns = ["people", "regions", "days", "disease", "tested", "of traces reported"]
    seeds = formats.plural(len(planned.seeds), "seed")
    caption = f"Each of {seeds} is a synthetic city with its outbreak and tests"
    return Table(caption, [*columns, "settings"], rows)
