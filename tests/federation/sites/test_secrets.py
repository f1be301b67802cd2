"""What a site draws for its people comes from its own secret."""

import itertools

import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError
from epifalcon.federation import client
from epifalcon.federation.plan import RunSeeds
from epifalcon.federation.sites.files import SITE_FILE, SiteFiles
from epifalcon.privacy.gaussian import normals
from tests.federation.sites.test_coordinating import (
    NAMES,
    folder,  # noqa: F401
    order,
    run_of,
)
from tests.federation.small_world import city, plan_of, settings_of


@pytest.mark.parametrize("name", ["embedding", "dropout", "mask", "noise"])
def test_what_concerns_people_follows_the_secret_alone(name):
    assert getattr(RunSeeds(1, 9), name) == getattr(RunSeeds(2, 9), name)
    assert getattr(RunSeeds(1, 9), name) != getattr(RunSeeds(1, 8), name)
    assert getattr(RunSeeds(1, 9), name) != getattr(RunSeeds(9), name)


@pytest.mark.parametrize("name", ["embedding", "dropout", "mask", "noise"])
@pytest.mark.parametrize("bit", [0, 31, 32, 63, 64, 128, 255])
def test_every_bit_of_the_secret_counts(name, bit):
    secret = 2**255 // 3
    mine, other = RunSeeds(1, secret), RunSeeds(1, secret ^ 1 << bit)
    assert getattr(mine, name) != getattr(other, name)


@pytest.mark.parametrize("bit", [0, 31, 32, 40, 63, 64, 128, 255])
def test_gradient_noise_and_pseudo_traces_use_the_whole_secret(bit):
    """torch's own generator keeps 32 bits of a seed: two secrets may draw alike."""
    plan = plan_of(settings_of(), 0, mode="paper")
    secret = 2**255 // 3
    drawn = []
    for one in (secret, secret ^ 1 << bit):
        seeds = RunSeeds(1, one)
        source = seeds.gradient(plan.gradient_terms(3), 0)
        assert not isinstance(source, torch.Generator)
        noise = normals((4,), source, torch.float64)
        assert not torch.equal(noise, normals((4,), source, torch.float64))
        drawn.append((noise, seeds.pseudo(0).random(4)))
    (noise, pseudo), (other, others) = drawn
    assert not torch.isclose(noise, other).any()
    assert not np.isclose(pseudo, others).any()


def test_the_keys_of_noise_have_no_fewer_than_128_bits():
    keys = [RunSeeds(1, number).noise for number in range(40)]
    assert max(keys).bit_length() > 250
    assert len({key & 0xFFFFFFFF for key in keys}) == len(keys)
    with pytest.raises(SettingsError, match="256 bits"):
        RunSeeds(1, 2**256)


def test_gradient_noise_is_normal_and_its_own_for_every_round_and_cohort():
    plan, seeds = plan_of(settings_of(), 0, mode="paper"), RunSeeds(1, 9)
    drawn = [
        normals((200, 50), seeds.gradient(plan.gradient_terms(number), who), kind)
        for number, who in ((0, 0), (1, 0), (0, 7))
        for kind in (torch.float64,)
    ]
    for one in drawn:
        assert abs(float(one.mean())) < 0.05
        assert abs(float(one.std()) - 1) < 0.05
    for one, other in itertools.combinations(drawn, 2):
        assert abs(float((one * other).mean())) < 0.05
    again = normals((200, 50), seeds.gradient(plan.gradient_terms(0), 0), torch.float64)
    assert torch.equal(drawn[0], again)


def test_the_first_weights_follow_the_seed_alone():
    one, other, third = RunSeeds(1, 9), RunSeeds(1, 8), RunSeeds(2, 9)
    drawn = [seeds.parameters().random(4) for seeds in (one, other, third)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_first_embeddings_cannot_be_drawn_by_who_knows_the_seed():
    whole, settings = city(12), settings_of()
    mine = client.first_home(whole, settings, RunSeeds(4, 9)).rows
    theirs = client.first_home(whole, settings, RunSeeds(4)).rows
    assert not torch.isclose(mine, theirs).any(dim=1).any()


def test_sites_with_secrets_train_together(folder):  # noqa: F811
    for name in NAMES:
        path = folder / name / SITE_FILE
        path.write_text(path.read_text().replace("known_noise = true", ""))
    run, transport = run_of(folder, order("paper", rounds=2))
    assert run.go()["finished"]
    assert not run.board.troubles
    keys = {one.rounds.seeds.noise for one in transport.running.values()}
    assert len(keys) == len(NAMES)


def test_a_run_whose_folder_was_deleted_begins_with_other_noise(tmp_path):
    files = SiteFiles(tmp_path)
    first = files.noise_key("run")
    assert files.noise_key("run") == first
    (tmp_path / "runs" / "run" / "secret").unlink()
    assert files.noise_key("run") != first
