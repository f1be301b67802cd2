"""``epifalcon city``, ``outbreak`` and what all commands share: folders and output."""

import json

import numpy as np
import pytest

from tests.cli.runs import content, names


def test_city_is_the_same_for_the_same_seed_and_tells_what_made_it(
    epifalcon, tiny, tmp_path
):
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        said = epifalcon("city", "--out", tmp_path / name, "--seed", seed, *tiny)
        assert said.code == 0
    one, two, three = (content(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one["by_slot.npy"] != three["by_slot.npy"]
    manifest = json.loads(one["manifest.json"])
    assert (manifest["seed"], manifest["settings"]["city"]["people"]) == (5, 120)


def test_outbreak_figures(epifalcon, tiny):
    said = epifalcon("outbreak", "--seeds", 3, "--json", *tiny)
    figures = said.json
    assert (said.code, said.err, said.out.count("\n")) == (0, "", 1)
    assert figures["seeds"] == [0, 1, 2]
    assert np.shape(figures["daily_infectious"]) == (3, 5)
    assert figures["hazard_r0"] == pytest.approx(0.405 / 0.071)
    for share, cases in zip(
        figures["infected_share"], figures["daily_new_cases"], strict=True
    ):
        assert share == pytest.approx((12 + sum(cases)) / 120)
    said = epifalcon("outbreak", "--quiet", *tiny)
    assert (said.code, said.out, said.err) == (0, "", "")


def test_a_city_brings_its_settings_and_outbreak_k_draws_from_its_own_seed(
    epifalcon, tiny, tmp_path
):
    omicron = ("--set", "pathogen=omicron")
    epifalcon("city", "--out", tmp_path / "c", *tiny, *omicron)
    at_once = epifalcon("outbreak", "--json", *tiny, *omicron).json
    many = epifalcon("outbreak", "--city", tmp_path / "c", "--seeds", 3, "--json").json
    last = epifalcon("outbreak", "--city", tmp_path / "c", "--seed", 2, "--json").json
    assert many["infected_share"][0] == at_once["infected_share"][0]
    assert many["hazard_r0"] == pytest.approx(0.766 / 0.071)
    assert many["daily_new_cases"][2] == last["daily_new_cases"][0]
    assert many["infected_share"][0] != many["infected_share"][1]
    said = epifalcon("outbreak", "--city", tmp_path / "c", "--set", "city.people=5")
    said.require_error(2, "would change the city")


def test_kept_outbreaks(epifalcon, tiny, tmp_path):
    out = tmp_path / "o"
    assert epifalcon("outbreak", "--seeds", 2, "--out", out, *tiny).code == 0
    assert (out / "figures" / "epidemic-curve.png").read_bytes()[:4] == b"\x89PNG"
    for seed in (0, 1):
        for record in ("outbreak", "hidden"):
            manifest = out / f"seed-{seed}" / record / "manifest.json"
            assert json.loads(manifest.read_text())["seed"] == seed
        known = (out / f"seed-{seed}" / "known" / "manifest.json").read_text()
        # With seed and settings a reader could make the hidden labels again.
        assert json.loads(known)["seed"] is None
        assert "seed_count" not in known
        assert "label_share" in known
    assert epifalcon("inspect", out, "--json").json["kind"] == "outbreaks"


def test_only_folders_of_epifalcon_are_overwritten_and_only_on_request(
    epifalcon, tiny, tmp_path
):
    out = tmp_path / "c"
    epifalcon("city", "--out", out, *tiny)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    before = content(tmp_path)
    epifalcon("city", "--out", out, "--seed", 9, *tiny).require_error(6, "--overwrite")
    for name in ("mine", "file", "file/in"):
        words = ("--out", tmp_path / name, "--overwrite")
        assert epifalcon("city", *words, *tiny).code == 6
    # Nor is what a command reads.
    words = ("--out", out, "--overwrite")
    for command in (
        ("inspect", out),
        ("outbreak", "--city", out),
        ("run", "--city", out),
    ):
        said = epifalcon(*command, *words)
        assert said.code == 6, said.err
        assert "contains the input" in said.err
    said = epifalcon("city", "--out", tmp_path / "new", "--set", "city.people=0")
    assert said.code == 2
    assert content(tmp_path) == before
    assert names(tmp_path) == ["c", "file", "mine"]
    assert epifalcon("city", *words, "--seed", 9, *tiny).code == 0
    assert content(tmp_path) != before
