import json
import re
import shutil
import sys

import pytest

from epifalcon.app.main import main
from tests.app.conftest import QUICK, TINY


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    quick = [word for one in QUICK for word in ("--set", one)]
    words = ["--out", str(out), "--seed", "3", *TINY, *quick, "--quiet"]
    before = sys.argv
    sys.argv = ["epifalcon", "run", *words]
    try:
        main()
    finally:
        sys.argv = before
    return out


@pytest.fixture
def run_folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_holds_every_record_and_a_report(run_folder):
    for name in ("city", "outbreak", "known", "hidden"):
        assert (run_folder / name / "manifest.json").is_file()
    for name in ("epidemic-curve", "risk-map", "mobility", "precision-recall",
                 "reliability", "training"):  # fmt: skip
        picture = (run_folder / "figures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")


def test_the_report_loads_nothing_from_outside(run_folder):
    page = (run_folder / "report.html").read_text()
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    pictures = re.findall(r'src="([^"]{0,30})', page)
    assert len(pictures) == 6
    assert all(source.startswith("data:image/png;base64") for source in pictures)
    links = re.findall(r'href="([^"]{0,30})', page)
    assert all(link.startswith(("#", "data:,")) for link in links)


@pytest.mark.usefixtures("no_pictures")
def test_a_run_can_be_made_again_from_its_own_settings(epifalcon, run_folder, tmp_path):
    again = tmp_path / "again"
    words = ("--preset", run_folder / "settings.toml", "--seed", 3, "--out", again)
    assert epifalcon("run", *words).code == 0
    for name in ("city/by_slot.npy", "outbreak/infection_slot.npy", "known/person.npy",
                 "methods/falcon/prediction/probability.npy"):  # fmt: skip
        assert (again / name).read_bytes() == (run_folder / name).read_bytes()


def test_inspect_gives_each_statistic_with_its_band(epifalcon, run_folder):
    figures = epifalcon("inspect", run_folder, "--json").json
    assert figures["kind"] == "run"
    assert figures["people"] == 120
    assert len(figures["statistics"]) >= 10
    for item in figures["statistics"]:
        assert {"name", "value", "low", "high", "holds"} <= set(item)
        if item["value"] is not None:
            assert item["holds"] == (item["low"] <= item["value"] <= item["high"])


def test_inspect_of_a_preset_builds_its_city(epifalcon, tiny):
    figures = epifalcon("inspect", "--preset", "hamlet", "--json", *tiny).json
    assert figures["people"] == 120


def test_inspect_draws_into_a_folder_of_its_own(epifalcon, run_folder, tmp_path):
    said = epifalcon("inspect", run_folder, "--out", tmp_path / "p", "--json")
    assert said.json["picture"] == str(tmp_path / "p" / "mobility.png")
    assert (tmp_path / "p" / "mobility.png").is_file()


@pytest.mark.parametrize("place", ["city/by_slot.npy", "report.html"])
def test_one_flipped_bit_is_noticed(epifalcon, run_folder, place):
    path = run_folder / place
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = epifalcon("inspect", run_folder)
    assert said.code == 5
    assert place in said.err


def test_a_missing_file_is_noticed(epifalcon, run_folder):
    (run_folder / "city" / "by_slot.npy").unlink()
    said = epifalcon("inspect", run_folder)
    assert said.code == 5
    assert "is missing" in said.err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "other"}'])
def test_a_broken_manifest_is_a_clear_error(epifalcon, run_folder, content):
    (run_folder / "manifest.json").write_text(content)
    said = epifalcon("inspect", run_folder)
    assert said.code in {3, 5}
    assert "manifest.json" in said.err


def test_a_folder_that_is_not_ours(epifalcon, tmp_path):
    assert epifalcon("inspect", tmp_path).code == 3
    assert epifalcon("inspect", tmp_path / "none").code == 3


def test_the_summary_matches_the_records(run_folder):
    summary = json.loads((run_folder / "summary.json").read_text())
    known = json.loads((run_folder / "known" / "manifest.json").read_text())
    assert summary["tested"] == round(0.4 * 120)
    assert known["meta"]["people"] == 120


def test_presets_are_listed_and_shown(epifalcon, tmp_path):
    names = {"hamlet", "basic-sars", "basic-omicron", "larger-sars", "larger-omicron"}
    assert set(epifalcon("presets", "--json").json) == names
    text = epifalcon("presets", "hamlet", "--set", "city.people=77").out
    (tmp_path / "mine.toml").write_text(text)
    shown = epifalcon("presets", tmp_path / "mine.toml", "--json").json
    assert shown["city"]["people"] == 77


@pytest.mark.usefixtures("no_pictures")
def test_a_run_on_a_city_that_was_there_keeps_what_made_the_city(
    epifalcon, run_folder, tmp_path
):
    again = tmp_path / "again"
    words = ("--city", run_folder, "--set", "pathogen=omicron", "--out", again)
    assert epifalcon("run", *words, "--seed", 9).code == 0
    old, new = (
        json.loads((folder / "city" / "manifest.json").read_text())
        for folder in (run_folder, again)
    )
    assert new["settings"] == old["settings"]
    assert new["seed"] == old["seed"] == 3
    run = json.loads((again / "manifest.json").read_text())
    assert run["settings"]["city"]["read_from"] == str(run_folder)
    assert run["settings"]["city"]["settings"] == old["settings"]
    assert run["settings"]["pathogen"]["name"] == "omicron"
    assert f"--city {run_folder}" in (again / "report.html").read_text()
