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
from epifalcon.studies.study_reading import meanings, reading
from epifalcon.studies.study_tables import (
    as_csv,
    as_markdown,
    cost_table,
    difference_tables,
    figure_tables,
    headline,
    lead,
    shown,
    sources,
)
from epifalcon.types import Plain

FIGURES: Final = "figures"
PICTURES: Final = "pictures"
"""In ``table.json``: caption and width of each picture by its name."""
REPORT: Final = "report.html"
COMMAND: Final = "command.txt"
_LISTED: Final = 4
"""Settings that a line of the table of towns names."""


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
    _refuse_fewer_seeds(out, planned)
    store.refuse_occupied(out, overwrite=True)


def _refuse_fewer_seeds(out: Path, planned: Planned) -> None:
    """At full size seeds are hours: a table of more is not replaced by one of fewer."""
    if planned.scale != "full":
        return
    asked = len(planned.seeds)
    try:
        text = (out / f"{TABLE}.json").read_text(encoding="utf-8")
        there = len(json.loads(text)["seeds"])
    except (OSError, ValueError, KeyError):
        # Damaged: there is nothing to be kept.
        return
    if asked < there:
        raise WriteError(
            f"{out}: holds {there} seeds, {asked} are asked for; choose another folder "
            f"with --out, or --seeds {there}"
        )


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
        said = reading(study, result)
        kept = {**result, "reading": said, PICTURES: shown_below}
        _write(scratch / f"{TABLE}.json", json_text(kept, indent=1) + "\n")
        _write(scratch / f"{TABLE}.csv", as_csv(study, result))
        _write(scratch / f"{TABLE}.md", as_markdown(study, result, said))
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
        wide = figures.is_wide(drawn.figure)
        pictures.append(Picture(path, drawn.caption, wide=wide))
    return pictures


def _command(result: Plain) -> str:
    versions = ", ".join(f"{name} {one}" for name, one in result["versions"].items())
    lines = [
        result["made_by"],
        f"seeds {', '.join(map(str, result['seeds']))}",
        f"CPU-hours {result['cpu_hours']:.2f}",
        versions,
        *sources(result),
    ]
    return "\n".join(lines) + "\n"


def _page(planned: Planned, result: Plain, pictures: Sequence[Picture]) -> Page:
    rows, seeds = result["rows"], len(result["seeds"])
    cards = [
        (str(len(rows)), "row" if len(rows) == 1 else "rows"),
        (str(seeds), "seed" if seeds == 1 else "seeds"),
        (f"{result['cpu_hours']:.2g}", "CPU-hours"),
    ]
    judged = [row for row in rows if row["seeds"] and row["kind"] != "ceiling"]
    judged = [row for row in judged if row["protocol"] == "reported"]
    if judged:
        best = max(judged, key=lambda row: row["metrics"]["auc"]["mean"] or 0.0)
        auc = shown(best["metrics"]["auc"]["mean"])
        where = "" if best["cell"] in best["title"] else f", {best['cell']}"
        cards.append((auc, f"highest AUC: {best['title']}{where}"))
    return Page(
        title=headline(result),
        lead=lead(result),
        headline=cards,
        pictures=[],
        tables=[],
        settings_toml=_settings(planned),
        made_by=_command(result),
        sections=_sections(planned, result, pictures),
        closing="This file needs nothing else. Beside it: figures/ (each figure as PNG "
        "and SVG), table.csv and table.json (every number), command.txt.",
    )


def _sections(
    planned: Planned, result: Plain, pictures: Sequence[Picture]
) -> list[Section]:
    """What came out in words, tables, pictures; then how sure, and at what cost."""
    study, said = planned.study, reading(planned.study, result)
    results = [Words(said, "found")] if said else []
    figured, differing = figure_tables(study, result), difference_tables(result)
    heads = [name for table in (*figured, *differing) for name in table.columns]
    words = meanings(study, heads, several=len(result["seeds"]) > 1)
    listed = [list(one) for one in words.items()]
    made = [
        Section("Results", [*results, *figured]),
        Section("Figures", pictures),
        Section("Differences", differing),
        Section("What the words mean", [Table("", ["word", "meaning"], listed)]),
        Section("What was run", [_towns(planned)]),
        Section("Cost", [cost_table(result)]),
    ]
    return [
        section
        for section in made
        if any(not isinstance(part, Table) or part.rows for part in section.parts)
    ]


def _towns(planned: Planned) -> Table:
    """Who lived where, with which disease, and what of it was told to methods."""
    named: dict[tuple[str, ...], list[str]] = {}
    for cell in planned.cells:
        one = planned.plans[cell.label].experiment
        city, disease = one.city, one.pathogen
        told = (
            f"{city.people:,}",
            f"{city.regions:,}",
            str(city.clock.days),
            f"{disease.name}, R0 {disease.r0:.3g}",
            f"{one.labels.label_share:.0%}",
            f"{one.reporting.trace_share:.0%}",
        )
        named.setdefault(told, []).append(cell.label)
    rows = [[*told, _some(labels)] for told, labels in named.items()]
    columns = ["people", "regions", "days", "disease", "tested", "of traces reported"]
    seeds = "1 seed" if len(planned.seeds) == 1 else f"{len(planned.seeds)} seeds"
    caption = f"Each of {seeds} is a synthetic city with its outbreak and tests"
    return Table(caption, [*columns, "settings"], rows)


def _some(labels: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f"; {len(labels) - _LISTED} more" if len(labels) > _LISTED else ""
    return "; ".join(labels[:_LISTED]) + more


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
