"""Write the folder of a finished study: tables, plots, the command and one page.

It is written atomically and replaces an earlier one of the same study and scale.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from epifalcon import store
from epifalcon.errors import WriteError
from epifalcon.reports import formats, plot_style
from epifalcon.reports.html_page import Page, Picture, Section, Text
from epifalcon.reports.metric_registry import glossary
from epifalcon.reports.tables import Table
from epifalcon.settings import as_plain, json_text
from epifalcon.studies import study_tables
from epifalcon.studies.study import Study, StudyPlan
from epifalcon.types import Plain

KIND: Final = "study"
"""Kind of a finished study in its manifest."""
TABLE: Final = "table"
"""Name of the files with the result: ``table.json`` and others."""
PLOTS: Final = "figures"
PICTURES: Final = "pictures"
"""In ``table.json``: caption and width of each plot by its name."""
REPORT: Final = "report.html"
_MOST_LABELS = 4
"""Maximum number of cell labels in a row of the table of towns."""


def require_free(out: Path, study_plan: StudyPlan) -> None:
    """Raise ``WriteError`` if ``write_study`` could not write to ``out``."""
    manifest = store.occupant(out, KIND)
    if manifest is None:
        # Test writing to the parent folder; the trial file is removed.
        trial = out.with_name(f".{out.name}.trial")
        with store.writing(out, trial), store.parents_of(trial / "file"):
            return
    meta = manifest["meta"]
    if (meta["study"], meta["scale"]) != (study_plan.study.name, study_plan.scale):
        raise WriteError(
            f"{out}: holds study {meta['study']} at scale {meta['scale']}, not "
            f"{study_plan.study.name} at {study_plan.scale}; choose another folder"
        )
    if study_plan.scale == "full":
        _refuse_fewer_seeds(out, len(study_plan.seeds))
    store.refuse_occupied(out, overwrite=True)


def _refuse_fewer_seeds(out: Path, seeds: int) -> None:
    """Raise ``WriteError`` if the stored table in ``out`` has more seeds."""
    stored = 0
    # A damaged table needs no protection.
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = (out / f"{TABLE}.json").read_text(encoding="utf-8")
        stored = len(json.loads(text)["seeds"])
    if seeds < stored:
        raise WriteError(
            f"{out}: holds {stored} seeds, but {seeds} were requested; choose another "
            f"folder with --out, or --seeds {stored}"
        )


def write_study(out: Path, study_plan: StudyPlan, result: Plain) -> None:
    """Write every file of the study into ``out``, atomically."""
    require_free(out, study_plan)
    study = study_plan.study
    meta = {"study": study.name, "scale": study_plan.scale, "title": study.title}
    settings = {
        cell.label: as_plain(study_plan.plans[cell.label].experiment)
        for cell in study_plan.cells
    }
    origin = store.Origin.now(settings, None)
    with store.new_directory(out, overwrite=True) as scratch:
        write_files(scratch, study_plan, result)
        store.write_manifest(scratch, KIND, meta=meta, origin=origin)


def write_files(folder: Path, study_plan: StudyPlan, result: Plain) -> None:
    """Write plots, tables and page of the study into ``folder``, the JSON last."""
    study = study_plan.study
    pictures = _draw(folder / PLOTS, study, result)
    captions = {
        one.path.stem: {"caption": one.caption, "wide": one.wide} for one in pictures
    }
    sentences = study_tables.findings(result)
    stored = {**result, "reading": sentences, PICTURES: captions}
    for name, text in {
        f"{TABLE}.csv": study_tables.as_csv(study, result),
        f"{TABLE}.md": study_tables.as_markdown(study, result, sentences),
        "command.txt": _command(result),
        REPORT: _page(study_plan, result, pictures).to_html(),
        f"{TABLE}.json": json_text(stored, indent=1) + "\n",
    }.items():
        store.replace_text(folder / name, text)


def write_comparison(study_plan: StudyPlan, result: Plain) -> Path:
    """Write the files of a comparison if its result changed; return its page."""
    (plan,) = study_plan.comparisons
    stored = plan.folder / f"{TABLE}.json"
    with store.writing(plan.folder):
        before = stored.read_text(encoding="utf-8") if stored.is_file() else ""
        # Findings and captions follow the result in the file.
        if not before.startswith(json_text(result, indent=1)[:-2]):
            stored.unlink(missing_ok=True)
            write_files(plan.folder, study_plan, result)
    return plan.folder / REPORT


def findings_text(result: Plain) -> list[Text]:
    """Return the findings of a study as a part of a page; empty if there are none."""
    sentences = study_tables.findings(result)
    return [Text(sentences, "findings")] if sentences else []


def _draw(folder: Path, study: Study, result: Plain) -> list[Picture]:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    pictures = []
    for name, plot in study.draw(result).items():
        if plot.figure is not None:
            path = folder / f"{name}.png"
            pictures.append(plot_style.picture(plot.figure, path, plot.caption))
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


def _page(study_plan: StudyPlan, result: Plain, pictures: Sequence[Picture]) -> Page:
    study, rows, seeds = study_plan.study, result["rows"], len(result["seeds"])
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
        label = f"highest AUC (area under the ROC curve): {best['title']}{where}"
        cards.append((auc, label))
    metrics, differences = (
        study_tables.metric_tables(study, result),
        study_tables.difference_tables(result),
    )
    heads = [name for table in (*metrics, *differences) for name in table.columns]
    terms = {**glossary([*heads, *(["±"] if seeds > 1 else [])]), **study.glossary}
    meanings = Table("", ["term", "meaning"], [list(item) for item in terms.items()])
    return Page(
        title=study_tables.headline(result),
        lead=study_tables.lead(result),
        headline=cards,
        sections=[
            Section("Results", [*findings_text(result), *metrics]),
            Section("Plots", pictures),
            Section("Differences", differences),
            Section("Recalibration", study_tables.recalibration_tables(study, result)),
            Section("Glossary", [meanings]),
            Section("What was run", [_towns(study_plan)]),
            Section("Cost", [study_tables.cost_table(result)]),
        ],
        settings_toml="\n".join(
            f"# {cell.label}\n"
            + " ".join(
                [f"--preset {cell.preset}", *(f"--set {one}" for one in cell.overrides)]
            )
            for cell in study_plan.cells
        ),
        made_by=_command(result),
        closing="This page is self-contained. In the same folder: figures/ (each plot "
        "as PNG and SVG), table.csv and table.json (all numbers), command.txt.",
    )


def _towns(study_plan: StudyPlan) -> Table:
    """Return a table of the distinct cities, diseases and test shares of the cells."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for cell in study_plan.cells:
        one = study_plan.plans[cell.label].experiment
        row = (
            f"{one.city.people:,}",
            f"{one.city.regions:,}",
            str(one.city.clock.days),
            f"{one.pathogen.name}, reproduction number {one.pathogen.r0:.3g}",
            f"{one.labels.label_share:.0%}",
            f"{one.reporting.trace_share:.0%}",
        )
        labels.setdefault(row, []).append(cell.label)
    rows = []
    for cells, named in labels.items():
        more = len(named) - _MOST_LABELS
        listed = "; ".join(named[:_MOST_LABELS])
        rows.append([*cells, listed + (f"; {more} more" if more > 0 else "")])
    columns = ["people", "regions", "days", "disease", "tested", "traces reported"]
    seeds = formats.plural(len(study_plan.seeds), "seed")
    caption = f"{seeds}, each a synthetic city with its own outbreak and tests"
    return Table(caption, [*columns, "settings"], rows)
