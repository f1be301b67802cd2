"""All studies by name: those of the paper in its order, then additional ones."""

from pathlib import Path
from typing import Any

from epifalcon.errors import SettingsError
from epifalcon.settings import unknown_name
from epifalcon.studies.own import frontier, scale, worlds
from epifalcon.studies.paper import ablation, authors, noise, overall, stages
from epifalcon.studies.paper.pseudo_tradeoff import STUDY as PSEUDO_TRADEOFF
from epifalcon.studies.paper.reporting_shares import LABEL_SHARE, TRACE_SHARE
from epifalcon.studies.study import SCALES, Scale, Study, StudyRequest, plan_study

_STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *(overall.STUDY, overall.OMICRON_STUDY, stages.STUDY, noise.STUDY),
        *(PSEUDO_TRADEOFF, ablation.STUDY, TRACE_SHARE, LABEL_SHARE),
        *(authors.STUDY, frontier.STUDY, worlds.STUDY, scale.STUDY),
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
        "runs": study_plan.runs,
        "cpu_hours": study.cpu_hours.get(scale),
        "cells": {cell.label: list(cell.methods) for cell in study_plan.cells},
    }
