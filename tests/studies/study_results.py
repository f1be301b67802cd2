"""Studies whose runs are made up: every table and picture without a training."""

from dataclasses import replace
from functools import cache

from epifalcon.experiments.run_folder import FollowUpResult, MethodFailure
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import Cell, Study, StudyRequest, plan_study
from tests.studies import method_results

VALUES = {
    "audit": ("norm", "energy", "consistency", "moves", "result from rows", "random"),
    "places": ("claimants", "moves", "recurrence", "moves by sets", "random"),
    "sizes": ("people", "edges", "incidences", "contacts", "meetings"),
}


@cache
def earned(seed, skill):
    return method_results.method_result(seed, skill, people=300)


def made_up(study, work, scale="hamlet", seeds=2, methods=()):
    """The study as if it had run: a method's skill is by the length of its name."""
    study_plan = plan_study(
        study, StudyRequest(scale=scale, seeds=seeds, methods=methods), work
    )
    found = {}
    for cell in study_plan.cells:
        for method in cell.methods:
            skill = 0.5 + len(method) % 5 / 2
            by_seed = {seed: earned(seed, skill) for seed in study_plan.seeds}
            found.setdefault(cell.label, {})[method] = by_seed
            for seed in study_plan.seeds:
                if cell.then is not None:
                    values = dict.fromkeys(VALUES[cell.then], 0.1 + seed / 10)
                    place = study_plan.plans[cell.label].place(seed, method)
                    FollowUpResult(values, 3.6).save(place / cell.then)
    return StudyRun(study_plan, found)


def nothing(_result):
    return {}


def tiny_study(preset, methods=("soft-dct-ratio", "fine"), draw=nothing, **more):
    """Two cells on a town: as it is, and with half of the traces."""
    whole = Cell(label="whole", preset=preset, methods=tuple(methods))
    half = replace(whole, label="half", overrides=("reporting.trace_share=0.5",))
    values = {"name": "tiny", "title": "Tiny", "what": "A trial.", "shows": "nothing"}
    return Study(
        **{**values, "cells": lambda _scale: [whole, half], "draw": draw, **more}
    )


def failed(ran, cell, method, seed, why="it broke"):
    """The same, but one run has failed."""
    found = {label: dict(one) for label, one in ran.results.items()}
    found[cell][method] = {**found[cell][method], seed: MethodFailure(why)}
    return StudyRun(ran.study_plan, found)
