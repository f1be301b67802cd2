"""The layer and study ``authors``: what they hold, and that they reach nothing else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.experiments.experiment import Experiment, layer_names, preset_names
from epifalcon.experiments.run_methods import context_of
from epifalcon.federation.preparation import Selection
from epifalcon.federation.settings import StoppingSettings
from epifalcon.federation.training import fit
from epifalcon.settings import as_plain
from epifalcon.studies.paper.authors import LADDER, PARTS, STUDY
from epifalcon.studies.study import StudyRequest, plan_study
from epifalcon.studies.study_rows import protocol
from tests.studies import town

OF_THE_LAYER = (
    *("city.fill_gaps", "model.head", "model.learning_rate_milestones"),
    *("region.macro_cases", "region.scale_states", "region.network.kind"),
    *("stopping.selected_on", "privacy.clipped", "privacy.upload_noise"),
    "privacy.gradient_noise",
)
"""Settings that only the layer ``authors`` changes."""


def value_of(experiment, key):
    plain = as_plain(experiment)
    for part in key.split("."):
        plain = plain[part]
    return plain


def test_no_other_preset_or_layer_has_anything_of_the_authors_program():
    default = Experiment()
    others = [name for name in layer_names() if name != "authors"]
    sources = [
        *preset_names(),
        *(f"{preset}+{layer}" for preset in preset_names() for layer in others),
    ]
    for source in sources:
        found = Experiment.load(source)
        for key in OF_THE_LAYER:
            assert value_of(found, key) == value_of(default, key), (source, key)
    authors = Experiment.load("larger-sars+authors")
    for key in OF_THE_LAYER:
        assert value_of(authors, key) != value_of(default, key), key


def test_the_defaults_are_honest():
    settings = Experiment().prediction
    assert settings.stopping.selected_on == "validation"
    assert settings.macro_cases == "reported"
    assert settings.privacy.is_published
    assert settings.region.is_published


def selected_on_test(**changes):
    stopping = StoppingSettings(check_every=2, selected_on="test")
    return replace(town.FALCON, stopping=stopping, **changes)


def test_only_a_run_that_names_it_is_given_test_people(tmp_path):
    honest = context_of(town.inputs(tmp_path), "falcon")
    assert honest.test_people is None
    assert honest.all_cases is None
    named = context_of(
        town.inputs(tmp_path, stopping=selected_on_test().stopping), "falcon"
    )
    truth = town.epidemic().labels.hidden.open("a test")
    np.testing.assert_array_equal(named.test_people.people, truth.person)
    np.testing.assert_array_equal(named.test_people.infected, truth.infected)


def test_test_people_choose_the_round_and_nobody_is_held_back():
    truth = town.epidemic().labels.hidden.open("a test")
    chosen = Selection(truth.person, truth.infected)
    task = replace(town.task(selected_on_test()), test_people=chosen)
    assert len(task.split.held_back) == 0
    found = fit(task)
    assert found.validation_auc == max(check.auc for check in found.checks)
    risk, infected = found.probability[truth.person], truth.infected
    pairs = risk[infected][:, None] - risk[~infected]
    auc = (pairs > 0).mean() + (pairs == 0).mean() / 2
    assert found.validation_auc == pytest.approx(auc)


@pytest.mark.parametrize("scale", ["hamlet", "full"])
def test_the_study_has_the_papers_rows_and_every_step(scale, tmp_path):
    study_plan = plan_study(STUDY, StudyRequest(scale=scale), tmp_path)
    cells = {cell.label: cell for cell in study_plan.cells}
    assert len([one for one in cells.values() if one.published]) == 6 + 5
    assert {"HGNN", *PARTS} <= cells.keys()
    steps = [cell for cell in study_plan.cells if "step" in cell.facts]
    assert len(steps) == len(LADDER) + 1
    for before, after in itertools.pairwise(steps):
        assert after.against[0].cell == before.label
    protocols = [protocol(study_plan, cell, "falcon") for cell in steps]
    both = "all cases, selected on test people"
    assert protocols[:3] == [both, "reported, selected on test people", "reported"]
    assert set(protocols[3:]) == {"reported"}
    last = study_plan.plans[steps[-2].label].experiment
    assert last.privacy.is_published
    assert last.region.is_published
    assert study_plan.plans[steps[-1].label].experiment.stopping == StoppingSettings()
