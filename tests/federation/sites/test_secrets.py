"""What a site draws for its people comes from its own secret."""

import numpy as np
import pytest
import torch

from epifalcon.federation import client
from epifalcon.federation.plan import RunSeeds
from epifalcon.federation.sites.files import SITE_FILE, SiteFiles
from tests.federation.sites.test_coordinating import (
    NAMES,
    folder,  # noqa: F401
    order,
    run_of,
)
from tests.federation.small_world import city, settings_of


@pytest.mark.parametrize("name", ["embedding", "dropout", "mask", "noise"])
def test_what_concerns_people_follows_the_secret_alone(name):
    assert getattr(RunSeeds(1, 9), name) == getattr(RunSeeds(2, 9), name)
    assert getattr(RunSeeds(1, 9), name) != getattr(RunSeeds(1, 8), name)
    assert getattr(RunSeeds(1, 9), name) == getattr(RunSeeds(9), name)


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
    keys = {one._rounds.rounds._seeds.noise for one in transport.running.values()}
    assert len(keys) == len(NAMES)


def test_a_run_whose_folder_was_deleted_begins_with_other_noise(tmp_path):
    files = SiteFiles(tmp_path)
    first = files.noise_key("run")
    assert files.noise_key("run") == first
    (tmp_path / "runs" / "run" / "secret").unlink()
    assert files.noise_key("run") != first
