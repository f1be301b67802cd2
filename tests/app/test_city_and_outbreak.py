import json

import numpy as np
import pytest


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_city_is_the_same_for_the_same_seed(epifalcon, tiny, tmp_path):
    for name in ("one", "two"):
        assert epifalcon("city", "--out", tmp_path / name, "--seed", 5, *tiny).code == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")
    epifalcon("city", "--out", tmp_path / "three", "--seed", 6, *tiny)
    one = files(tmp_path / "one")["by_slot.npy"]
    assert one != files(tmp_path / "three")["by_slot.npy"]


def test_a_city_tells_what_made_it(epifalcon, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "c", "--seed", 5, *tiny)
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["seed"] == 5
    assert manifest["settings"]["city"]["people"] == 120
    assert manifest["versions"]["epifalcon"]
    assert set(manifest["files"]) >= {"by_slot.npy", "centre_km.npy"}


def test_outbreak_figures(epifalcon, tiny):
    said = epifalcon("outbreak", "--seeds", 3, "--json", *tiny)
    figures = said.json
    assert said.code == 0
    assert figures["seeds"] == [0, 1, 2]
    assert len(figures["infected_share"]) == 3
    assert np.shape(figures["daily_infectious"]) == (3, 5)
    assert figures["seconds"] > 0
    assert figures["hazard_r0"] == pytest.approx(0.405 / 0.071)
    for share, cases in zip(
        figures["infected_share"], figures["daily_new_cases"], strict=True
    ):
        assert share == pytest.approx((12 + sum(cases)) / 120)


def test_outbreak_k_draws_from_its_own_seed(epifalcon, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "c", *tiny)
    many = epifalcon("outbreak", "--city", tmp_path / "c", "--seeds", 3, "--json").json
    last = epifalcon("outbreak", "--city", tmp_path / "c", "--seed", 2, "--json").json
    assert many["daily_new_cases"][2] == last["daily_new_cases"][0]
    assert many["infected_share"][0] != many["infected_share"][1]


def test_a_city_brings_its_own_settings(epifalcon, tiny, tmp_path):
    omicron = ("--set", "pathogen=omicron")
    epifalcon("city", "--out", tmp_path / "c", *tiny, *omicron)
    there = epifalcon("outbreak", "--city", tmp_path / "c", "--json").json
    at_once = epifalcon("outbreak", "--json", *tiny, *omicron).json
    assert there["infected_share"] == at_once["infected_share"]
    assert there["hazard_r0"] == pytest.approx(0.766 / 0.071)


def test_city_settings_beside_a_made_city_are_refused(epifalcon, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "c", *tiny)
    said = epifalcon("outbreak", "--city", tmp_path / "c", "--set", "city.people=5")
    assert said.code == 2
    assert "would change the city" in said.err


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


def test_an_existing_folder_is_left_alone(epifalcon, tiny, tmp_path):
    out = tmp_path / "c"
    epifalcon("city", "--out", out, *tiny)
    before = files(out)
    said = epifalcon("city", "--out", out, "--seed", 9, *tiny)
    assert said.code == 6
    assert "--overwrite" in said.err
    assert files(out) == before
    assert epifalcon("city", "--out", out, "--seed", 9, "--overwrite", *tiny).code == 0
    assert files(out) != before


def test_what_is_not_ours_is_never_overwritten(epifalcon, tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    said = epifalcon("city", "--out", tmp_path / "mine", "--overwrite", *tiny)
    assert said.code == 6
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    assert epifalcon("city", "--out", tmp_path / "file", *tiny).code == 6
    assert epifalcon("city", "--out", tmp_path / "file" / "in", *tiny).code == 6


def test_a_failed_command_leaves_nothing(epifalcon, tmp_path):
    said = epifalcon("city", "--out", tmp_path / "c", "--set", "city.people=0")
    assert said.code == 2
    assert list(tmp_path.iterdir()) == []


def test_quiet_says_nothing(epifalcon, tiny):
    said = epifalcon("outbreak", "--quiet", *tiny)
    assert (said.code, said.out, said.err) == (0, "", "")


def test_json_is_one_document_and_no_progress_when_piped(epifalcon, tiny):
    said = epifalcon("outbreak", "--json", *tiny)
    assert said.out.count("\n") == 1
    assert said.err == ""


@pytest.mark.usefixtures("no_pictures")
def test_what_is_reported_is_kept_beside_the_truth(epifalcon, quick, tmp_path):
    words = ("--set", "reporting.trace_share=0.5", "--set", "reporting.last_days=3")
    quick = (*quick, "--set", "region.training.horizon=1", "--mode", "paper")
    said = epifalcon("run", "--out", tmp_path / "r", "--json", *quick, *words)
    assert said.json["share_reported"] == pytest.approx(0.5, abs=0.02)
    truth = np.load(tmp_path / "r" / "city" / "by_slot.npy")
    reported = np.load(tmp_path / "r" / "reported" / "by_slot.npy")
    assert reported.shape == (36, 120)
    seen = reported != -1
    assert (reported[seen] == truth[-36:][seen]).all()
    plain = epifalcon("run", "--out", tmp_path / "p", "--json", *quick)
    shares = [one.json["outbreak"]["infected_share"] for one in (plain, said)]
    assert shares[0] == shares[1]
    assert not (tmp_path / "p" / "reported").exists()


def test_more_days_than_there_are_cannot_be_reported(epifalcon, tiny):
    said = epifalcon("outbreak", "--set", "reporting.last_days=30", *tiny)
    assert said.code == 2
    assert "last_days=30" in said.err


def test_a_command_does_not_overwrite_what_it_reads(epifalcon, tiny, tmp_path):
    town = tmp_path / "town"
    epifalcon("city", "--out", town, *tiny)
    before = files(town)
    words = ("--out", town, "--overwrite")
    for command in (
        ("inspect", town, *words),
        ("outbreak", "--city", town, *words),
        ("run", "--city", town, *words),
    ):
        said = epifalcon(*command)
        assert said.code == 6, said.err
        assert "being read" in said.err
    assert files(town) == before


def test_usage_errors_are_one_line(epifalcon):
    for words in (("run",), ("outbreak", "--seeds", "0"), ("city", "--sed", "1")):
        said = epifalcon(*words)
        assert said.code == 2
        assert said.err.startswith("epifalcon: ")
        assert said.err.count("\n") == 1
