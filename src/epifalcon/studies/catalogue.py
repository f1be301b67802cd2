"""All studies by name, and one page of those that are finished."""

import json
import os
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.reports.html_page import Link, Page, Part, Picture, Section
from epifalcon.settings import unknown_name
from epifalcon.studies import study_tables
from epifalcon.studies.own import foreign, frontier, scale, worlds
from epifalcon.studies.paper import ablation, authors, noise, overall, stages
from epifalcon.studies.paper.pseudo_tradeoff import STUDY as PSEUDO_TRADEOFF
from epifalcon.studies.paper.reporting_shares import LABEL_SHARE, TRACE_SHARE
from epifalcon.studies.study import SCALES, Scale, Study, StudyRequest, plan_study
from epifalcon.studies.study_report import (
    KIND,
    PICTURES,
    PLOTS,
    REPORT,
    TABLE,
    findings_text,
)
from epifalcon.types import Plain

_MARKER = "epifalcon studies"

_STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *(overall.STUDY, overall.OMICRON_STUDY, stages.STUDY, noise.STUDY),
        *(PSEUDO_TRADEOFF, ablation.STUDY, TRACE_SHARE, LABEL_SHARE),
        *(authors.STUDY, frontier.STUDY, worlds.STUDY, foreign.STUDY),
        scale.STUDY,
    )
}


def study_names() -> list[str]:
    """Return every study's name, in order."""
    return list(_STUDIES)


def find_study(name: str) -> Study:
    """Return the study ``name``; raise ``SettingsError`` if it is unknown."""
    if name not in _STUDIES:
        raise SettingsError(unknown_name("study", name, _STUDIES))
    return _STUDIES[name]


def study_entries() -> list[dict[str, Any]]:
    """Return the entries of ``epifalcon study list --json``, scale_name per study."""
    return [
        {
            "name": study.name,
            "title": study.title,
            "what": study.what,
            "paper": study.shows,
            "scales": {scale: _scale_entry(study, scale) for scale in SCALES},
        }
        for study in _STUDIES.values()
    ]


def _scale_entry(study: Study, scale: Scale) -> dict[str, Any]:
    study_plan = plan_study(study, StudyRequest(scale=scale), Path())
    return {
        "seeds": len(study_plan.seeds),
        "first_seed": study_plan.seeds[0],
        "runs": len(study_plan.runs),
        "cpu_hours": study.cpu_hours.get(scale),
        "cells": {cell.label: list(cell.methods) for cell in study_plan.cells},
    }


def finished_studies(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the results of finished studies by folder, with verified checksums."""
    studies = {}
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (place / f"{TABLE}.json").is_file():
            continue
        try:
            if store.read_manifest(place)["kind"] != KIND:
                continue
        except DataError:
            # Not written by epifalcon.
            continue
        store.verify(place)
        text = (place / f"{TABLE}.json").read_text(encoding="utf-8")
        studies[place] = json.loads(text)
    return studies


def write_report(results: Path, out: Path) -> list[dict[str, Any]]:
    """Write the page of all studies in ``results``; return a summary of each."""
    order = study_names()
    studies = [
        (place, result)
        for place, result in finished_studies(results).items()
        if result["study"] in order
    ]
    if not studies:
        raise DataError(
            f"{results}: holds no finished study; run one with: epifalcon study run "
            "NAME, or give another folder, as in --results runs/studies"
        )
    if out.is_dir():
        raise WriteError(f"{out}: is a folder, expected a file to write")
    if out.is_file() and f"<!-- {_MARKER} -->" not in out.read_text(
        encoding="utf-8", errors="replace"
    ):
        raise WriteError(f"{out}: is not a page of studies; choose another file")
    studies.sort(key=lambda one: (order.index(one[1]["study"]), one[1]["scale"]))
    page = Page(
        title="epifalcon: studies",
        lead="Findings, first table and plots of each finished study. The page of each "
        "study has all tables.",
        sections=[_study_section(*one, out) for one in studies],
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
        for place, result in studies
    ]


def _study_section(place: Path, result: Plain, out: Path) -> Section:
    """Return findings, the first table and every plot of a study."""
    study = find_study(result["study"])
    link = os.path.relpath(place / REPORT, out.parent)
    parts: list[Part] = [Link("All tables of this study", link), *findings_text(result)]
    parts += study_tables.metric_tables(study, result)[:1]
    for path in sorted((place / PLOTS).glob("*.png")):
        shown = result.get(PICTURES, {}).get(path.stem, {})
        name = f"{study.title}, {result['scale']}: {path.stem.replace('-', ' ')}"
        wide = shown.get("wide", False)
        parts.append(Picture(path, shown.get("caption") or name, wide=wide))
    return Section(study_tables.headline(result), parts, study_tables.lead(result))
