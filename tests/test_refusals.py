"""Values that settings, mechanisms and receipts must refuse."""

from functools import partial

import pytest

from epifalcon.epidemic.cases import CaseSettings
from epifalcon.epidemic.labels import LabelSettings
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import BeliefSettings, OutbreakSettings
from epifalcon.errors import SettingsError
from epifalcon.evaluation.metrics import MetricSettings, evaluate
from epifalcon.methods.hbp import HbpSettings, MeanFieldSettings
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ImportSettings, ReadSettings
from epifalcon.mobility.subsample import ReportingSettings
from epifalcon.mobility.synthetic import CitySettings
from epifalcon.models.settings import DcrnnSettings, FalconSettings, TrainingSettings
from epifalcon.privacy.accounting import (
    Uploads,
    epsilon_of,
    gaussian_mu,
    log_delta_of,
    mu_for,
    paper_sigma,
    sigma_for,
)
from epifalcon.privacy.events import ONE_VECTOR, GaussianRelease, Releases, Terms
from epifalcon.privacy.gaussian import GaussianMechanism
from epifalcon.privacy.ledger import Budget
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings
from epifalcon.settings import build

NAN, INF = float("nan"), float("inf")
TABLE = {
    Clock: {
        "slot_hours": [0, -2, 5, 48, 0.01, 2.001, NAN, INF, "2", None, True],
        "days": [0, -1, 2.5, 2.0, NAN, "3", True],
        "start": ["2020-13-01", "20200301", "2020-W09-7", "", "x", 3],
        "timezone": ["Mars/Olympus", "", "../x", "Europe", "/etc/passwd"],
    },
    CitySettings: {
        "people": [0, -3, 2**31, 10.5, True],
        "regions": [0, 2**31 + 5],
        "days": [0],
        "towns": [-1],
        "kind": ["village"],
        "slot_hours": [5.0, 0.0],
        "start": ["yesterday"],
        "region_radius_km": [0.0],
        "built_share": [0.0, 1.5],
        "commuter_share": [1.1],
        "observed_share": [-0.1, NAN],
        "visit_scale_km": [0.0],
        "commute_cutoff_km": [INF],
        "stay_exponent": [1.0, NAN, INF],
        "stay_min_hours": [0.0, 13.0],
        "stay_max_hours": [25.0],
        "exploration": [2.0],
        "home_sigma": [60.0, -0.1],
        "attraction_sigma": [60.0],
    },
    ReportingSettings: {
        "last_days": [0, -1, 2.5, True],
        "trace_share": [-0.1, 1.1, NAN],
    },
    CaseSettings: {
        "measure": ["odds"],
        "window_days": [0, 1.5],
        "growth": [-0.1, NAN],
        "prior_people": [0.0],
    },
    OutbreakSettings: {
        "model": ["sier"],
        "contact": ["I/R"],
        "kappa": ["R0", -1],
        "seed_count": [-1],
        "seed_share": [1.2],
        "seed_people": [(1, 1), (-1,)],
        "seed_regions": [(-2,)],
        "symptomatic_share": [2],
        "onset_rate": [0],
        "regional_sigma": [-1.0],
        "dispersion": [0.0],
    },
    BeliefSettings: {"beta_factor": [0.0, -1.0, INF]},
    partial(Pathogen, beta=1, alpha=1, mu=1): {"name": [" "]},
    partial(Pathogen, name="x", alpha=1, mu=1): {"beta": [-0.1, INF]},
    partial(Pathogen, name="x", beta=1, alpha=1): {"mu": [0.0]},
    partial(Pathogen, name="x", beta=1, mu=1): {"alpha": [NAN]},
    LabelSettings: {
        "label_share": [1.5],
        "target": ["evr"],
        "false_negative": [-0.1, 1.1],
        "test_days": [(3, 1), (-1, 1)],
    },
    ReadSettings: {
        "columns": [("person",)],
        "delimiter": [",,"],
        "max_refused_share": [2],
        "epoch_unit": ["h"],
    },
    ImportSettings: {"kind": ["pongs"]},
    DcrnnSettings: {"hidden_width": [0, 1.5], "diffusion_steps": [-1]},
    HbpSettings: {"sweeps": [0], "folds": [-1]},
    MeanFieldSettings: {"sweeps": [0]},
    FalconSettings: {
        "width": [0],
        "layers": [1.5],
        "dropout": [1.0],
        "input_dropout": [-0.1],
        "learning_rate": [NAN],
        "mask_share": [0],
        "input": ["trace"],
        "gradient_path": ["all"],
        "precision": ["half"],
    },
    TrainingSettings: {
        "steps": [0],
        "learning_rate": [NAN],
        "gradient_clip": [-1.0],
        "horizon": [0],
        "validation_share": [0.0, 1.5],
        "patience": [0],
        "origins_per_step": [0],
    },
    partial(ImportSettings, kind="pings"): {
        "regions": ["given", "polygons", "towers"],
        "polygons": ["x"],
        "places": ["x"],
        "h3_resolution": [16],
        "cell_km": [0],
        "days": [0],
        "start": ["March"],
        "timezone": ["Mars"],
        "slot_hours": [5],
        "fill_gap_hours": [-1],
    },
    partial(ImportSettings, kind="matrix"): {
        "regions": ["grid"],
        "matrix_slot_hours": [4],
    },
    MetricSettings: {"budget": [0, 1.5], "bins": [0]},
    partial(evaluate, [0.5, 0.1], [1, 0]): {"extinction_recall": [-0.1, NAN]},
    DomainSettings: {"count": [0, 2.5], "gamma": [-1.0], "least_regions": [0]},
    PseudoSettings: {
        "method": ["plausibel"],
        "pseudo_copies": [-1, 1.5, 20],
        "people_share": [0.0, -0.5, 1.01, NAN],
    },
    Budget: {"person": [-1.0], "day": [NAN], "delta": [0.0, 1.0]},
    lambda **given: Uploads(**given).sensitivity: {
        "clip": [0.0],
        "rounds": [0],
        "slots": [0],
        "slots_per_day": [0],
        "delta": [1.0],
        "paper_delta": [0.0],
        "relation": ["add-remove", "none"],
    },
    partial(GaussianMechanism, sigma=1.0): {"clip": [0.0, INF]},
    partial(GaussianMechanism, 1.0): {"sigma": [-1.0]},
    partial(mu_for, 1.0): {"delta": [0.0, 1.0]},
    mu_for: {"epsilon": [-1.0]},
    epsilon_of: {"mu": [-1.0, NAN]},
    partial(epsilon_of, 1.0): {"delta": [2.0]},
    partial(log_delta_of, mu=1.0): {"epsilon": [-1.0]},
    partial(gaussian_mu, 0.1, 0.1): {"releases": [-1]},
    partial(sigma_for, 8, 1e-6, 0.1): {"releases": [0]},
    partial(paper_sigma, delta=1e-6, clip=0.1, rounds=1): {"epsilon": [0]},
    partial(Releases, day=1, person=1): {"visit": [0]},
    partial(Releases, visit=1, person=12): {"day": [13]},
    partial(Terms, releases=ONE_VECTOR): {"channel": [" "]},
    partial(Terms, channel="x", releases=ONE_VECTOR): {
        "round": [-1],
        "relation": ["similar"],
        "adversary": ["nobody"],
    },
    partial(GaussianRelease, terms=Terms(channel="x", releases=ONE_VECTOR), clip=1.0): {
        "sigma": [-1.0, NAN, INF]
    },
    ONE_VECTOR.of: {"unit": ["week"]},
}


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (make, name, value)
        for make, wrong in TABLE.items()
        for name, values in wrong.items()
        for value in values
    ],
)
def test_an_impossible_value_is_refused_by_name(make, name, value):
    with pytest.raises(SettingsError, match=name):
        make(**{name: value})


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (
            OutbreakSettings,
            {"seed_count": 3, "seed_share": 0.1},
            "seed_count and seed_share exclude",
        ),
        (OutbreakSettings, {"seed_people": [1], "seed_regions": [1]}, "exclude each"),
        (OutbreakSettings, {"seeds": 3}, "unknown setting 'seeds'"),
        (Pathogen, {**vars(SARS_COV_2), "gamma": 1}, "unknown setting"),
        (
            LabelSettings,
            {"false_negative": 0.6, "false_positive": 0.4},
            "add up to less than 1",
        ),
        (LabelSettings, {"test_days": [1]}, "test_days"),
        (FalconSettings, {"class_weights": [1.0, 0.0]}, "class_weights=0"),
    ],
)
def test_values_that_do_not_go_together_are_refused(cls, values, message):
    with pytest.raises(SettingsError, match=message):
        build(cls, values)
