"""Clip and noise of the authors' program: what they do, and that they bind nothing."""

import math

import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError
from epifalcon.federation.client import Client
from epifalcon.federation.engine import EdgeExchange, train
from epifalcon.federation.falcon.site_run import require_federable
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.settings import PredictionSettings, PrivacySettings
from epifalcon.models.person_model import Exchange
from epifalcon.models.settings import DcrnnSettings, RegionSettings
from tests.federation.small_world import city, engine_of, plan_of, settings_of

PARTS = {"clipped": "change", "upload_noise": "place", "gradient_noise": "weights"}
PROGRAM = {"mode": "paper", **PARTS}
EACH = [{name: value} for name, value in PARTS.items()]


def passed(whole, rows, number, kind="upload", sigma=0.5):
    settings = settings_of()
    plan = plan_of(settings, len(whole.pseudo), **PROGRAM, upload_sigma=sigma)
    passage = EdgeExchange.of(whole, None, plan)
    return passage.carry(Exchange(kind, 0, rows), 7, kind, number).numpy()


def noise_of(whole, number=3, kind="upload"):
    """What a round adds to rows of zeros."""
    zeros = torch.zeros(len(whole.people), 6)
    return passed(whole, zeros, number, kind)


def test_noise_is_one_value_for_all_columns_and_absent_from_the_first_round():
    whole = city(40)
    found = noise_of(whole)
    there = whole.incidence.degree > 0
    assert (found[there, 0] != 0).all()
    np.testing.assert_array_equal(found, np.repeat(found[:, :1], 6, axis=1))
    assert not noise_of(whole, number=0).any()
    assert not noise_of(whole, kind="return").any()
    assert (noise_of(whole, number=4) != found)[there].all()


def test_a_place_has_the_noise_of_a_mean_of_uploads_pseudo_ones_included():
    for copies in (0, 4):
        whole = city(30, copies=copies)
        inc = whole.incidence
        drawn = np.stack([noise_of(whole, number)[:, 0] for number in range(1, 3000)])
        person = int(inc.degree.argmax())
        members = np.repeat(np.arange(inc.edges), inc.size)
        edges = members[inc.by_edge.index == person]
        variance = (0.25 / whole.uploads[edges]).sum() / inc.degree[person] ** 2
        # 3,000 draws: the standard error of a variance is 2.6 %.
        assert drawn[:, person].var() == pytest.approx(variance, rel=0.12)
    assert city(30, copies=4).uploads.sum() > city(30).uploads.sum()


@pytest.mark.parametrize(("clip", "acts"), [(1e-3, True), (0.5, False)])
def test_the_engine_clips_changes_and_sends_rows_as_they_are(clip, acts):
    whole = city(30, copies=1)
    settings = settings_of(dropout=0.0, gradient_path="exchanged", embedding_scale=1.0)
    no_noise = {"upload_sigma": 0.0, "gradient_sigma": 0.0}
    engine = engine_of(whole, settings, **PROGRAM, **no_noise, upload_clip=clip)
    before = engine.state().tensors["home/rows"]
    train(engine, 1)
    norms = (engine.state().tensors["home/rows"] - before).norm(dim=1)
    assert norms.max() <= clip * 1.001
    bare = engine_of(city(30), settings)
    train(bare, 1)
    mine, theirs = (one.state().tensors["home/rows"] for one in (engine, bare))
    assert torch.allclose(mine, theirs) != acts
    if not acts:
        train(engine, 5)
        train(bare, 5)
        for name, one in bare.state().tensors.items():
            assert torch.allclose(engine.state().tensors[name], one, atol=1e-6), name


def test_weights_get_noise_after_the_step_and_no_gradient_is_clipped():
    whole = city(30)
    settings = settings_of(dropout=0.0, gradient_path="exchanged", learning_rate=0.05)
    start = {**PROGRAM, "clipped": "row", "upload_sigma": 0.0}
    quiet = engine_of(whole, settings, **start, gradient_sigma=0.0)
    noisy = engine_of(whole, settings, **start, gradient_sigma=2.0)
    train(quiet, 1)
    train(noisy, 1)
    gaps = [
        (noisy.state().tensors[name] - one).flatten()
        for name, one in quiet.state().tensors.items()
        if name.startswith("parameter/")
    ]
    gap = torch.cat(gaps)
    expected = 0.05 * 2.0 / math.sqrt(30)
    assert gap.std().item() == pytest.approx(expected, rel=0.25)
    for name in ("first/layer0.weight", "home/rows"):
        assert torch.equal(noisy.state().tensors[name], quiet.state().tensors[name])


def test_a_recorded_upload_is_the_bare_row_with_one_noise_value():
    whole = city(30, copies=2)
    settings = settings_of()
    plan = plan_of(settings, 2, **PROGRAM, upload_sigma=0.3)
    rows = 5 * torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    person = Client(whole, settings, plan, RunSeeds(3))
    exchange = Exchange("upload", 0, rows)
    sent = person.location_upload(exchange, "upload/0", 1, each_upload=True).rows
    true = torch.from_numpy(whole.claims.true)[:, None]
    noise = sent - true * rows[torch.from_numpy(whole.claims.row)]
    assert torch.allclose(noise, noise[:, :1].expand_as(noise), atol=1e-5)
    assert noise[:, 0].std().item() == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize("changed", EACH, ids=lambda one: next(iter(one)))
def test_no_epsilon_exists_with_any_part_of_the_program(changed):
    settings = settings_of()
    published = engine_of(city(30), settings, mode="paper")
    train(published, 2)
    assert math.isfinite(published.ledger.spent().epsilon()["person"])
    program = engine_of(city(30), settings, mode="paper", **changed)
    train(program, 2)
    found = program.ledger.spent().epsilon()
    assert found == dict.fromkeys(("visit", "day", "person"), math.inf)


@pytest.mark.parametrize("changed", EACH, ids=lambda one: next(iter(one)))
def test_local_mode_and_sites_refuse_the_program(changed):
    with pytest.raises(SettingsError, match="no epsilon exists"):
        PrivacySettings(mode="local", **changed)
    with pytest.raises(SettingsError, match=r"privacy\.clipped"):
        require_federable(PredictionSettings(privacy=PrivacySettings(**changed)))


def test_sites_refuse_the_region_model_of_the_program():
    gru = RegionSettings(network=DcrnnSettings(kind="gru"))
    for region in (gru, RegionSettings(scale_states=False)):
        with pytest.raises(SettingsError, match=r"region\.network\.kind"):
            require_federable(PredictionSettings(region=region))
    with pytest.raises(SettingsError, match="no site knows all cases"):
        require_federable(PredictionSettings(region=RegionSettings(macro_cases="all")))
